"""Finds the differences between two sides as experiments, and the responsible parties."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness.thoughts import reply_texts
from harness.trajectory import Frozen, Step
from tbench.config.document import RunDocument
from tbench.divergence import normalised_line
from tbench.explaining.causes import RULES, Party
from tbench.explaining.exact import Stratum, ranks_test, sums_test
from tbench.explaining.trials import Image, Side, Trial
from tbench.storage.comparable import each_difference, measured_values
from tbench.storage.read_run import StoredRun
from tbench.storage.run_files import TRAJECTORY_NAME
from tbench.text import counted, names_text

_MAX_PROMPTS = 100
"""Maximum number of tasks whose first prompts are compared."""
_OPENING_BYTES, _MESSAGES = 1 << 19, '"messages":'
"""Bytes of a trajectory that are read for its first request, and the text before the request's messages."""
_SURE = 0.001
"""Maximum p for a changed pace or load."""
_SLOWER = 1.25
"""Minimum factor of a changed pace."""
_PRESSED = 0.2
"""Minimum difference of the shares of trials under pressure for a changed load."""
_LEAST = 3
"""Minimum number of trials with thinking for a statement about it."""
_LEVERS = frozenset(lever for rule in RULES for lever in rule.levers)
_FACTS = ("model.request_timeout_sec", "schedule.concurrency", "schedule.cpu_overcommit")
"""Settings that `tbench compare` does not check, but that may explain a difference."""
_TEMPLATED = {"model.template", "model.chat_template_kwargs", "model.strip_thinking", "model.send_reasoning"}
"""Settings that change prompts."""
THINKING, TEMPLATE = "server.thinking", "server.template"
IMAGE = "image"


class Moved(Frozen):
    """A fact of the experiment that differs between the two sides."""

    key: str
    """A setting such as `model.max_tokens`, or `server.…`, `machine.…`, `image`, `prompts`, `model.…`, `seeds`."""
    words: str
    """`before → after`, or a description."""
    party: Party
    explains: bool = True
    """Whether it may change a score; otherwise it is for information."""

    @property
    def is_separable(self) -> bool:
        """Whether its effect can be told from the model's: it shows in causes of trials, or only on some tasks."""
        return not self.explains or self.party == "model" or self.key in _LEVERS or self.key in (THINKING, IMAGE)


def moved_facts(first: Side, second: Side, tasks: Sequence[str], images: Sequence[str]) -> tuple[Moved, ...]:
    """Return the changes between the newest runs of two sides; `images` are the tasks with another image."""
    old, new = first.last, second.last
    found = [*_settings(old, new), *_served(old, new), *_replies(first, second)]
    if images:
        words = f"{counted(len(images), 'task')} of {len(tasks)}: {names_text(images)}"
        found.append(Moved(key=IMAGE, words=words, party="task"))
    found += _prompts(first, second, tasks, found)
    found += _thinking(first, second, found)
    found += _paces(first, second, tasks)
    seeds = [sorted({each.seed for row in side.trials.values() for each in row}) for side in (first, second)]
    if seeds[0] != seeds[1]:
        words = f"{_range(seeds[0])} → {_range(seeds[1])}"
        found.append(Moved(key="seeds", words=words, party="harness", explains=False))
    return tuple(sorted(found, key=lambda each: not each.explains))


def _range(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])


def _settings(old: StoredRun, new: StoredRun) -> Iterator[Moved]:
    before, after = old.document, new.document
    if before is None or after is None:
        return
    for key, words in each_difference(_values(before), _values(after)):
        yield Moved(key=key, words=words.partition(": ")[2], party="harness", explains=not key.startswith("schedule."))
    versions = before.tbench_version, after.tbench_version
    if versions[0] != versions[1]:
        is_series = [each.split(".")[:2] for each in versions]
        words = f"{versions[0]} → {versions[1]}"
        yield Moved(key="tbench", words=words, party="harness", explains=is_series[0] != is_series[1])


def _values(document: RunDocument) -> dict[str, Any]:
    values = measured_values(document)
    model, schedule = document.config.model, document.config.schedule
    own = (model.request_timeout_sec or "auto", schedule.concurrency or "auto", schedule.cpu_overcommit)
    return values | dict(zip(_FACTS, own, strict=True))


def _served(old: StoredRun, new: StoredRun) -> Iterator[Moved]:
    """Yield the changes in the endpoint's description of its model."""
    if old.model != new.model:
        yield Moved(key="model.name", words=f"{old.model} → {new.model}", party="model")
    before, after = ((run.document.locked.served if run.document is not None else None) for run in (old, new))
    if before is None or after is None:
        return
    windows = before.context_tokens, after.context_tokens
    if windows[0] != windows[1]:
        words = " → ".join("unknown" if each is None else f"{each:,}" for each in windows)
        yield Moved(key="server.max_model_len", words=f"{words} tokens", party="server")
    if before.root != after.root:
        yield Moved(key="model.root", words=f"{before.root} → {after.root}", party="model")


def _replies(first: Side, second: Side) -> Iterator[Moved]:
    """Yield each kind of name in replies (model, weights, fingerprint) that has no name common to the newest runs."""
    documents = first.last.document, second.last.document
    if documents[0] is None or documents[1] is None:
        return
    old, new = documents[0].replies, documents[1].replies
    if old is None or new is None:
        return
    kinds: tuple[tuple[str, str, Party], ...] = (
        ("models", "model.reported", "model"),
        ("weights", "model.weights", "model"),
        ("fingerprints", "server.fingerprint", "server"),
    )
    for name, key, party in kinds:
        before, after = set(getattr(old, name)), set(getattr(new, name))
        if before and after and not before & after:
            words = f"{names_text(sorted(before), 3)} → {names_text(sorted(after), 3)}"
            is_same_model = first.last.model == second.last.model
            yield Moved(key=key, words=words, party=party, explains=party == "model" or is_same_model)


def other_image(first: Side, second: Side, task: str) -> bool:
    """Whether a task ran in an image with other content."""
    images = [
        next((each.image for each in reversed(side.trials[task]) if each.image), None) for side in (first, second)
    ]
    before, after = images
    return isinstance(before, Image) and isinstance(after, Image) and after.differs_from(before)


@dataclass(frozen=True, slots=True)
class _FirstRequest:
    """The messages before a task's first reply."""

    text: str
    """Hash of the messages."""
    alike: str
    """Hash of the messages without times, hashes and other noise."""
    tokens: int
    """Length of the prompt that the server made of them; 0 if unknown."""


def _prompts(first: Side, second: Side, tasks: Sequence[str], found: Sequence[Moved]) -> Iterator[Moved]:
    """Compare the first request of each task as messages, and the length of the prompts made of equal messages."""
    known = [(task, _first_request(first, task), _first_request(second, task)) for task in tasks[:_MAX_PROMPTS]]
    pairs = [(task, before, after) for task, before, after in known if before is not None and after is not None]
    if differing := [task for task, before, after in pairs if before.alike != after.alike]:
        words = f"the first request of {counted(len(differing), 'task')} of {len(tasks)}: {names_text(differing)}"
        yield Moved(key="prompts", words=words, party="harness")
    if any(each.key in _TEMPLATED or each.party == "model" for each in found):
        return
    lengths = [
        (task, before.tokens, after.tokens)
        for task, before, after in pairs
        if before.text == after.text and before.tokens and after.tokens and before.tokens != after.tokens
    ]
    if lengths:
        task, old, new = lengths[0]
        words = f"the same messages have other prompts: {old:,} → {new:,} tokens at {task}"
        more = f", and others at {counted(len(lengths) - 1, 'task')}" if len(lengths) > 1 else ""
        yield Moved(key=TEMPLATE, words=f"{words}{more}", party="server")


def _first_request(side: Side, task: str) -> _FirstRequest | None:
    """Return the first request of a task's newest trial; None if it is not stored."""
    trial = next((each for each in reversed(side.trials[task]) if each.steps), None)
    if trial is None or side.runs[trial.run].document is None:
        return None
    opening = _opening(side.directory_of(trial) / TRAJECTORY_NAME) if side.has_files(trial) else []
    if not opening:
        return None
    text, alike = hashlib.sha256(), hashlib.sha256()
    for role, content in opening:
        text.update(f"{role}\n{content}\n".encode("utf-8", "replace"))
        alike.update("\n".join(map(normalised_line, (role, *content.split("\n")))).encode("utf-8", "replace"))
    steps = side.steps_of(trial)
    return _FirstRequest(text.hexdigest(), alike.hexdigest(), steps[0].reply.usage.prompt_tokens if steps else 0)


def _opening(file: Path) -> list[tuple[str, str]]:
    """Return role and content of a trajectory's messages before the first reply, reading only its beginning.

    Empty if the file is missing or damaged, or if the first reply is not within the bytes read.
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(_OPENING_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    start = text.find(_MESSAGES)
    position, found, decoder = start + len(_MESSAGES), list[tuple[str, str]](), json.JSONDecoder()
    while start >= 0:
        begins = text.find("{", position)
        try:
            message, position = decoder.raw_decode(text, begins)
            role, content = str(message["role"]), str(message["content"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return []
        if role == "assistant":
            return found
        found.append((role, content))
    return []


# Thinking


@dataclass(frozen=True, slots=True)
class ThinkingSeen:
    """Thinking in a trial's replies, and whether later prompts contain it."""

    replies: int
    thinking: int
    """Replies with thinking."""
    dropped_at: int | None
    """First step whose prompt lacks the previous reply's thinking: the prompt grew by less than that reply's tokens."""
    words: str = ""


def see_thinking(steps: Sequence[Step]) -> ThinkingSeen:
    """Find out whether a trial's replies contain thinking, and whether the prompts contain earlier thinking.

    A prompt that contains the previous reply has grown by at least the reply's tokens. Counts cannot prove that
    thinking was sent, so with `dropped_at` None no prompt is known to lack thinking.
    """
    dropped, words = None, ""
    for step, after in pairwise(steps):
        old, new = step.reply.usage, after.reply.usage
        grown = new.prompt_tokens - old.prompt_tokens
        is_counted = old.prompt_tokens > 0 and old.completion_tokens > 0 and new.prompt_tokens > 0
        is_compacted = any(warning.startswith("context_compacted") for warning in after.warnings)
        if _thinks(step) and is_counted and not is_compacted and 0 <= grown < old.completion_tokens:
            dropped = after.index
            words = f"the prompt grew by {grown:,} tokens after a reply of {old.completion_tokens:,} with thinking"
            break
    return ThinkingSeen(len(steps), sum(map(_thinks, steps)), dropped, words)


def _thinks(step: Step) -> bool:
    if step.reply.reasoning or "think>" not in step.reply.content:
        return bool(step.reply.reasoning)
    # If the template begins the thought in the prompt, the reply has only the end of the thought.
    return bool(reply_texts(step.reply, step.actions, is_malformed=step.format_error is not None).reasoning)


def _thinking(first: Side, second: Side, found: Sequence[Moved]) -> list[Moved]:
    """Return the finding that thinking is dropped, or missing, on one side only; empty otherwise."""
    seen = [[see_thinking(steps) for _, steps in side.sample] for side in (first, second)]
    old, new = ([each for each in some if each.replies] for some in seen)
    if min(len(old), len(new)) < _LEAST:
        return []
    party: Party = "harness" if any(each.key in _TEMPLATED for each in found) else "server"
    had, has = (sum(each.thinking for each in some) / sum(each.replies for each in some) for some in (old, new))
    if abs(had - has) > 0.5 and min(had, has) < 0.05:
        words = f"replies with thinking: {100 * had:.0f} → {100 * has:.0f} %"
        return [Moved(key=THINKING, words=words, party=party)]
    old, new = ([each for each in some if each.replies > 1 and each.thinking] for some in (old, new))
    if min(len(old), len(new)) < _LEAST:
        return []
    kept, keeps = (sum(each.dropped_at is None for each in some) / len(some) for some in (old, new))
    if abs(kept - keeps) <= 0.8:
        return []
    words = f"trials whose prompts lack earlier thinking: {100 * (1 - kept):.0f} → {100 * (1 - keeps):.0f} %"
    proof = next((each.words for each in (new if keeps < kept else old) if each.words), "")
    return [Moved(key=THINKING, words=f"{words} ({proof})", party=party)]


# Pace of replies and commands, and the load of the machine


def _tokens_per_sec(trial: Trial) -> float | None:
    return trial.completion_tokens / trial.model_sec if trial.model_sec >= 1 and trial.completion_tokens else None


def _command_sec(trial: Trial) -> float | None:
    return trial.command_sec / trial.steps if trial.steps and trial.command_sec else None


def _strata(
    first: Side, second: Side, tasks: Sequence[str], value: Callable[[Trial], float | None]
) -> tuple[list[Stratum], list[list[float]]]:
    """Return the known values of both sides by task, and those of all tasks together."""
    rows = [
        [[known for each in side.trials[task] if (known := value(each)) is not None] for task in tasks]
        for side in (first, second)
    ]
    strata = [Stratum(old, new) for old, new in zip(*rows, strict=True)]
    return strata, [[each for row in some for each in row] for some in rows]


def _paces(first: Side, second: Side, tasks: Sequence[str]) -> Iterator[Moved]:
    paces: tuple[tuple[str, str, Party, Callable[[Trial], float | None]], ...] = (
        ("server.pace", "tokens a second", "server", _tokens_per_sec),
        ("machine.pace", "seconds of commands a step", "machine", _command_sec),
    )
    for key, unit, party, value in paces:
        strata, (old, new) = _strata(first, second, tasks, value)
        if not old or not new:
            continue
        before, after = median(old), median(new)
        ratio = max(before, after) / max(min(before, after), 1e-9)
        if ratio >= _SLOWER and ranks_test(strata).p <= _SURE:
            yield Moved(key=key, words=f"{before:.3g} → {after:.3g} {unit} (median)", party=party)
    strata, (old, new) = _strata(first, second, tasks, lambda trial: float(trial.is_pressed) if trial.attempt else None)
    if old and new and abs(fmean(old) - fmean(new)) > _PRESSED and sums_test(strata).p <= _SURE:
        words = f"trials on an overloaded machine: {100 * fmean(old):.0f} → {100 * fmean(new):.0f} %"
        yield Moved(key="machine.load", words=words, party="machine")
