"""Trials as small cells side by side: a sign for what became of each, and the way to its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from reports.look import seconds
from reports.names import relative_url, trial_page
from reports.site.content import SiteRun
from tbench.history.rows import TrialRow
from tbench.reward import reward_text
from tbench.scores.summary import Status
from tbench.text import counted

SIGNS = {Status.PASS: "✓", Status.PARTIAL: "◐", Status.FAIL: "✗", Status.ERROR: "!", Status.MISSING: "·"}
MOST_CELLS = 24
"""Trials of one task in one run that are shown one by one; the page of the run has all of them."""


@dataclass(frozen=True, slots=True)
class SeedCell:
    """A trial as a cell."""

    status: Status
    sign: str
    words: str
    href: str | None
    """Its page; None for a trial without a result."""


def seed_cells(here: str, run: SiteRun, trials: Iterable[TrialRow], seeds: Iterable[int]) -> Iterator[SeedCell]:
    """The cells of a task's trials in a run, for a page at `here`, in the order of the seeds."""
    by_seed = {trial.seed: trial for trial in trials}
    for seed in seeds:
        trial = by_seed.get(seed)
        if trial is None:
            yield SeedCell(Status.MISSING, SIGNS[Status.MISSING], f"seed {seed}: no result", None)
        else:
            status = Status(trial.status)
            href = relative_url(here, trial_page(run.slug, trial.task, seed, trial.attempt))
            yield SeedCell(status, sign_of(status, trial.reward), f"seed {seed}: {', '.join(_facts(trial))}", href)


def sign_of(status: Status, reward: float | None) -> str:
    """The sign of a trial: its reward where that is neither 0 nor 1, so that nothing is rounded away."""
    if reward is None or reward in (0.0, 1.0):
        return SIGNS[status]
    text = reward_text(reward)
    return text.removeprefix("0") if text.startswith("0.") else text


def _facts(trial: TrialRow) -> Iterator[str]:
    if trial.status == Status.ERROR:
        yield f"error, no verdict: {trial.error}"
    else:
        yield trial.status
    if trial.reward not in (None, 0.0, 1.0):
        yield f"reward {trial.reward:g}"
    if trial.outcome is not None:
        yield trial.outcome.replace("_", " ")
    yield counted(trial.steps, "step")
    if trial.wall_sec is not None:
        yield seconds(trial.wall_sec)
