"""Everything that the page of a run shows, as data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from markupsafe import Markup

from reports.charts.seed_strip import seed_strip
from reports.run.effort import RunEffort, effort_of
from reports.run.facts import config_text, facts_of
from reports.run.grid import TrialGrid, count_words, grid_of, status_bar
from reports.run.headline import RunHeadline, headline_of
from reports.run.links import MANY_TRIALS, RunLinks
from reports.run.messages import readable
from reports.run.trials import StatusCount, trial_link
from reports.run.validity import ValidityCheck, checks_of
from reports.seed_cells import SIGNS
from tbench.scores.summary import Summary
from tbench.storage.read_run import StoredRun
from tbench.storage.summaries import summary_of

SCRIPTED_DEMO = "scripted-demo"
"""The model name of the scripted endpoint that comes with tbench: its scores say nothing about any model."""

ERRORS_SHOWN = 30
"""Kinds of errors whose messages a page shows, the most frequent ones."""
MOST_RESAMPLED = 500
"""Tasks above which pages show the standard error, and no interval of a bootstrap."""


@dataclass(frozen=True, slots=True)
class ErrorLines:
    """Trials without a verdict that failed in the same way."""

    type: str
    count: int
    stage: str
    blame: str
    retryable: int
    message: str
    trial: str
    href: str | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run, as its page shows it."""

    name: str
    headline: RunHeadline
    summary: Summary
    is_demo: bool
    statuses: tuple[StatusCount, ...]
    status_bar: Markup
    seed_strip: Markup | None
    """None for a single seed, and where trials are missing."""
    checks: tuple[ValidityCheck, ...]
    grid: TrialGrid
    errors: tuple[ErrorLines, ...]
    errors_left_out: int
    effort: RunEffort
    facts: dict[str, str]
    config: str


def page_summary(run: StoredRun) -> Summary:
    """The summary of a run that its pages show: for very many tasks without intervals, which would take minutes."""
    return summary_of(run, intervals=len(run.planned_tasks) <= MOST_RESAMPLED)


def run_view(run: StoredRun, summary: Summary, links: RunLinks) -> RunView:
    """What the page of a run shows, with these links."""
    model = run.model or summary.model
    counts = Counter(cell.status for row in summary.tasks for cell in row.cells)
    by_words = _trial_links(summary, links)
    return RunView(
        name=run.name,
        headline=headline_of(run, summary),
        summary=summary,
        is_demo=SCRIPTED_DEMO in {model, summary.model},
        statuses=tuple(StatusCount(status, symbol, counts[status]) for status, symbol in SIGNS.items()),
        status_bar=status_bar(counts, f"Trials: {count_words(counts)}"),
        seed_strip=_seed_strip(summary),
        checks=checks_of(run, summary, by_words),
        grid=grid_of(summary, links),
        errors=_errors(summary, by_words),
        errors_left_out=max(0, len(summary.errors) - ERRORS_SHOWN),
        effort=effort_of(summary),
        facts=facts_of(run, model),
        config=config_text(run),
    )


def _trial_links(summary: Summary, links: RunLinks) -> dict[str, str]:
    """Links to the trials that checks and errors name, by the words for a trial."""
    named = {flag.trial for flag in summary.flags} | {group.example_trial for group in summary.errors}
    is_listed = summary.counts.planned <= MANY_TRIALS
    found = {
        words: trial_link(row.task, number, cell, links, is_listed=is_listed)
        for number, row in enumerate(summary.tasks)
        for cell in row.cells
        if (words := f"{row.task} seed {cell.seed}") in named
    }
    return {words: href for words, href in found.items() if href is not None}


def _seed_strip(summary: Summary) -> Markup | None:
    score = summary.score
    if score is None or score.std is None or summary.counts.missing:
        return None
    label = f"The scores of {len(score.per_seed):,} seeds, their mean and one standard deviation around it"
    return seed_strip(score.per_seed, score.mean, score.std, label=label)


def _errors(summary: Summary, trial_links: dict[str, str]) -> tuple[ErrorLines, ...]:
    return tuple(
        ErrorLines(
            type=group.type,
            count=group.count,
            stage=group.stage or "unknown",
            blame=group.blame or "unknown",
            retryable=group.retryable,
            message=readable(group.example_message),
            trial=group.example_trial,
            href=trial_links.get(group.example_trial),
        )
        for group in summary.errors[:ERRORS_SHOWN]
    )
