"""The trials of a run: the grid of tasks and seeds, the worst task first, and the list of all trials below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from reports.charts import BarPart, stacked_bar
from reports.look import SIGNS, seconds, sign_of
from reports.run.effort import task_bars
from reports.run.links import MANY_TRIALS, FileLink, RunLinks
from tbench.results import TaskStepResult
from tbench.scores.summary import Cell, Status, Summary, TaskRow
from tbench.text import counted

# The trials of a run, one by one: a cell of the grid, and a line in the list of all.


@dataclass(frozen=True, slots=True)
class StatusCount:
    """How many trials became of this."""

    status: Status
    symbol: str
    count: int


@dataclass(frozen=True, slots=True)
class TrialCell:
    """A trial as the grid shows it."""

    status: Status
    symbol: str
    title: str
    href: str | None
    """Where its trial is shown; None for a trial without a result, or without anything more to show."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step of a task in the line of its trial."""

    words: str
    links: tuple[FileLink, ...]


@dataclass(frozen=True, slots=True)
class TrialLine:
    """A trial in the list of all."""

    anchor: str
    seed: int
    status: Status
    symbol: str
    facts: tuple[str, ...]
    href: str | None
    """Its page in a site."""
    links: tuple[FileLink, ...]
    task_steps: tuple[StepLine, ...]
    """A line for each step of the task; empty for a task without steps."""


def trial_cell(row: TaskRow, number: int, cell: Cell, links: RunLinks, *, is_listed: bool) -> TrialCell:
    """The cell of a trial of the task that has this number in the plan."""
    if cell.status is Status.MISSING:
        return TrialCell(cell.status, SIGNS[cell.status], f"seed {cell.seed}: no result", None)
    title = f"seed {cell.seed}: {', '.join(cell_facts(cell))}"
    href = trial_link(row.task, number, cell, links, is_listed=is_listed)
    return TrialCell(cell.status, sign_of(cell.status, cell.reward), title, href)


def trial_link(task: str, number: int, cell: Cell, links: RunLinks, *, is_listed: bool) -> str | None:
    """Where a trial is shown: its page, else its line in the list, else a file of it."""
    return f"#{anchor(number, cell)}" if is_listed and not links.has_pages else links.trial(task, cell)


def trial_line(row: TaskRow, number: int, cell: Cell, links: RunLinks) -> TrialLine:
    """The line of a trial that has a result."""
    steps = (
        StepLine(step_words(at, step), tuple(links.files(row.task, cell, step.name)))
        for at, step in enumerate(cell.task_steps, start=1)
    )
    return TrialLine(
        anchor=anchor(number, cell),
        seed=cell.seed,
        status=cell.status,
        symbol=SIGNS[cell.status],
        facts=tuple(cell_facts(cell)),
        href=links.trial(row.task, cell) if links.has_pages else None,
        links=tuple(links.files(row.task, cell)),
        task_steps=tuple(steps),
    )


def anchor(number: int, cell: Cell) -> str:
    """The place of a trial in the list."""
    return f"trial-{number}-{cell.seed}"


def cell_facts(cell: Cell) -> Iterator[str]:
    """What became of a trial, in a few words each."""
    yield _status_words(cell)
    if cell.reward not in (None, 1.0):
        yield f"reward {cell.reward:g}"
    if cell.reward_all_steps not in (None, cell.reward):
        yield f"{cell.reward_all_steps:g} with 0 for task steps that were never begun"
    if cell.outcome is not None:
        yield cell.outcome
    yield counted(cell.steps, "step")
    yield seconds(cell.wall_sec)
    if cell.attempt > 1:
        yield f"attempt {cell.attempt}"
    if cell.human_touched:
        yield "a human typed in it"


def step_words(number: int, step: TaskStepResult) -> str:
    """What became of a step of a task, in a line."""
    if not step.begun:
        return f"step {number} {step.name}: never begun"
    words = [f"step {number} {step.name}: {'no verdict' if step.reward is None else f'reward {step.reward:g}'}"]
    if step.outcome is not None:
        words.append(step.outcome)
    if step.error is not None:
        words.append(f"error {step.error.type}")
    words += [counted(step.steps, "step"), seconds(step.timings.wall_sec)]
    return ", ".join([*words, *filter(None, [step.stopped])])


def _status_words(cell: Cell) -> str:
    return f"error, no verdict: {cell.error}" if cell.status is Status.ERROR else str(cell.status)


MOST_CELLS = 20
"""Seeds above which a row shows a bar, and its cells only when it is opened."""
_MOST_BESIDE_BARS = 12
"""Seeds above which their cells leave no room for bars of time."""


@dataclass(frozen=True, slots=True)
class TaskCells:
    """A task as the grid shows it."""

    task: str
    href: str | None
    """The task's page."""
    cells: tuple[TrialCell, ...]
    counts: tuple[StatusCount, ...]
    """Trials by what became of them, those that there are."""
    bar: Markup | None
    """What became of its trials, where they are too many to be shown one by one."""
    solved: int
    mean: float | None
    mean_sec: float | None
    time_bar: Markup | None
    """What its time went into; None where that is not known or tasks are too many."""
    kinds: str
    """Words that the choice of tasks goes by."""


@dataclass(frozen=True, slots=True)
class TaskTrials:
    """The trials of a task that have a result."""

    task: str
    lines: tuple[TrialLine, ...]


@dataclass(frozen=True, slots=True)
class TrialGrid:
    """All trials of a run."""

    seeds: tuple[int, ...]
    """Those that stand above the cells; empty where there are too many."""
    rows: tuple[TaskCells, ...]
    has_partial: bool
    """Whether some reward is neither 0 nor 1, so that a mean says more than how many are solved."""
    has_bars: bool
    trials: tuple[TaskTrials, ...]
    listed: int
    """Trials in the list."""
    is_listed: bool
    """Whether there is a list: not where trials are very many."""


def grid_of(summary: Summary, links: RunLinks) -> TrialGrid:
    """The grid and the list of a run's trials."""
    numbers = {row.task: number for number, row in enumerate(summary.tasks)}
    bars = task_bars(summary) if not _MOST_BESIDE_BARS < len(summary.seeds) <= MOST_CELLS else {}
    ordered = sorted(summary.tasks, key=_worst_first)
    is_listed = summary.counts.planned <= MANY_TRIALS
    trials = tuple(_task_trials(row, numbers[row.task], links) for row in ordered if is_listed)
    is_narrow = len(summary.seeds) <= MOST_CELLS and all(0 <= seed <= 99 for seed in summary.seeds)
    return TrialGrid(
        seeds=summary.seeds if is_narrow else (),
        rows=tuple(
            _task_cells(row, numbers[row.task], links, bars.get(row.task), is_listed=is_listed) for row in ordered
        ),
        has_bars=bool(bars),
        has_partial=any(cell.reward not in (None, 0.0, 1.0) for row in summary.tasks for cell in row.cells),
        trials=tuple(each for each in trials if each.lines),
        listed=sum(len(each.lines) for each in trials),
        is_listed=is_listed,
    )


def status_bar(counts: Counter[Status], label: str) -> Markup:
    """Trials by what became of them, as a bar."""
    parts = [BarPart(f"s-{status}", counts[status], f"{counts[status]:,} {status}") for status in Status]
    return stacked_bar([part for part in parts if part.amount], label=label)


def count_words(counts: Counter[Status]) -> str:
    """Trials by what became of them, in words."""
    return ", ".join(f"{counts[status]:,} {status}" for status in Status if counts[status])


def _worst_first(row: TaskRow) -> tuple[bool, float, int, str]:
    """Tasks of which nothing is known yet come last."""
    is_unknown = all(cell.status is Status.MISSING for cell in row.cells)
    return is_unknown, row.mean_reward or 0.0, row.scored, row.task


def _task_cells(row: TaskRow, number: int, links: RunLinks, time_bar: Markup | None, *, is_listed: bool) -> TaskCells:
    counts = Counter(cell.status for cell in row.cells)
    shown = (StatusCount(status, symbol, counts[status]) for status, symbol in SIGNS.items())
    is_wide = len(row.cells) > MOST_CELLS
    return TaskCells(
        task=row.task,
        href=links.task(row.task),
        cells=tuple(trial_cell(row, number, cell, links, is_listed=is_listed) for cell in row.cells),
        counts=tuple(each for each in shown if each.count),
        bar=status_bar(counts, count_words(counts)) if is_wide else None,
        solved=row.solved,
        mean=row.mean_reward,
        mean_sec=row.mean_wall_sec,
        time_bar=time_bar,
        kinds=" ".join(_kinds(row, counts)),
    )


def _kinds(row: TaskRow, counts: Counter[Status]) -> Iterator[str]:
    """The choices that a task belongs to."""
    if row.solved < len(row.cells):
        yield "unsolved"
    if 0 < row.solved < row.scored:
        yield "mixed"
    if counts[Status.ERROR]:
        yield "errors"


def _task_trials(row: TaskRow, number: int, links: RunLinks) -> TaskTrials:
    ended = (cell for cell in row.cells if cell.status is not Status.MISSING)
    return TaskTrials(row.task, tuple(trial_line(row, number, cell, links) for cell in ended))
