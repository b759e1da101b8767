"""The trials of a run: the grid of tasks and seeds, worst task first, and the list of all trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from markupsafe import Markup

from reports.charts import status_bar
from reports.page_frame import seconds
from reports.run.effort import task_bars, task_means
from reports.run.links import MANY_TRIALS
from tbench.results import TaskStepResult, TrialResult
from tbench.scores.cost import gpu_seconds
from tbench.scores.summary import Status, Summary, TaskRow
from tbench.storage.read_run import StoredRun
from tbench.storage.summaries import prices_of
from tbench.text import counted

_MAX_SEEDS = 20
"""Number of seeds above which a row shows a bar, and its cells only when it is opened."""
_MAX_BESIDE_BARS = 12
"""Number of seeds above which the cells leave no room for bars of time."""


class TrialColumn(NamedTuple):
    """Column of numbers in the list of trials."""

    head: str
    value: Callable[[TrialResult], float | None]
    is_hidden: bool = False
    """Whether a page shows the column only when it is chosen."""

    def text(self, trial: TrialResult) -> str:
        """Return the cell of a trial, empty without a value."""
        value = self.value(trial)
        return "" if value is None else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


TRIAL_COLUMNS = (
    TrialColumn("Steps", lambda trial: trial.steps),
    TrialColumn("Seconds", lambda trial: trial.timings.wall_sec),
    TrialColumn("Model seconds", lambda trial: trial.timings.model_sec, is_hidden=True),
    TrialColumn("Tokens in", lambda trial: trial.usage.prompt_tokens),
    TrialColumn("Tokens out", lambda trial: trial.usage.completion_tokens),
    TrialColumn("Attempt", lambda trial: trial.attempt, is_hidden=True),
)
"""Columns of the list of trials, after task, seed and result; to add a column, add a line here."""


def _trial_columns(run: StoredRun) -> Iterator[TrialColumn]:
    yield from TRIAL_COLUMNS
    if (gpus := prices_of(run).gpus) is not None:
        shares = gpu_seconds(run.results, gpus)
        yield TrialColumn("GPU-seconds", lambda trial: shares.get((trial.task, trial.seed, trial.attempt)))


def _number_cells(columns: Iterable[TrialColumn], trial: TrialResult) -> Markup:
    """Return the cells of a trial, which contain nothing but digits and their separators."""
    return Markup("".join(f'<td class="num">{column.text(trial)}</td>' for column in columns))


def grid_data(run: StoredRun, summary: Summary) -> dict[str, Any]:
    """Return the data of the grid and of the list of trials."""
    rows, seeds = sorted(summary.tasks, key=_worst_first), summary.seeds
    columns = tuple(_trial_columns(run))
    is_narrow = len(seeds) <= _MAX_SEEDS and all(0 <= seed <= 99 for seed in seeds)
    return {
        "rows": [(row, Counter(cell.status for cell in row.cells)) for row in rows],
        "seeds": seeds if is_narrow else (),
        "most_cells": _MAX_SEEDS,
        "status_bar": status_bar,
        "kinds": lambda row, counts: "|".join(_kinds(row, counts)),
        # If some reward is neither 0 nor 1, a mean says more than the number of solved trials.
        "has_partial": any(cell.reward not in (None, 0.0, 1.0) for row in rows for cell in row.cells),
        "means": task_means(summary) if not _MAX_BESIDE_BARS < len(seeds) <= _MAX_SEEDS else {},
        "task_bars": task_bars,
        "split_text": lambda time: " ".join(str(round(sec, 1)) for sec in time.parts().values()),
        "listed": sum(cell.status is not Status.MISSING for row in rows for cell in row.cells),
        "is_listed": summary.counts.planned <= MANY_TRIALS,
        "step_text": step_text,
        "columns": columns,
        "number_cells": lambda trial: _number_cells(columns, trial),
    }


def step_text(number: int, step: TaskStepResult) -> str:
    """Return the result of a task step in one line."""
    if not step.begun:
        return f"step {number} {step.name}: never started"
    words = [f"step {number} {step.name}: {'no verdict' if step.reward is None else f'reward {step.reward:g}'}"]
    if step.outcome is not None:
        words.append(step.outcome)
    if step.error is not None:
        words.append(f"error {step.error.type}")
    words += [counted(step.steps, "step"), seconds(step.timings.wall_sec)]
    return ", ".join([*words, *filter(None, [step.stopped])])


def _worst_first(row: TaskRow) -> tuple[bool, float, int, str]:
    """Return a sort key; tasks without any result come last."""
    is_unknown = all(cell.status is Status.MISSING for cell in row.cells)
    return is_unknown, row.mean_reward or 0.0, row.scored, row.task


def _kinds(row: TaskRow, counts: Counter[Status]) -> Iterator[str]:
    """Yield the filters that a task matches."""
    if row.solved < len(row.cells):
        yield "unsolved"
    if 0 < row.solved < row.scored:
        yield "mixed"
    if counts[Status.ERROR]:
        yield "errors"
