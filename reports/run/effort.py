"""Time and tokens that the trials of a run took, split by use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from reports.charts import BarPart, stacked_bar
from reports.page_frame import seconds
from tbench.scores.summary import Status, Summary, TaskRow, TimeSplit

MAX_BARS = 300
"""Number of tasks above which rows have no bars."""


def effort_data(summary: Summary) -> dict[str, Any]:
    """Return the bars of time and of tokens, each None if nothing was recorded, and their parts."""
    spent = [(name, name, sec, seconds(sec)) for name, sec in summary.time.parts().items() if sec > 0]
    tokens = [(name, kind, amount, f"{amount:,.0f}") for name, kind, amount in _tokens(summary)]
    token_parts = [BarPart(kind, amount, f"{name}: {shown}") for name, kind, amount, shown in tokens]
    return {
        "time_bar": stacked_bar(_bar_parts(summary.time), label="Time by use") if spent else None,
        "time": _with_shares(spent),
        "token_bar": stacked_bar(token_parts, label="Tokens by kind") if tokens else None,
        "tokens": _with_shares(tokens),
    }


def _with_shares(parts: Sequence[tuple[str, str, float, str]]) -> list[tuple[str, str, str, str]]:
    """Return name, CSS class, amount and share of each part, as a table shows them."""
    total = sum(amount for _, _, amount, _ in parts)
    return [(name, kind, shown, f"{100 * amount / total:.1f} %") for name, kind, amount, shown in parts]


def _bar_parts(time: TimeSplit) -> list[BarPart]:
    return [
        BarPart(name, sec, f"{name}: {seconds(sec)}, {100 * sec / time.total_sec:.1f} %")
        for name, sec in time.parts().items()
        if sec > 0
    ]


def task_means(summary: Summary) -> dict[str, TimeSplit]:
    """Return the mean time of each task's trials; empty for very many tasks."""
    return {row.task: _per_trial(row) for row in summary.tasks} if len(summary.tasks) <= MAX_BARS else {}


def task_bars(means: Mapping[str, TimeSplit]) -> dict[str, Markup]:
    """Return a bar for each task's mean time. All have the same scale: longer bars are slower tasks."""
    longest_sec = max((time.total_sec for time in means.values()), default=0.0)
    return {
        task: stacked_bar(_bar_parts(time), full=longest_sec, label=_words(time))
        for task, time in means.items()
        if time.total_sec > 0
    }


def _words(time: TimeSplit) -> str:
    shares = ((name, sec, 100 * sec / time.total_sec) for name, sec in time.parts().items() if sec > 0)
    return ", ".join(f"{name} {seconds(sec)} ({share:.1f} %)" for name, sec, share in shares)


def _per_trial(row: TaskRow) -> TimeSplit:
    ended = sum(cell.status is not Status.MISSING for cell in row.cells) or 1
    return TimeSplit(**{name: sec / ended for name, sec in row.time.model_dump().items()})


def _tokens(summary: Summary) -> list[tuple[str, str, float]]:
    """Return name, CSS class and number of each kind of token that was counted."""
    usage = summary.usage
    cached = usage.cached_tokens or 0
    kinds = [
        ("prompt" if usage.cached_tokens is None else "prompt, not cached", "prompt", usage.prompt_tokens - cached),
        ("prompt, cached", "cached", cached),
        ("completion", "completion", usage.completion_tokens),
    ]
    return [(name, kind, amount) for name, kind, amount in kinds if amount > 0]
