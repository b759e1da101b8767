"""The figures of an extraction: three levels and three rewards over all tasks. Made of stored replies alone.

A reply that never came and a task that could not be asked count as failed, with the reward 0; an empty reply fails as
well. Every figure is a mean over tasks for each seed, then mean and sample std over seeds.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from harness.protocols import UnknownProtocol, load_protocol
from harness.protocols.base import ActionProtocol
from harness.protocols.thinking_bash import ThinkingBash
from harness.trajectory import Frozen
from tbench import __version__
from tbench.errors import UsageError
from tbench.proxies.extraction.levels import Levels, read_levels
from tbench.proxies.extraction.records import (
    ExtractionManifest,
    ReplyRecord,
    TaskEntry,
    read_manifest,
    read_replies,
    write_result,
)
from tbench.proxies.extraction.syntax import BashSyntax
from tbench.rewards import (
    RewardFunction,
    combine,
    conciseness,
    execution_relevance,
    formatting,
    make_conciseness,
    make_execution_relevance,
)
from tbench.scores.statistics import RewardTable, TrialReward, mean_std, per_seed_scores, score_scored_only

LEVELS = ("strict", "extractable", "syntactic")
HEADLINE = "extractable"

Replies = Mapping[tuple[str, int], ReplyRecord]


@dataclass(frozen=True)
class Rewards:
    """The reward functions in use; their names are in the result."""

    relevance: RewardFunction = execution_relevance
    concise: RewardFunction = conciseness

    def by_name(self) -> dict[str, RewardFunction]:
        functions = (formatting, self.relevance, self.concise)
        return {function.__name__: function for function in (*functions, combine(*functions))}


def rewards_named(relevance: str, conciseness: str) -> Rewards:
    """The rewards in the variants of these names. Raises UsageError."""
    try:
        return Rewards(make_execution_relevance(cast(Any, relevance)), make_conciseness(cast(Any, conciseness)))
    except ValueError as error:
        raise UsageError(f"--relevance, --conciseness: {error}") from None


class Figure(Frozen):
    """A share of all tasks, or a mean reward over all tasks, for each seed and over seeds."""

    mean: float
    std: float | None
    """Sample std over seeds; None for a single one."""
    per_seed: tuple[float, ...]
    replies_only: float | None = None
    """The mean over the replies that there are; None without any."""


class ScoredReply(Frozen):
    """The reply of one task at one seed, scored."""

    task: str
    seed: int
    strict: bool
    extractable: bool
    syntactic: bool
    command: str | None
    problem: str
    cut: bool
    characters: int | None
    rewards: dict[str, float] | None
    """Reward by function; None where there is no reply."""


class Result(Frozen):
    """The figures of an extraction: its result.json."""

    schema_version: int = 1
    headline: str = HEADLINE
    model: str
    protocol: str
    prompt_hash: str
    sampling: dict[str, Any]
    rendering: dict[str, Any]
    tasks: int
    tasks_sha256: str
    """The digest of the tasks' names and hashes: figures of other tasks are not comparable."""
    seeds: tuple[int, ...]
    planned: int
    replies: int
    empty: int
    cut: int
    levels: dict[str, Figure]
    rewards: dict[str, Figure] | None
    """Figure by reward function; None for a protocol that the rewards are not about."""
    problems: dict[str, int]
    """Number of replies by kind of what makes them not extractable or not accepted."""
    errors: dict[str, int]
    """Number of missing replies by kind of error; `missing` were never asked for."""
    example_errors: dict[str, str] = Field(default={})
    bash: str
    rows: tuple[ScoredReply, ...]
    tbench_version: str = __version__


def score_directory(path: Path, rewards: Rewards) -> tuple[Result, list[str]]:
    """Score an extraction and write its result.json; gives the result, and `FILE:LINE: problem` for each bad line.

    Raises UsageError.
    """
    manifest = read_manifest(path)
    replies, problems = read_replies(path)
    try:
        protocol = load_protocol(manifest.protocol)
    except UnknownProtocol as error:
        raise UsageError(f"{path}: {error}") from None
    result = score(manifest, replies, protocol, BashSyntax(), rewards)
    write_result(path, result.model_dump(mode="json"))
    return result, problems


def score(
    manifest: ExtractionManifest,
    replies: Replies,
    protocol: ActionProtocol,
    bash: BashSyntax,
    rewards: Rewards | None = None,
) -> Result:
    """Score the replies of the plan; others do not count. The rewards are about thinking-bash alone."""
    functions = (rewards or Rewards()).by_name() if isinstance(protocol, ThinkingBash) else {}
    rows = [
        _row(task, seed, replies.get((task.name, seed)), protocol, bash, functions)
        for task in manifest.tasks
        for seed in manifest.seeds
    ]
    records = [replies.get((row.task, row.seed)) for row in rows]
    answered = [record for record in records if record is not None and record.content is not None]
    invalid = {task.name: task.invalid for task in manifest.tasks if task.invalid is not None}
    errors, examples = _errors(zip(rows, records, strict=True), invalid)
    return Result(
        model=manifest.model,
        protocol=manifest.protocol,
        prompt_hash=manifest.prompt_hash,
        sampling=manifest.sampling,
        rendering=manifest.rendering,
        tasks=len(manifest.tasks),
        tasks_sha256=_hash(manifest.tasks),
        seeds=manifest.seeds,
        planned=len(rows),
        replies=len(answered),
        empty=sum(row.problem == "empty_reply" for row in rows),
        cut=sum(record.cut for record in answered),
        levels={level: _figure(manifest, rows, _is(level)) for level in LEVELS},
        rewards={name: _figure(manifest, rows, _reward(name)) for name in functions} or None,
        problems=dict(Counter(row.problem.partition(":")[0] for row in rows if row.problem and _answered(row))),
        errors=errors,
        example_errors=examples,
        bash=bash.version,
        rows=tuple(rows),
    )


def _row(
    task: TaskEntry,
    seed: int,
    record: ReplyRecord | None,
    protocol: ActionProtocol,
    bash: BashSyntax,
    functions: Mapping[str, RewardFunction],
) -> ScoredReply:
    levels: Levels = read_levels(record, protocol, bash)
    content = record.content if record is not None else None
    rewards = None
    if functions and content is not None:
        rewards = {name: function([content], [task.instruction])[0] for name, function in functions.items()}
    return ScoredReply(
        task=task.name,
        seed=seed,
        strict=levels.strict,
        extractable=levels.extractable,
        syntactic=levels.syntactic,
        command=levels.command,
        problem=f"task_invalid: {task.invalid}" if task.invalid is not None else levels.problem,
        cut=record is not None and record.cut,
        characters=None if content is None else len(content),
        rewards=rewards,
    )


def _answered(row: ScoredReply) -> bool:
    return row.characters is not None


def _is(level: str) -> Callable[[ScoredReply], float | None]:
    return lambda row: float(getattr(row, level)) if _answered(row) else None


def _reward(name: str) -> Callable[[ScoredReply], float | None]:
    return lambda row: None if row.rewards is None else row.rewards[name]


def _figure(
    manifest: ExtractionManifest, rows: Sequence[ScoredReply], value: Callable[[ScoredReply], float | None]
) -> Figure:
    table = RewardTable.of(
        [TrialReward(row.task, row.seed, value(row)) for row in rows],
        [task.name for task in manifest.tasks],
        manifest.seeds,
    )
    per_seed = per_seed_scores(table)
    spread = mean_std(per_seed)
    return Figure(mean=spread.mean, std=spread.std, per_seed=per_seed, replies_only=score_scored_only(table))


def _errors(
    pairs: Iterable[tuple[ScoredReply, ReplyRecord | None]], invalid: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, str]]:
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for row, record in pairs:
        if row.task in invalid:
            words = f"task_invalid: {invalid[row.task]}"
        elif record is None:
            words = "missing: never asked for"
        elif record.content is None:
            words = record.error or "no_reply"
        else:
            continue
        kind = words.partition(":")[0]
        counts[kind] += 1
        examples.setdefault(kind, f"{row.task} seed {row.seed}: {words.partition(': ')[2]}")
    return dict(counts), examples


def _hash(tasks: Sequence[TaskEntry]) -> str:
    text = "".join(f"{task.name}\0{task.hash}\n" for task in tasks)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
