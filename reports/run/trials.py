"""The trials of a run, one by one: a cell of the grid, and a line in the list of all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reports.look import seconds
from reports.run.links import FileLink, RunLinks
from reports.seed_cells import SIGNS, sign_of
from tbench.results import TaskStepResult
from tbench.scores.summary import Cell, Status, TaskRow
from tbench.text import counted


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
