"""The page of a task over all runs, the list of tasks, and the list of a task's trials as a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from reports.look import Crumb, page
from reports.names import TASKS, task_page, trial_data, trial_page
from reports.script_data import assignment
from reports.site.content import Site, SiteRun
from reports.task.overall import task_list
from reports.task.record import by_directory, task_record
from reports.task.view import task_view
from tbench.history.rows import TrialRow

_MOST_TRIALS = 500
"""Trials that another trial of the same task can be compared with."""


def names(site: Site) -> tuple[str, ...]:
    """The tasks that some run of the site planned; the index may know more runs than those of the site."""
    every = site.history.task_names()
    if len(site.history.runs()) == len(site.runs):
        return every
    known = by_directory(site)
    return tuple(name for name in every if any(point.run in known for point in site.history.task(name)))


def render(site: Site, task: str) -> str:
    """The page of a task."""
    record = task_record(site, task)
    crumbs = [Crumb("tasks", TASKS), Crumb(task)]
    view = task_view(record, site.history.trials_of(task)) if record.runs else None
    return page("task/task.html.j2", task_page(task), crumbs=crumbs, task=task, view=view)


def render_list(site: Site, tasks: Sequence[str]) -> str:
    """The page with all tasks."""
    return page("task/list.html.j2", TASKS, crumbs=[Crumb("tasks")], found=task_list(site, tasks))


def data(site: Site, task: str) -> str:
    """A script that tells a trial's page which other trials of the task there are, the newest first."""
    return assignment("trials", list(islice(_trials(site, task), _MOST_TRIALS)))


def _trials(site: Site, task: str) -> Iterator[dict[str, Any]]:
    known, trials = by_directory(site), site.history.trials_of(task)
    for point in site.history.task(task):
        run = known.get(point.run)
        if run is not None:
            yield from (_trial(run, trial) for trial in trials.get(point.run, ()))


def _trial(run: SiteRun, trial: TrialRow) -> dict[str, Any]:
    where = (run.slug, trial.task, trial.seed, trial.attempt)
    return {
        "run": run.slug,
        "name": run.row.name,
        "model": run.row.model,
        "seed": trial.seed,
        "attempt": trial.attempt,
        "reward": trial.reward,
        "status": trial.status,
        "begun": run.row.begun_at,
        "page": trial_page(*where),
        "data": trial_data(*where),
    }
