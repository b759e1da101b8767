"""Common steps of all imports: choice of a model, atomic writing of runs, and comparison of means."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from tbench.errors import UsageError
from tbench.files import safe_relative, write_json
from tbench.results import UNKNOWN_AGENT, TrialResult
from tbench.scores.statistics import score
from tbench.scores.summarise import reward_table
from tbench.storage.imported_plan import ImportedPlan
from tbench.storage.record_directory import LineFile, new_directory
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME
from tbench.text import counted, names_text, visible_line

_RUNS = Path("runs")
WriteTrials = Callable[[Path], Iterable[TrialResult]]
"""Writes the files of all trials of a run below a directory, and yields the results."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to write."""

    directory: Path
    plan: ImportedPlan
    trials: WriteTrials


def directories(names: Sequence[str], output: Path | None) -> list[Path]:
    """Return the directories of runs with these names: a single run at `output`, several below it; else in `runs/`.

    Raises UsageError.
    """
    if len(names) == 1:
        return [output or _RUNS / safe_relative(names[0])]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(f"several runs would be named {twice[0]!r}; import them one by one, each with its own -o")
    return [(output or _RUNS) / safe_relative(name.replace("/", "-")) for name in names]


def now() -> str:
    """Return the current time for run.json."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_runs(runs: Sequence[NewRun]) -> None:
    """Write all runs or none. Raises UsageError if a directory is not empty or cannot be written."""
    with contextlib.ExitStack() as made:
        directories = [made.enter_context(new_directory(run.directory)) for run in runs]
        for run, directory in zip(runs, directories, strict=True):
            with contextlib.closing(LineFile(directory / RESULTS_NAME)) as results:
                for result in run.trials(directory):
                    results.append(result.model_dump_json())
            write_json(directory / CONFIG_NAME, run.plan.model_dump(mode="json"))


# Report on an imported run: its size, its mean there and here, and why they differ

_SAME = 1e-9
"""Maximum difference of two means by rounding."""


@dataclass(frozen=True, slots=True)
class Imported:
    """An imported run with a report for the user."""

    directory: Path
    lines: tuple[str, ...]
    notes: tuple[str, ...] = ()


def size_line(plan: ImportedPlan, results: Sequence[TrialResult]) -> str:
    """Describe the size of a run, its agent and model."""
    unscored = sum(result.reward is None for result in results)
    without = f", {unscored:,} without a verdict" if unscored else ""
    by = f" by {plan.agent}" if plan.agent else ""
    of = f" with {plan.model}" if plan.model else ""
    tasks, seeds = counted(len(plan.tasks), "task"), counted(len(plan.seeds), "seed")
    return visible_line(f"{counted(len(results), 'trial')}{without}: {tasks}, {seeds}{by}{of}")


def mean_score(plan: ImportedPlan, results: Sequence[TrialResult]) -> float:
    """Return the score as in summaries: planned trials without a verdict count as 0, and tasks have equal weight."""
    return score(reward_table(results, [task.name for task in plan.tasks], plan.seeds))


def mean_lines(
    plan: ImportedPlan, results: Sequence[TrialResult], mean: float, zeros: Sequence[TrialResult], left_out: int = 0
) -> Iterator[str]:
    """Compare Harbor's mean and tbench's score. `zeros`: results without a verdict that count as 0 in Harbor's mean.

    `left_out`: number of trials that Harbor's mean leaves out.
    """
    here, stated = mean_score(plan, results), plan.reported_mean
    reported = "none in its result.json" if stated is None else f"its result.json: {stated:.6f}"
    yield f"mean by Harbor's rule {mean:.6f} ({reported}), score here {here:.6f}"
    if stated is not None and abs(stated - mean) > _SAME:
        yield "its result.json was computed from other trials than these"
    if abs(here - mean) > _SAME:
        lost = len(plan.tasks) * len(plan.seeds) - len(results)
        reasons = (
            lost and f"{counted(lost, 'planned trial')} without a result count as 0 here and are ignored there",
            left_out and f"{counted(left_out, 'trial')} without a valid reward count as 0 here and are left out there",
            "tasks have equal weight here, trials there",
        )
        yield f"they differ because {'; '.join(str(reason) for reason in reasons if reason)}"
    if zeros:
        types = Counter(result.error.type for result in zeros if result.error is not None)
        why = names_text([f"{type_} {count}" for type_, count in types.most_common()])
        yield (
            f"{counted(len(zeros), 'trial')} with 0 there and an error here ({why}): "
            "this changes the score over scored trials, but not the score"
        )


# Choice of one model and agent, because a score over several has no meaning

Item = TypeVar("Item")
NO_MODEL = "none"
"""Name for results without a model."""


@dataclass(frozen=True, slots=True)
class ImportChoice:
    """The user's choice among results of several models or agents."""

    model: str | None = None
    agent: str | None = None
    split: Literal["model"] | None = None
    """One run per model."""


def select_by_model(
    items: Sequence[Item],
    choice: ImportChoice,
    model: Callable[[Item], str | None],
    agent: Callable[[Item], str | None],
    where: str,
) -> dict[str, list[Item]]:
    """Return the items of each run by model; a single run without `split`. Raises UsageError, naming the models."""
    of_agent = _filter(items, choice.agent, agent, where, "agent", UNKNOWN_AGENT)
    found = _filter(of_agent, choice.model, model, where, "model", NO_MODEL)
    by_model: dict[str, list[Item]] = {}
    for item in found:
        by_model.setdefault(model(item) or NO_MODEL, []).append(item)
    if len(by_model) > 1 and choice.split is None:
        raise UsageError(
            f"{where}: results of {len(by_model)} models: {_shown(by_model)}; "
            "choose one with --model NAME, or import each as a run with --split model"
        )
    for name, of_model in by_model.items():
        agents = sorted({agent(item) or UNKNOWN_AGENT for item in of_model})
        if len(agents) > 1:
            whose = f" of model {visible_line(name)}" if len(by_model) > 1 else ""
            raise UsageError(f"{where}: results{whose} by agents {_shown(agents)}; choose one with --agent NAME")
    return by_model


def _filter(
    items: Sequence[Item],
    wanted: str | None,
    read_name: Callable[[Item], str | None],
    where: str,
    what: str,
    without: str,
) -> list[Item]:
    if wanted is None:
        return list(items)
    found = [item for item in items if (read_name(item) or without) == wanted]
    if not found:
        known = _shown(sorted({read_name(item) or without for item in items}))
        raise UsageError(f"{where}: no result of {what} {wanted!r}; known: {known}")
    return found


def _shown(names: Iterable[str]) -> str:
    """Join untrusted names on one line."""
    return visible_line(names_text(names))
