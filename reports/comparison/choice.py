"""The choice of two runs: the pairs that have a page, and what a browser needs to compare any other two."""

from __future__ import annotations

import shlex
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from reports.names import COMPARE, compare_page, relative_url, run_page, slug
from reports.seed_cells import sign_of
from reports.site.content import Site, SiteRun
from tbench.history.rows import TrialRow
from tbench.scores.summary import Status


@dataclass(frozen=True, slots=True)
class RunChoice:
    """A run that can be chosen."""

    slug: str
    words: str
    before: str
    """Slug of the run that there is a page of comparison with; empty without one."""


@dataclass(frozen=True, slots=True)
class PreparedPair:
    """Two runs that have a page."""

    href: str
    old: SiteRun
    new: SiteRun
    old_href: str
    new_href: str


@dataclass(frozen=True, slots=True)
class ComparisonChoice:
    """All that the page of choices shows."""

    runs: tuple[RunChoice, ...]
    pairs: tuple[PreparedPair, ...]
    """The newest first."""


def comparison_choice(site: Site) -> ComparisonChoice:
    """The runs of a site, and the pairs that have pages."""
    before = {run.slug: site.last_good_before(run) for run in site.runs}
    runs = (RunChoice(run.slug, _words(run), old.slug if (old := before[run.slug]) else "") for run in site.runs)
    pairs = ((old, run) for run in site.runs if (old := before[run.slug]) is not None)
    return ComparisonChoice(tuple(runs), tuple(_pair(old, new) for old, new in pairs))


def _words(run: SiteRun) -> str:
    """A run in one line: what it is called, its model, and its day unless the name says it."""
    return " · ".join(dict.fromkeys(filter(None, (run.row.words, run.row.model))))


def _pair(old: SiteRun, new: SiteRun) -> PreparedPair:
    places = (compare_page(old.slug, new.slug), run_page(old.slug), run_page(new.slug))
    href, old_href, new_href = (relative_url(COMPARE, place) for place in places)
    return PreparedPair(href, old, new, old_href, new_href)


def rewards_data(site: Site, run: SiteRun) -> dict[str, Any]:
    """A run as the page of choices compares it in the browser: rewards and states by task and seed."""
    hashes = site.history.tasks(run.row.path)
    trials: defaultdict[str, dict[int, list[Any]]] = defaultdict(dict)
    for trial in site.history.trials(run.row.path):
        trials[trial.task][trial.seed] = _trial(trial)
    return {
        "name": run.row.name,
        "model": run.row.model,
        "path": _path(site, run),
        "page": relative_url(COMPARE, run_page(run.slug)),
        "seeds": run.row.seeds,
        "tasks": [[task, slug(task), digest, trials.get(task, {})] for task, digest in hashes.items()],
    }


def _trial(trial: TrialRow) -> list[Any]:
    sign = sign_of(Status(trial.status), trial.reward)
    return [trial.reward, trial.status, sign, *([trial.attempt] if trial.attempt > 1 else [])]


def _path(site: Site, run: SiteRun) -> str:
    """The run's directory as a command line names it, in the folder of the history."""
    folder, path = site.history.file.parent, run.row.path
    return shlex.quote(str(path.relative_to(folder) if path.is_relative_to(folder) else path))
