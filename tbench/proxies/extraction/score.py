"""Scores an extraction from its stored replies: three levels and three rewards over all tasks.

Missing and empty replies and invalid tasks count as failed, with reward 0. Every figure is a mean over tasks for each
seed, then mean and sample std over seeds.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from harness.errors import FormatError
from harness.protocols import UnknownProtocol, load_protocol
from harness.protocols.base import Action, ActionProtocol, Command
from harness.protocols.thinking_bash import ThinkingBash
from harness.trajectory import Frozen
from tbench import __version__
from tbench.errors import UsageError
from tbench.files import writable, write_json
from tbench.proxies.extraction.records import (
    RESULT_NAME,
    ExtractionManifest,
    ReplyRecord,
    TaskEntry,
    read_manifest,
    read_replies,
)
from tbench.rewards import (
    RewardFunction,
    combine,
    conciseness,
    execution_relevance,
    formatting,
    has_strict_form,
    make_conciseness,
    make_execution_relevance,
)
from tbench.scores.statistics import RewardTable, mean_std, per_seed_scores, score_scored_only
from tbench.text import one_line, plain

# `bash -n` only parses. It gets the command on stdin, with an empty environment (no BASH_ENV, no exported functions or
# options), without start-up files, in `/`, with limits of length and time.

MAX_COMMAND_BYTES = 200_000
"""Longer commands are not accepted."""
_ARGUMENTS = ("--norc", "--noprofile", "-n", "-s")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True)
class SyntaxCheck:
    """Whether bash accepts a command, and its message."""

    accepted: bool
    complaint: str = ""
    """First line of bash's output, or why it did not run."""


class BashSyntax:
    """Checks commands with this machine's `bash -n`, and caches the results."""

    def __init__(self, bash: str | None = None, *, timeout_sec: float = 5.0) -> None:
        """Find bash in PATH, unless one is given. Raises UsageError if there is none."""
        found = bash or shutil.which("bash")
        if found is None:
            raise UsageError("bash: not found on this machine; install it, as the syntactic level needs bash -n")
        self._bash = found
        self._timeout_sec = timeout_sec
        self._known: dict[str, SyntaxCheck] = {}
        self.version = self._version()

    def check(self, command: str) -> SyntaxCheck:
        """Whether `bash -n` exits with 0."""
        if command not in self._known:
            self._known[command] = self._ask(command)
        return self._known[command]

    def _ask(self, command: str) -> SyntaxCheck:
        data = command.encode("utf-8", "replace") + b"\n"
        if len(data) > MAX_COMMAND_BYTES:
            return SyntaxCheck(False, f"longer than {MAX_COMMAND_BYTES} bytes")
        if b"\0" in data:
            return SyntaxCheck(False, "a NUL character")
        try:
            done = self._run(*_ARGUMENTS, stdin=data)
        except subprocess.TimeoutExpired:
            return SyntaxCheck(False, f"bash -n took longer than {self._timeout_sec:g} s")
        lines = done.stderr[:10_000].decode("utf-8", "replace").splitlines()
        if done.returncode == 0:
            return SyntaxCheck(True, one_line(lines[0], 200) if lines else "")
        return SyntaxCheck(False, one_line(lines[0], 200) if lines else f"bash -n ended with {done.returncode}")

    def _version(self) -> str:
        try:
            lines = self._run("--version").stdout.decode("utf-8", "replace").splitlines()
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{self._bash}: cannot be started: {error}") from None
        return one_line(lines[0]) if lines else "unknown"

    def _run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self._bash, *arguments],
            input=stdin,
            capture_output=True,
            timeout=self._timeout_sec,
            check=False,
            cwd="/",
            env=_ENVIRONMENT,
        )


@dataclass(frozen=True)
class Levels:
    """The levels of a reply, which are independent: a strict reply with a blank command is not extractable."""

    strict: bool = False
    extractable: bool = False
    syntactic: bool = False
    command: str | None = None
    """The text that would be run or typed."""
    problem: str = ""
    """Why the reply is not extractable, or bash's message on its command: `kind` or `kind: message`."""


def read_levels(record: ReplyRecord | None, protocol: ActionProtocol, bash: BashSyntax) -> Levels:
    """Determine the levels of a reply. Errors, missing and empty replies fail all three.

    Strict: for thinking-bash, the raw reply matches the pattern of the formatting reward; for other protocols, it is
    parsed without a warning. Extractable: it contains a command or keystrokes that are not blank. Syntactic: bash
    accepts them (for keystrokes the typed text, without keys).
    """
    if record is None or record.content is None:
        return Levels(problem="no_reply" if record is None else record.error or "no_reply")
    if not record.content.strip() and not record.tool_calls:
        return Levels(problem="empty_reply")
    is_thinking_bash = isinstance(protocol, ThinkingBash)
    strict = is_thinking_bash and has_strict_form(record.content)
    try:
        parsed = protocol.parse(record.content, record.tool_calls)
    except FormatError as error:
        return Levels(strict=strict, problem=error.kind)
    command = "".join(map(_typed_text, parsed.actions)).rstrip("\n")
    if not is_thinking_bash:
        strict = not parsed.warnings
    if not command.strip():
        return Levels(strict=strict, problem="no_command")
    syntax = bash.check(command)
    problem = "" if syntax.accepted else f"syntax: {syntax.complaint}"
    return Levels(strict, True, syntax.accepted, command, problem)


def _typed_text(action: Action) -> str:
    if isinstance(action, Command):
        return f"{action.command}\n"
    return action.keystrokes if action.key is None else ""


LEVELS = ("strict", "extractable", "syntactic")
HEADLINE = "extractable"

Replies = Mapping[tuple[str, int], ReplyRecord]


@dataclass(frozen=True)
class Rewards:
    """The reward functions in use; the result contains their names."""

    relevance: RewardFunction = execution_relevance
    concise: RewardFunction = conciseness

    def by_name(self) -> dict[str, RewardFunction]:
        functions = (formatting, self.relevance, self.concise)
        return {function.__name__: function for function in (*functions, combine(*functions))}


def make_rewards(relevance: str, conciseness: str) -> Rewards:
    """Return the rewards in the named variants. Raises UsageError."""
    try:
        return Rewards(make_execution_relevance(cast(Any, relevance)), make_conciseness(cast(Any, conciseness)))
    except ValueError as error:
        raise UsageError(f"--relevance, --conciseness: {error}") from None


class Figure(Frozen):
    """A fraction or mean reward of all tasks, for each seed and over seeds."""

    mean: float
    std: float | None
    """Sample std over seeds; None for a single one."""
    per_seed: tuple[float, ...]
    replies_only: float | None = None
    """Mean over existing replies only; None without any."""


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
    """Reward by function; None without a reply, and for protocols without rewards."""


class Result(Frozen):
    """The figures of an extraction, stored as result.json."""

    schema_version: int = 1
    headline: str = HEADLINE
    model: str
    protocol: str
    prompt_hash: str
    sampling: dict[str, Any]
    rendering: dict[str, Any]
    tasks: int
    tasks_sha256: str
    """Digest of the tasks' names and hashes; only figures with the same digest are comparable."""
    seeds: tuple[int, ...]
    planned: int
    replies: int
    empty: int
    cut: int
    levels: dict[str, Figure]
    rewards: dict[str, Figure] | None
    """Figure by reward function; None for protocols without rewards."""
    problems: dict[str, int]
    """Number of replies that are not extractable or not accepted by bash, by kind of problem."""
    errors: dict[str, int]
    """Number of missing replies by kind of error; `missing` were never requested."""
    example_errors: dict[str, str] = Field(default={})
    bash: str
    rows: tuple[ScoredReply, ...]
    tbench_version: str = __version__


def score_directory(path: Path, rewards: Rewards) -> tuple[Result, list[str]]:
    """Score an extraction and write its result.json; return it, and `FILE:LINE: problem` for each bad line.

    Raises UsageError.
    """
    manifest = read_manifest(path)
    replies, problems = read_replies(path)
    try:
        protocol = load_protocol(manifest.protocol)
    except UnknownProtocol as error:
        raise UsageError(f"{path}: {error}") from None
    result = score(manifest, replies, protocol, BashSyntax(), rewards)
    with writable(path / RESULT_NAME):
        write_json(path / RESULT_NAME, result.model_dump(mode="json"))
    return result, problems


def score(
    manifest: ExtractionManifest,
    replies: Replies,
    protocol: ActionProtocol,
    bash: BashSyntax,
    rewards: Rewards | None = None,
) -> Result:
    """Score the planned replies; others do not count. Rewards are computed for thinking-bash only."""
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
        levels={
            level: _figure(manifest, rows, [float(getattr(row, level)) if _is_answered(row) else None for row in rows])
            for level in LEVELS
        },
        rewards={
            name: _figure(manifest, rows, [None if row.rewards is None else row.rewards[name] for row in rows])
            for name in functions
        }
        or None,
        problems=dict(Counter(row.problem.partition(":")[0] for row in rows if row.problem and _is_answered(row))),
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


def _is_answered(row: ScoredReply) -> bool:
    return row.characters is not None


def _figure(manifest: ExtractionManifest, rows: Sequence[ScoredReply], values: Sequence[float | None]) -> Figure:
    verdicts = [(row.task, row.seed, value) for row, value in zip(rows, values, strict=True)]
    table = RewardTable.from_verdicts(verdicts, [task.name for task in manifest.tasks], manifest.seeds)
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
            message = f"task_invalid: {invalid[row.task]}"
        elif record is None:
            message = "missing: never requested"
        elif record.content is None:
            message = record.error or "no_reply"
        else:
            continue
        kind = message.partition(":")[0]
        counts[kind] += 1
        examples.setdefault(kind, f"{row.task} seed {row.seed}: {message.partition(': ')[2]}")
    return dict(counts), examples


def _hash(tasks: Sequence[TaskEntry]) -> str:
    text = "".join(f"{task.name}\0{task.hash}\n" for task in tasks)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


_TASK, _COMMAND = 40, 70
"""Maximum number of characters shown of a task's name and of a command."""
_LABELS = {"strict": "", "extractable": "headline; ", "syntactic": ""}


def render(result: Result) -> Iterator[str]:
    """Yield the lines of a result: table of tasks, levels, rewards, problems, missing replies."""
    yield from _table(result)
    yield ""
    for level in LEVELS:
        yield f"{level:<12}{_level(result, level)}"
    yield from _rewards(result)
    yield from _notes(result)


def _table(result: Result) -> Iterator[str]:
    by_task: dict[str, list[ScoredReply]] = {}
    for row in result.rows:
        by_task.setdefault(row.task, []).append(row)
    cells: list[tuple[str, ...]] = [("task", *LEVELS, "command (of the first seed that has one)")]
    for task, rows in by_task.items():
        counts = [f"{sum(getattr(row, level) for row in rows)}/{len(rows)}" for level in LEVELS]
        command = next((row.command for row in rows if row.command is not None), None)
        shown = f"- {plain(rows[0].problem, _COMMAND)}"
        if command is not None:
            shown = plain(command.strip().replace("\n", " \u2424 "), _COMMAND)
        cells.append((plain(task, _TASK), *counts, shown))
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    for name, *numbers, command in cells:
        aligned = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
        yield "  ".join((name.ljust(widths[0]), *aligned, command)).rstrip()


def _level(result: Result, level: str) -> str:
    figure = result.levels[level]
    spread = "" if figure.std is None else f" ± {100 * figure.std:.2f}"
    kind = "no std for a single seed" if figure.std is None else f"sample std over {len(result.seeds)} seeds"
    whole = f"{100 * figure.mean:.2f}{spread} % of all {result.tasks} tasks"
    replies = f"replies {result.replies}/{result.planned}"
    if result.replies != result.planned and figure.replies_only is not None:
        replies += f", of these {100 * figure.replies_only:.2f} %"
    return f"{whole} ({_LABELS[level]}{kind}; {replies})"


def _rewards(result: Result) -> Iterator[str]:
    if result.rewards is None:
        yield f"rewards: none, as they are defined for thinking-bash only, not for {plain(result.protocol)}"
        return
    yield "rewards, mean over all tasks (no reply: 0):"
    for name, figure in result.rewards.items():
        spread = "" if figure.std is None else f" ± {figure.std:.3f}"
        only = ""
        if result.replies != result.planned and figure.replies_only is not None:
            only = f" ({figure.replies_only:.3f} over the replies)"
        yield f"  {plain(name)} {figure.mean:.3f}{spread}{only}"


def _notes(result: Result) -> Iterator[str]:
    if result.cut:
        yield f"note: replies cut at their token limit: {result.cut} (scored as they are)"
    if result.problems:
        kinds = ", ".join(f"{plain(kind)}={count}" for kind, count in result.problems.items())
        yield f"replies with a problem: {kinds}"
    if result.errors:
        yield "no reply (counted as failed):"
        for kind, count in result.errors.items():
            yield f"  {count} x {plain(kind)}"
            yield f"      {plain(result.example_errors[kind])}"
