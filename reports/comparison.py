"""Pages that compare two runs: which tasks changed and how certain that is, and the choice of any two runs."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from reports.charts import BarPart, stacked_bar
from reports.explained import explanation_for_page
from reports.page_frame import MAX_CELLS, Crumb, data_script, page, symbol_of
from reports.page_paths import COMPARE, compare_page, relative_url, slug
from reports.site.content import Site, SiteRun
from tbench.explaining.explain import explain_change
from tbench.history.rows import TrialRow
from tbench.reward import mean
from tbench.scores.comparing import comparison_text
from tbench.scores.comparing.compare import Comparison, compare
from tbench.scores.comparing.compared_run import ComparedRun, NothingInCommon
from tbench.storage.comparable import differing_settings
from tbench.storage.read_run import RunUnreadable

# The choice of two runs: the pairs that have a page, and the data with which a browser compares any other two.


def render_choice(site: Site) -> str:
    """Render the page on which two runs are chosen, with the pairs that have a page, newest first."""
    choices = [(run, _choice_label(run), site.last_good_before(run)) for run in site.runs]
    pairs = [(before, run) for run, _, before in choices if before is not None]
    return page("compare/choice.html.j2", COMPARE, crumbs=[Crumb("compare")], choices=choices, pairs=pairs)


def _choice_label(run: SiteRun) -> str:
    """Return name and model of a run, and its day unless the name contains it."""
    return " · ".join(dict.fromkeys(filter(None, (run.row.words, run.row.model))))


def data(site: Site, run: SiteRun) -> str:
    """Return the script with a run's rewards and statuses by task and seed, for the page on which runs are chosen."""
    hashes, trials = site.history.tasks(run.row.path), _by_task_and_seed(site, run)
    known = {
        "name": run.row.name,
        "model": run.row.model,
        "path": _path(site, run),
        "page": relative_url(COMPARE, run.page),
        "seeds": run.row.seeds,
        "tasks": [
            [task, slug(task), digest, {seed: _trial(trial) for seed, trial in trials.get(task, {}).items()}]
            for task, digest in hashes.items()
        ],
    }
    return data_script(f"rewards {run.slug}", known)


def _trial(trial: TrialRow) -> list[Any]:
    symbol = symbol_of(trial.status, trial.reward)
    return [trial.reward, trial.status, symbol, *([trial.attempt] if trial.attempt > 1 else [])]


def _path(site: Site, run: SiteRun) -> str:
    """Return the run's directory, quoted for a command line in the folder of the history."""
    folder, path = site.history.file.parent, run.row.path
    return shlex.quote(str(path.relative_to(folder) if path.is_relative_to(folder) else path))


# The page of two runs: the difference, its uncertainty, and both runs' trials task by task.

_HIGHEST_P = 0.999
_GROUPS = {
    "failing": ("Newly failing", "Solved at some seed before, and at none now; worst first."),
    "passing": ("Newly passing", "Solved at some seed now, and at none before; best first."),
    "moved": ("Changed", "Solved more or less often, or with a different reward; worst first."),
    "unscored": ("Without a verdict", "At least one of the runs has no verdict at any seed. This is not a failure."),
    "same": ("Unchanged", "The mean reward is the same in both runs."),
}


@dataclass(frozen=True, slots=True)
class ComparedTask:
    """Task with its mean rewards in both runs."""

    task: str
    group: str
    """Key in `_GROUPS`."""
    old_rate: float
    new_rate: float

    @property
    def difference(self) -> float:
        return self.new_rate - self.old_rate


def render(site: Site, old: SiteRun, new: SiteRun) -> str:
    """Render the page of two runs, the second of which is the newer one."""
    first, second = site.compared_run(old), site.compared_run(new)
    comparison, explained, problem, written = None, None, "", ""
    costs = comparison_text.cost_lines((old.row.cost, new.row.cost))
    try:
        comparison = compare(first, second)
        written = "\n".join((*comparison_text.lines(comparison, ("A", "B")), *costs))
        planned = max(old.row.planned, new.row.planned)
        explained = explanation_for_page(planned, lambda: explain_change(site.side(old), site.side(new)))
    except NothingInCommon as error:
        problem = str(error)
    settings, unread = _settings(site, old, new)
    p = 1.0 if comparison is None else comparison.p
    return page(
        "compare/pair.html.j2",
        compare_page(old.slug, new.slug),
        crumbs=[Crumb("compare", COMPARE), Crumb(new.row.name)],
        old=old,
        new=new,
        doubts=(*unread, *_doubts(old, new)),
        settings=settings,
        found=comparison,
        explained=explained,
        problem=problem,
        groups=[] if comparison is None else list(_groups(_tasks(comparison, first, second))),
        seeds=[] if comparison is None else _seeds(comparison, first, second),
        trials=[_by_task_and_seed(site, run) for run in (old, new)],
        most_cells=MAX_CELLS,
        left_out=list(_left_out(first, second, comparison)),
        bar=_bar(comparison),
        text=written,
        is_chance=p > comparison_text.ALPHA,
        p_text=_p_text(p),
    )


def _p_text(p: float) -> str:
    """Return as text how often chance alone makes a difference of this size."""
    if p >= _HIGHEST_P:
        return "in every case"
    return f"in {100 * p:.2g} of 100 cases" if p >= 0.001 else "in fewer than 1 of 1,000 cases"


def _settings(site: Site, old: SiteRun, new: SiteRun) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the settings that differ, each as `name: a → b`, and why they could not be read."""
    if old.row.fingerprint == new.row.fingerprint:
        return (), ()
    try:
        return differing_settings(site.read_run(old), site.read_run(new)), ()
    except RunUnreadable as error:
        return (), (f"The settings could not be compared: {error}",)


def _doubts(*runs: SiteRun) -> Iterator[str]:
    """Yield reasons to doubt the comparison, one sentence each."""
    for row in (run.row for run in runs):
        if row.missing:
            missing = f"{row.missing:,} of {row.planned:,} trials have no result"
            yield f"{row.name} is incomplete: {missing} and count as 0."


def _by_task_and_seed(site: Site, run: SiteRun) -> dict[str, dict[int, TrialRow]]:
    found: defaultdict[str, dict[int, TrialRow]] = defaultdict(dict)
    for trial in site.trials(run):
        found[trial.task][trial.seed] = trial
    return found


def _seeds(comparison: Comparison, first: ComparedRun, second: ComparedRun) -> list[tuple[int, ...]]:
    """Return the compared seeds of each run, in the order in which they are paired."""
    count = len(comparison.seeds)
    by_position = comparison.paired_by == "position"
    return [tuple(side.table.seeds[:count] if by_position else comparison.seeds) for side in (first, second)]


def _tasks(comparison: Comparison, first: ComparedRun, second: ComparedRun) -> Iterator[ComparedTask]:
    """Yield the compared tasks in the order of the first run, each with its group and rewards."""
    changes = {each.task: each for each in comparison.changes}
    failed, solved = ({each.task for each in some} for some in (comparison.newly_failed, comparison.newly_solved))
    unscored = {*comparison.only_first_unscored, *comparison.only_second_unscored, *comparison.both_unscored}
    in_second, changed = set(second.table.tasks), set(comparison.left_out.changed)
    for task, rewards in zip(first.table.tasks, first.table.rows, strict=True):
        if task not in in_second or task in changed:
            continue
        change = changes.get(task)
        group = "unscored" if task in unscored else "failing" if task in failed else "passing" if task in solved else ""
        if change is not None:
            yield ComparedTask(task, group or "moved", change.first_rate, change.second_rate)
            continue
        by_seed = dict(zip(first.table.seeds, rewards, strict=True))
        rate = mean([by_seed[seed] or 0.0 for seed in comparison.seeds])
        yield ComparedTask(task, group or "same", rate, rate)


def _groups(tasks: Iterator[ComparedTask]) -> Iterator[tuple[str, str, str, list[ComparedTask]]]:
    """Yield name, heading, hint and tasks of each group; largest losses first, in `passing` largest gains first."""
    members = defaultdict(list)
    for each in tasks:
        members[each.group].append(each)
    for name, (heading, hint) in _GROUPS.items():
        if found := members[name]:
            direction = -1 if name == "passing" else 1
            yield name, heading, hint, sorted(found, key=lambda each: direction * each.difference)


def _left_out(
    first: ComparedRun, second: ComparedRun, comparison: Comparison | None
) -> Iterator[tuple[str, list[str]]]:
    """Yield tasks that only one run has, or whose content differs between the runs."""
    old, new = first.table.tasks, second.table.tasks
    changed = comparison.left_out.changed if comparison is not None else [task for task in old if task in new]
    for words, tasks in (
        (f"Only in {first.name}", [task for task in old if task not in new]),
        (f"Only in {second.name}", [task for task in new if task not in old]),
        ("Content differs between the runs", list(changed)),
    ):
        if tasks:
            yield words, tasks


def _bar(comparison: Comparison | None) -> Markup:
    if comparison is None:
        return Markup("")
    better, worse, equal = comparison.better, comparison.worse, comparison.equal
    parts = [
        BarPart("s-fail", worse, f"{worse} worse"),
        BarPart("equal", equal, f"{equal} the same"),
        BarPart("s-pass", better, f"{better} better"),
    ]
    return stacked_bar(parts, label=f"Tasks: {worse} worse, {equal} the same, {better} better")
