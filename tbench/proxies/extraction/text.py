"""An extraction's result as lines for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tbench.proxies.extraction.score import LEVELS, Figure, Result, ScoredReply
from tbench.text import plain

_TASK, _COMMAND = 40, 70
"""Most characters of a task's name and of a command."""
_LABELS = {"strict": "", "extractable": "headline; ", "syntactic": ""}


def render(result: Result) -> Iterator[str]:
    """The lines of a result: the table of tasks, the three levels, the rewards, what is missing."""
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
        cells.append((plain(task, _TASK), *counts, _shown(rows)))
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    for name, *numbers, said in cells:
        aligned = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
        yield "  ".join((name.ljust(widths[0]), *aligned, said)).rstrip()


def _shown(rows: Sequence[ScoredReply]) -> str:
    command = next((row.command for row in rows if row.command is not None), None)
    if command is not None:
        return plain(command.strip().replace("\n", " \u2424 "), _COMMAND)
    return f"- {plain(rows[0].problem, _COMMAND)}"


def _level(result: Result, level: str) -> str:
    figure = result.levels[level]
    spread = "" if figure.std is None else f" ± {100 * figure.std:.2f}"
    said = "no std for a single seed" if figure.std is None else f"sample std over {len(result.seeds)} seeds"
    whole = f"{100 * figure.mean:.2f}{spread} % of all {result.tasks} tasks"
    return f"{whole} ({_LABELS[level]}{said}; replies {result.replies}/{result.planned}{_of_replies(result, figure)})"


def _of_replies(result: Result, figure: Figure) -> str:
    if result.replies == result.planned or figure.replies_only is None:
        return ""
    return f", of these {100 * figure.replies_only:.2f} %"


def _rewards(result: Result) -> Iterator[str]:
    if result.rewards is None:
        yield f"rewards: none, they are about thinking-bash and not about {plain(result.protocol)}"
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
        yield f"note: replies cut at their token limit: {result.cut} (read as they are)"
    if result.problems:
        said = ", ".join(f"{plain(kind)}={count}" for kind, count in result.problems.items())
        yield f"replies that fell short: {said}"
    if result.errors:
        yield "no reply (counted as failed):"
        for kind, count in result.errors.items():
            yield f"  {count} x {plain(kind)}"
            yield f"      {plain(result.example_errors[kind])}"
