"""Tests causes of failed trials by forks that start at the step of the cause, with the cause removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from harness.trajectory import Step
from tbench.agents.endpoints import connect
from tbench.api.forking import fork
from tbench.config.document import RunDocument
from tbench.config.settings import RunConfig
from tbench.errors import TbenchError, UsageError
from tbench.explaining.causes import MODEL
from tbench.explaining.confirmations import store_confirmation
from tbench.explaining.explain import UNCLEAR, explain
from tbench.explaining.explanation import Confirmation, DifferencePart, ExplainedTrial, Explanation, LostPoints
from tbench.explaining.sameness import THINKING
from tbench.results import TrialResult
from tbench.sandbox.backend import MakeBackend
from tbench.scores.comparing.noise import wilson_95
from tbench.storage.read_run import read_run_document
from tbench.storage.run_files import CONFIG_NAME, is_run
from tbench.storage.stored_trial import find_trial
from tbench.text import counted, one_line

_ALONE = "machine"
"""Cause that every fork removes, because forks run one at a time."""
_ANOTHER_SERVER = (MODEL, UNCLEAR, THINKING, "context_full", "reply_cut", "parser", "endpoint", "request_timeout")
"""Causes that another server may remove, if no setting does."""
_FROM_START = (MODEL, UNCLEAR)
"""Causes that do not strike at one step, so that trials start from the beginning."""
_WINDOWED = ("context_full", "reply_cut")
"""Causes that only a longer context removes."""
_ERROR_CHARS = 200


@dataclass(frozen=True)
class Counterfactual:
    """Forks that are planned to confirm one cause."""

    cause: str
    title: str
    when: str
    changes: Mapping[str, Any]
    """Values of settings that remove the cause."""
    base_url: str | None
    """Endpoint of the forks; None for the endpoint of each trial's run."""
    unchanged: Mapping[str, Any] | None
    """Settings of equally many forks that keep the cause, for comparison; None without such forks."""
    failed: tuple[ExplainedTrial, ...]
    """All trials with the cause."""
    trials: tuple[ExplainedTrial, ...] = ()
    """The trials that are forked."""
    samples: int = 0

    @property
    def arms(self) -> int:
        return 1 if self.unchanged is None else 2

    @property
    def forks(self) -> int:
        return len(self.trials) * self.samples * self.arms

    def within(self, budget: int) -> Counterfactual:
        """Return a copy within the budget, with as many tasks as possible; more samples if all trials can be forked."""
        forks = budget // self.arms
        trials = _spread(self.failed)[:forks]
        return replace(self, trials=trials, samples=forks // len(trials) if trials else 0)

    @property
    def line(self) -> str:
        both = " and as many without this change" if self.unchanged is not None else ""
        each = f"{self.samples} × " if self.samples > 1 else ""
        of = f"{len(self.trials)} of {counted(len(self.failed), 'trial')}"
        return f"{self.title}: {each}{of}, when {self.when}{both}"


async def confirm(
    found: Explanation,
    forks: int,
    *,
    base_url: str | None = None,
    directory: Path | str | None = None,
    backend: MakeBackend | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Explanation:
    """Confirm the causes in an explanation with at most `forks` forks, and return the explanation with the outcome.

    Each failed trial is replayed up to the step of its cause, and continued with the cause removed: with the settings
    that the remedy changes or, where another server is needed, at `base_url` or the earlier run's endpoint. If settings
    or the context's length change, half of the forks repeat the same without the change. `base_url` is also needed if
    the run's endpoint has moved. `say` is called with the plan before anything starts, with progress, and with causes
    that cannot be confirmed. The outcome of forks is stored with the newest run. Raises UsageError if nothing can be
    confirmed.
    """
    run = Path(found.run.runs[-1])
    if not is_run(run):
        raise UsageError(f"{run}: imported results cannot be forked")
    document = read_run_document(run / CONFIG_NAME)
    planned = await _plan(found, forks, base_url, document, say)
    total = sum(each.forks for each in planned)
    if not total:
        raise UsageError(f"{run}: no cause can be confirmed with {counted(forks, 'fork')}")
    path = Path(directory) if directory is not None else Path("runs") / f"confirm-{run.name}-{datetime.now():%H%M%S}"
    say(f"confirming with {counted(total, 'fork')}, one after the other{_cost(planned)}; files: {path}")
    for each in planned:
        say(f"  {each.line}")
    for each in planned:
        outcome = await _confirm(each, path / each.cause, backend, say)
        if outcome.forks:
            store_confirmation(run, outcome)
        say(f"{each.title}: {outcome.words}")
        for line in outcome.failed:
            say(f"{each.title}: a fork failed: {line}")
    against = found.against
    return explain(
        [Path(each) for each in found.run.runs], None if against is None else [Path(each) for each in against.runs]
    )


async def _plan(
    found: Explanation, forks: int, base_url: str | None, document: RunDocument, say: Callable[[str], None]
) -> list[Counterfactual]:
    """Return the planned forks for each cause that can be removed, and report the other causes."""
    possible = list[Counterfactual]()
    for cause in _causes(found):
        try:
            possible.append(await _counterfactual(cause, found, base_url, document, say))
        except UsageError as error:
            say(f"{cause.title}: not confirmed: {error}")
    planned, left = list[Counterfactual](), forks
    for at, each in enumerate(possible):
        chosen = each.within(left // (len(possible) - at))
        if chosen.forks:
            planned.append(chosen)
        else:
            say(f"{each.title}: not confirmed: it needs {counted(each.arms, 'fork')}, and too few are left of {forks}")
        left -= chosen.forks
    return planned


def _causes(found: Explanation) -> Sequence[DifferencePart | LostPoints]:
    """Return the causes to confirm: the lost parts beyond chance, else all lost parts; of a single run, all causes."""
    if found.difference is None:
        return found.lost
    lost = [part for part in found.difference.parts if part.difference < 0]
    return [part for part in lost if part.named] or lost


async def _counterfactual(
    cause: DifferencePart | LostPoints,
    found: Explanation,
    base_url: str | None,
    document: RunDocument,
    say: Callable[[str], None],
) -> Counterfactual:
    """Return how the cause can be removed. Raises UsageError."""
    failed = tuple(each for each in found.trials if each.cause == cause.cause)
    if not failed:
        raise UsageError("none of its trials is listed")
    if cause.cause == _ALONE and not cause.changes.keys() - {"schedule.concurrency"}:
        return Counterfactual(cause.cause, cause.title, "one runs after the other", {}, base_url, None, failed)
    if cause.changes:
        when = " and ".join(f"{key} is {value}" for key, value in cause.changes.items())
        return Counterfactual(cause.cause, cause.title, when, cause.changes, base_url, {}, failed)
    if cause.cause not in _ANOTHER_SERVER:
        raise UsageError("no setting or server removes this cause")
    url = base_url or _other_endpoint(found, document)
    if url is None:
        raise UsageError("it needs another server; start one without this cause, and give --base-url URL")
    chat, served = await connect(_config(document.config, {}, url).model, say)
    await chat.close()
    own = document.locked.served.context_tokens if document.locked.served is not None else None
    window = served.context_tokens
    if cause.cause in _WINDOWED and own is not None and (window is None or window <= own):
        raise UsageError(f"{url} serves {window or 'an unknown number of'} tokens, the run had {own}; serve more")
    unchanged = {"limits.context_tokens": own} if cause.cause in _WINDOWED and own is not None else None
    of = f" with {window:,} tokens" if window is not None else ""
    return Counterfactual(cause.cause, cause.title, f"{url} answers{of}", {}, url, unchanged, failed)


def _other_endpoint(found: Explanation, document: RunDocument) -> str | None:
    """Return the earlier run's endpoint, if it differs."""
    if found.against is None:
        return None
    other = read_run_document(Path(found.against.runs[-1]) / CONFIG_NAME).locked.base_url
    return other if other != document.locked.base_url else None


def _config(config: RunConfig, changes: Mapping[str, Any], base_url: str | None) -> RunConfig:
    sections: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    if base_url is not None:
        sections["model"] = {**sections.get("model", {}), "base_url": base_url, "endpoints": ()}
    return config.with_values(**sections)


def _spread(trials: Sequence[ExplainedTrial]) -> tuple[ExplainedTrial, ...]:
    """Return trials in an order in which each task comes once before any comes twice."""
    by_task: dict[str, list[ExplainedTrial]] = {}
    for each in trials:
        by_task.setdefault(each.task, []).append(each)
    return tuple(each for row in zip_longest(*by_task.values()) for each in row if each is not None)


def _cost(planned: Sequence[Counterfactual]) -> str:
    """Describe the cost of the original trials, which is about the maximum cost of the forks."""
    spent = [(each, find_trial(trial.trial).result) for each in planned for trial in each.trials]
    known = [(each.samples * each.arms, result) for each, result in spent if result is not None]
    minutes = sum(times * result.timings.wall_sec for times, result in known) / 60
    tokens = sum(times * result.usage.completion_tokens for times, result in known)
    return f"; as in their runs, that would take {minutes:.0f} min and {tokens:,} tokens of replies"


async def _confirm(
    planned: Counterfactual, directory: Path, backend: MakeBackend | None, say: Callable[[str], None]
) -> Confirmation:
    """Fork the trials of one cause."""
    failures = dict[str, None]()

    async def passed(name: str, changes: Mapping[str, Any]) -> list[bool]:
        found = list[bool]()
        for number, trial in enumerate(planned.trials):
            try:
                results = await _fork(planned, trial, changes, directory / name / str(number), backend, say)
            except TbenchError as error:
                text = one_line(str(error), _ERROR_CHARS)
                if any(text.partition(" (")[0] == known.partition(" (")[0] for known in failures):
                    break  # it is the engine or the endpoint, so it will fail again
                failures[text] = None
                continue
            found += [result.passed for result, counts in results if counts]
            failures.update({_failure(result): None for result, counts in results if not counts})
        return found

    changed = await passed("changed", planned.changes)
    unchanged = await passed("unchanged", planned.unchanged) if planned.unchanged is not None else []
    low, high = wilson_95(sum(changed), len(changed)) if changed else (0.0, 1.0)
    return Confirmation(
        cause=planned.cause,
        when=planned.when,
        of=len(planned.failed),
        trials=len(planned.trials),
        forks=len(changed),
        passed=sum(changed),
        low=low,
        high=high,
        unchanged_forks=len(unchanged),
        unchanged_passed=sum(unchanged),
        failed=tuple(failures),
        directory=str(directory),
    )


async def _fork(
    planned: Counterfactual,
    trial: ExplainedTrial,
    changes: Mapping[str, Any],
    directory: Path,
    backend: MakeBackend | None,
    say: Callable[[str], None],
) -> list[tuple[TrialResult, bool]]:
    """Fork one trial; return each result, and whether it counts. Raises TbenchError."""
    stored = find_trial(trial.trial)
    step = _first_step(planned.cause, trial, stored.steps)
    config = _config(stored.document.config, changes, planned.base_url)
    done = await fork(
        trial.trial, step, samples=planned.samples, config=config, directory=directory, backend=backend, say=say
    )
    causes = {each.seed: each.cause for each in explain(directory).trials}
    return [
        (each.result, each.result.reward is not None or causes.get(each.result.seed) == planned.cause)
        for each in done.trials
    ]


def _first_step(cause: str, trial: ExplainedTrial, steps: Sequence[Step]) -> int:
    """Return the first step that the cause may have affected."""
    if cause in _FROM_START:
        return 1
    cut = (step.index for step in steps if step.reply.cut) if cause in _WINDOWED else iter(())
    return next(cut, max(1, min(trial.step or 1, len(steps))))


def _failure(result: TrialResult) -> str:
    error = result.error
    words = f"{error.type}: {error.message}" if error is not None else "no verdict"
    return one_line(f"{result.task}/{result.seed}: {words}", _ERROR_CHARS)
