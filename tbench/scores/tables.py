"""Prints summaries and sheets of values: to a rich console, as Markdown, as CSV. In ASCII except for ±.

Texts from models, endpoints and tasks are printed without markup and control characters.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from io import StringIO
from itertools import zip_longest
from typing import Any

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column as TableColumn
from rich.table import Table
from rich.text import Text

from harness.trajectory import Usage
from tbench.reward import mean_text, reward_text
from tbench.scores.statistics import is_uneven
from tbench.scores.summary import (
    Cell,
    Counts,
    Score,
    Status,
    Summary,
    TaskRow,
    percent,
    range_text,
)
from tbench.text import counted, escape_invisible, plain

FLAGS_SHOWN = 10
_TASKS_SHOWN = 5
PIPED_WIDTH = 100
"""Minimum width of tables in a file or a pipe."""

HEADER_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
"""Box with a line under the header only."""
_MARKED_RULE = Box("    \n    \n -+ \n    \n    \n    \n    \n    \n", ascii=True)
"""Like `HEADER_RULE`, with a `+` where columns end."""

_STYLES = {
    Status.PASS: "green",
    Status.PARTIAL: "yellow",
    Status.FAIL: "red",
    Status.ERROR: "bold magenta",
    Status.MISSING: "dim",
}

LEGEND = "by seed: 1 solved, 0 failed, other numbers partial, ERR no verdict, - no result"
LATER_ATTEMPT_MARK = "'"
"""Suffix of results of attempts after the first."""
_PER_SEED_SHOWN = 20
_ENDS = {
    "step_limit": "out of steps",
    "token_limit": "out of tokens",
    "context_limit": "with a full context",
    "agent_timeout": "out of time",
    "format_limit": "without usable replies",
    "terminal_lost": "without a terminal",
    "disk_limit": "with too much written",
}
"""How trials ended early, in words; other outcomes are words already."""
_METHODS = {"bootstrap": "bootstrap", "korn-graubard": "Korn-Graubard"}


def render(summary: Summary, console: Console, *, brief: bool = False) -> None:
    """Print the summary. Score lines are never wrapped, so `grep '^score'` finds them at any width.

    If `brief`, it has the table, the score, its interval, the failures, and whatever makes the score doubtful.
    """
    print_table(lambda width: _task_table(summary, width), console)
    for line in _lines_below(summary, brief=brief):
        print_line(line, console)


def _lines_below(summary: Summary, *, brief: bool) -> Iterator[str]:
    """Yield the lines below the table of tasks."""
    yield from (*_legend(summary, brief=brief), "", *(() if brief else (_run_line(summary),)), *summary.score_lines)
    yield from _failure_lines(summary) if brief else ()
    yield from (*_conditions(summary), *_doubts(summary), *(() if brief else _detail_lines(summary)))
    yield from (*_flag_lines(summary), *_error_lines(summary))


def _legend(summary: Summary, *, brief: bool) -> Iterator[str]:
    """Yield the legend of the table; if `brief`, only if a cell is not the pass or failure of a first attempt."""
    cells = [cell for row in summary.tasks for cell in row.cells]
    has_later = any(cell.attempt > 1 for cell in cells)
    if not brief or has_later or any(cell.status not in (Status.PASS, Status.FAIL) for cell in cells):
        yield LEGEND + (f", {LATER_ATTEMPT_MARK} after another attempt" if has_later else "")


def print_line(line: str, console: Console) -> None:
    """Print one line without wrapping, with escapes for characters that the console cannot show."""
    printable = escape_invisible(line).encode(console.encoding, "backslashreplace").decode(console.encoding)
    console.print(Text(printable), soft_wrap=True)


def print_table(table_for: Callable[[int], Table], console: Console) -> None:
    """Print the table for the terminal's width, or at least PIPED_WIDTH in a file or a pipe."""
    if console.is_terminal:
        console.print(table_for(console.width))
        return
    # A console clips to its own width, which is 80 in a pipe: lay out on a wider one, then print the lines.
    width = max(console.width, PIPED_WIDTH)
    lines = _lines(table_for(width), Console(width=width, file=StringIO(), color_system=None, force_terminal=False))
    print_line("\n".join(lines), console)


def _lines(table: Table, console: Console) -> Iterator[str]:
    """Yield the lines of a table as rich would print them, but much faster: rich lays out only the widest cells."""
    rows: list[tuple[str, ...]] = list(zip(*(map(str, column.cells) for column in table.columns), strict=True))
    heads = (column.copy() for column in table.columns)
    sample = Table(*heads, box=_MARKED_RULE, show_edge=False, padding=(0, 1, 0, 0))
    for at in range(len(table.columns) if rows else 0):
        widest = max(rows, key=lambda row: cell_len(row[at]))
        sample.add_row(*map(Text, widest))
    # Rendered, not captured: capturing would clip wide lines.
    head = [line.rstrip() for line in "".join(segment.text for segment in console.render(sample)).splitlines()]
    rule = next(line for line in head if "-" in line and not line.strip("-+"))
    widths = [len(part) - 1 for part in rule.split("+")]
    if len(widths) < len(table.columns) or min(widths) < 1 or len(rule) > console.width:  # not enough room
        with console.capture() as captured:
            console.print(table)
        yield from (line.rstrip() for line in captured.get().splitlines())
        return
    yield from (*head[: head.index(rule)], "-" * len(rule))
    laid_out = list(zip(table.columns, widths, strict=True))
    for row in rows:
        folded = [
            [cell]
            if cell_len(cell) <= width
            else Text(cell).wrap(console, width, overflow=column.overflow, no_wrap=column.no_wrap)
            for cell, (column, width) in zip(row, laid_out, strict=True)
        ]
        for parts in zip_longest(*folded, fillvalue=""):
            cells = (_aligned(str(part), *each) for part, each in zip(parts, laid_out, strict=True))
            yield "  ".join(cells).rstrip()


def _aligned(cell: str, column: TableColumn, width: int) -> str:
    if column.justify == "right":
        cell = cell.rstrip()
        return " " * (width - cell_len(cell)) + cell
    return cell + " " * (width - cell_len(cell))


def _task_table(summary: Summary, width: int) -> Table:
    """Return the table of tasks, with outcomes if it is wide enough."""
    roomy = width >= PIPED_WIDTH
    table = Table(box=HEADER_RULE, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("task", overflow="fold", min_width=8, max_width=40)
    for name in ("mean", "solved"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("by seed", overflow="fold")
    for name in ("steps", "wall sec"):
        table.add_column(name, justify="right", no_wrap=True)
    if roomy:
        table.add_column("outcomes", overflow="fold")
    for row in summary.tasks:
        table.add_row(*_task_cells(row)[: len(table.columns)])
    return table


def _task_cells(row: TaskRow) -> tuple[Text, ...]:
    return (
        Text(plain(row.task)),
        Text("-" if row.mean_reward is None else mean_text(row.mean_reward)),
        Text(f"{row.solved}/{len(row.cells)}"),
        Text(" ").join(Text(_token(cell), style=_STYLES[cell.status]) for cell in row.cells),
        Text(_number(row.mean_steps, 1)),
        Text(_number(row.mean_wall_sec, 1)),
        Text(_counted(row.outcomes)),
    )


def _token(cell: Cell) -> str:
    if cell.status is Status.MISSING:
        return "-"
    result = "ERR" if cell.reward is None else reward_text(cell.reward)
    return result + LATER_ATTEMPT_MARK * (cell.attempt > 1)


def _failure_lines(summary: Summary) -> Iterator[str]:
    """Yield the interval of the score, and how the trials that were not solved ended."""
    score = summary.score
    if score is not None and score.interval_95 is not None:
        unscored = "; unscored = 0" if summary.counts.scored < summary.counts.planned else ""
        yield f"95 % interval {range_text(*score.interval_95)}, for other tasks of the same kind{unscored}"
    failed = [cell for row in summary.tasks for cell in row.cells if cell.status in (Status.FAIL, Status.PARTIAL)]
    if failed:
        ends = Counter(_ENDS.get(cell.outcome or "", cell.outcome or "unknown") for cell in failed)
        words = ", ".join(f"{count} {plain(end)}" for end, count in ends.most_common())
        yield f"not solved: {len(failed)} of {counted(summary.counts.scored, 'trial')} with a verdict ({words})"


def _conditions(summary: Summary) -> Iterator[str]:
    """Yield metrics, cost, dataset, overrides of the tasks, and limits that were not in force."""
    yield from (*summary.metric_lines, *summary.cost_lines, *summary.dataset_lines)
    if summary.overrides:
        yield f"overridden: {', '.join(summary.overrides)}"
    for limits in summary.lacking_limits:
        yield f"limits: {limits}: trials may have used more than their tasks allow"


def _doubts(summary: Summary) -> Iterator[str]:
    """Yield a note for each reason to doubt the score."""
    yield from _unscored(summary)
    if summary.repeated:
        shown = "; ".join(map(plain, summary.repeated[:_TASKS_SHOWN])) + (
            "; ..." * (len(summary.repeated) > _TASKS_SHOWN)
        )
        yield f"note: more than one final result, the last one counts: {shown}"
    yield from _notes(summary.counts)
    if summary.tags:
        yield f"note: {summary.tags_line}"
    if summary.pressure is not None:
        yield f"note: {summary.pressure.words}"
    for note in summary.reply_notes:
        yield f"note: {plain(note)}"


def _detail_lines(summary: Summary) -> Iterator[str]:
    score, counts = summary.score, summary.counts
    if score is not None:
        unscored = "; unscored = 0" if counts.scored < counts.planned else ""
        yield f"solved {counts.solved}/{counts.planned} trials{_pass_rates(score)}{unscored}"
        yield from _over_seeds(score, summary)
        yield f"{_over_tasks(score, len(summary.tasks))}{unscored}"
    if counts.other_attempts:
        yield f"earlier attempts, not counted: {counts.other_attempts}"
    if summary.outcomes:
        yield f"outcomes: {_counted(summary.outcomes)}"
    yield f"tokens: {_token_text(summary.usage)}"
    if summary.replies_from:
        yield f"replies: {', '.join(f'{count:,} from {plain(url)}' for url, count in summary.replies_from.items())}"
    if (total := summary.time.total_sec) > 0:
        parts = (f"{name} {sec:,.1f} s ({100 * sec / total:.0f} %)" for name, sec in summary.time.parts().items())
        yield f"time: {', '.join(parts)}; not included: queue {summary.time.queue_sec:,.1f} s"


def _token_text(usage: Usage) -> str:
    if not usage.prompt_tokens + usage.completion_tokens:
        return "not counted"
    cached = ""
    if usage.cached_tokens is not None:
        share = f", {100 * usage.cached_tokens / usage.prompt_tokens:.0f} %" if usage.prompt_tokens else ""
        cached = f" ({usage.cached_tokens:,} cached{share})"
    counts = f"{usage.prompt_tokens:,} prompt{cached}, {usage.completion_tokens:,} completion"
    return f"at least {counts}; replies not counted: {usage.uncounted:,}" if usage.uncounted else counts


def _run_line(summary: Summary) -> str:
    """Return one line with model, agent, start and size of the run."""
    known = [f"model {summary.model}" if summary.model else "", f"agent {summary.agent}" if summary.agent else ""]
    if summary.started_at is not None:
        known.append(f"begun {summary.started_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC")
    size = f"{counted(len(summary.tasks), 'task')}, {counted(len(summary.seeds), 'seed')}"
    return ", ".join([*filter(None, known), size])


def _pass_rates(score: Score) -> str:
    """Return pass@k and pass^k for k = 1, 2, 4 and so on, and for all seeds; empty for one seed."""
    most = max(score.pass_at_k)
    ks = sorted({most} | {1 << power for power in range(most.bit_length()) if 1 << power <= most})
    if most == 1:
        return ""
    at = ", ".join(f"pass@{k} {percent(score.pass_at_k[k])}" for k in ks)
    hat = ", ".join(f"pass^{k} {percent(score.pass_hat_k[k])}" for k in ks[1:])
    return f"; {at}, {hat} %"


def _over_seeds(score: Score, summary: Summary) -> Iterator[str]:
    """Yield the score of each seed, with a mark if verdicts are missing."""
    if score.std is None or score.expected_std is None:
        return
    marks = ["" if scored == len(summary.tasks) else "*" for scored in score.scored_per_seed]
    shown = [f"{percent(each)}{mark}" for each, mark in zip(score.per_seed, marks, strict=True)][:_PER_SEED_SHOWN]
    more = " ..." if len(marks) > _PER_SEED_SHOWN else ""
    meaning = " (* some trials have no verdict)" if any(marks) else ""
    yield (
        f"over seeds: {' '.join(shown)}{more} %{meaning}; "
        f"sample std expected if seeds are paired at random {percent(score.expected_std)} %"
    )


def _over_tasks(score: Score, tasks: int) -> str:
    if score.se_over_tasks is None:
        return "over tasks: no interval for a single task"
    error = f"over tasks: standard error {percent(score.se_over_tasks)} %"
    if score.interval_95 is None or score.interval_method is None:
        return f"{error}, no interval: {tasks} tasks are few, and rewards are not within 0 to 1"
    return f"{error}, 95 % interval {range_text(*score.interval_95)} ({_METHODS[score.interval_method]})"


def _unscored(summary: Summary) -> Iterator[str]:
    """Yield notes if trials without a verdict are concentrated at one seed (an outage) or on tasks that cannot run."""
    if summary.score is None or summary.counts.scored == summary.counts.planned:
        return
    unscored = [len(summary.tasks) - scored for scored in summary.score.scored_per_seed]
    total, worst = sum(unscored), max(unscored)
    if is_uneven(worst, total, len(unscored)):
        seed = summary.seeds[unscored.index(worst)]
        yield f"note: unevenly spread: {worst} of {counted(total, 'unscored trial')} at seed {seed}"
    never = [plain(row.task) for row in summary.tasks if not row.scored]
    if never:
        shown = ", ".join(never[:_TASKS_SHOWN]) + (", ..." if len(never) > _TASKS_SHOWN else "")
        yield f"note: no verdict at any seed: {counted(len(never), 'task')} ({shown})"


def _notes(counts: Counts) -> Iterator[str]:
    if counts.unplanned:
        yield f"note: results outside the plan, not counted: {counts.unplanned}"
    if counts.human_touched:
        yield f"note: trials in which a human typed: {counts.human_touched}"
    if went_on := counts.went_on:
        replayed = f", {went_on['replayed']} by replay" if went_on["replayed"] else ""
        yield f"note: trials that went on after a cut: {went_on['trials']}{replayed}"
    if counts.unconfirmed:
        yield f"note: passes that no fresh container has confirmed: {counts.unconfirmed} (--verify both asks one)"
    if counts.repaired:
        yield f"note: containers repaired before the tests: {counts.repaired}"
    if counts.regraded:
        yield f"note: verifiers run again: {counts.regraded}"
    if counts.remarked:
        yield f"note: zeros with a failed tool and no sign of a test in the output: {counts.remarked}"


def _flag_lines(summary: Summary) -> Iterator[str]:
    if not summary.flags:
        return
    counts = summary.counts
    yield ""
    weak = f", {counts.weakly_flagged} more with weak ones" if counts.weakly_flagged else ""
    yield f"signs of tampering (scored as they are): {counts.flagged} trials{weak}"
    for flag in summary.flags[:FLAGS_SHOWN]:
        more = f" (and {len(flag.tamper) - 1} more)" if len(flag.tamper) > 1 else ""
        reward = "no verdict" if flag.reward is None else f"reward {reward_text(flag.reward)}"
        yield f"  {plain(flag.trial)}, {reward}: {plain(flag.tamper[0], 160)}{more}"
    if len(summary.flags) > FLAGS_SHOWN:
        yield f"  ... and {len(summary.flags) - FLAGS_SHOWN} more trials"


def _error_lines(summary: Summary) -> Iterator[str]:
    if not summary.errors:
        return
    yield ""
    yield "errors (no verdict; not scored as 0 except where a score line says unscored = 0):"
    for group in summary.errors:
        stage, blame = group.stage or "unknown", group.blame or "unknown"
        about = f"stage {stage}, blame {blame}, {group.retryable} retryable"
        yield f"  {group.count} x {plain(group.type)} ({about})"
        yield f"      {plain(group.example_trial)}: {plain(group.example_message)}"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{plain(name)}={count}" for name, count in counts.items())


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


# Sheets of values, shown on a terminal, as Markdown or as CSV.

_MIN_TEXT_WIDTH = 12


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a sheet."""

    name: str
    """Name in CSV and key of the values."""
    header: str | None
    """Header in tables; None for a column of CSV only."""
    format: Callable[[Any], str] = str
    is_text: bool = False
    """Whether the column is left-aligned and may be wrapped."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table, row by row."""

    columns: tuple[Column, ...]
    rows: Sequence[Mapping[str, Any]]
    """Values by column name; None is shown as `-`, and is empty in CSV."""

    @property
    def _visible(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.header is not None)

    def print(self, console: Console) -> None:
        """Print the sheet as a table."""
        print_table(self._table, console)

    def as_markdown(self) -> str:
        lines = [
            f"| {' | '.join(escaped(column.header or '') for column in self._visible)} |",
            f"|{'|'.join('---' if column.is_text else '---:' for column in self._visible)}|",
            *(f"| {' | '.join(escaped(text) for text in self._shown(row))} |" for row in self.rows),
        ]
        return "\n".join(lines) + "\n"

    def as_csv(self) -> str:
        """Return the unformatted values as CSV."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(column.name for column in self.columns)
        writer.writerows([row[column.name] for column in self.columns] for row in self.rows)
        return out.getvalue()

    def _table(self, width: int) -> Table:
        table = Table(box=HEADER_RULE, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for column in self._visible:
            if column.is_text:
                longest = max((len(str(row[column.name])) for row in self.rows), default=0)
                table.add_column(column.header or "", overflow="fold", min_width=min(longest, _MIN_TEXT_WIDTH))
            else:
                table.add_column(column.header or "", justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(Text(plain(text)) for text in self._shown(row)))
        return table

    def _shown(self, row: Mapping[str, Any]) -> list[str]:
        values = ((column, row[column.name]) for column in self._visible)
        return ["-" if value is None else column.format(value) for column, value in values]


def escaped(text: str) -> str:
    """Escape text for one line in a cell or list item of Markdown."""
    return plain(text).replace("\\", "\\\\").replace("|", "\\|")
