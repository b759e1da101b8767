"""Pages of two runs side by side: which tasks moved, how sure that is, and the choice of any two runs."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from reports.charts import BarPart, stacked_bar
from reports.look import MOST_CELLS, Crumb, SeedCell, assignment, page, seed_cells, sign_of
from reports.names import COMPARE, compare_page, relative_url, run_page, slug, task_page
from reports.site.content import Site, SiteRun
from tbench.history.rows import TrialRow
from tbench.reward import mean
from tbench.scores.comparing import text
from tbench.scores.comparing.compare import Comparison, compare
from tbench.scores.comparing.side import NothingInCommon, Side
from tbench.scores.summary import Status
from tbench.storage.comparable import differing_settings
from tbench.storage.read_run import RunUnreadable

# The choice of two runs: the pairs that have a page, and what a browser needs to compare any other two.


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


# What the page of two runs shows: the difference and how sure it is, and both runs' trials task by task.

ALPHA = text.ALPHA
_HIGHEST_P = 0.999
GroupName = Literal["failing", "passing", "moved", "unscored", "same"]
_GROUPS: dict[GroupName, tuple[str, str]] = {
    "failing": ("Newly failing", "Solved before at some seed, and now at none; the worst first."),
    "passing": ("Newly passing", "Solved now at some seed, and before at none; the best first."),
    "moved": ("Changed", "Solved more or less often, or with another reward; the worst first."),
    "unscored": ("Without a verdict", "One of the runs, or both, came to no verdict at any seed. That is no failure."),
    "same": ("The same", "The mean reward of these is the same in both runs."),
}


@dataclass(frozen=True, slots=True)
class PairedTask:
    """A task with the trials of both runs."""

    task: str
    href: str
    old: tuple[SeedCell, ...]
    new: tuple[SeedCell, ...]
    more: int
    """Trials of each run that are not shown one by one."""
    old_rate: float
    new_rate: float

    @property
    def difference(self) -> float:
        return self.new_rate - self.old_rate


@dataclass(frozen=True, slots=True)
class PairedTasks:
    """Tasks that moved in the same way."""

    name: GroupName
    heading: str
    hint: str
    tasks: tuple[PairedTask, ...]


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the two runs, in short."""

    run: SiteRun
    letter: str
    href: str


@dataclass(frozen=True, slots=True)
class LoneTasks:
    """Tasks that were left out of a comparison, and why."""

    words: str
    tasks: tuple[tuple[str, str], ...]
    """Name and page."""


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """Everything on the page of two runs."""

    old: ComparedRun
    new: ComparedRun
    doubts: tuple[str, ...]
    """What makes the comparison doubtful, one sentence each."""
    settings: tuple[str, ...]
    """Settings that differ, `name: a → b` each."""
    comparison: Comparison | None
    problem: str
    """Why there is no comparison; empty where there is one."""
    groups: tuple[PairedTasks, ...]
    left_out: tuple[LoneTasks, ...]
    bar: Markup
    words: str
    """What `tbench compare` says of them."""

    @property
    def is_chance(self) -> bool:
        """Whether the difference may well be chance."""
        return self.comparison is None or self.comparison.p > ALPHA

    @property
    def p_words(self) -> str:
        """How often chance alone makes such a difference."""
        p = 1.0 if self.comparison is None else self.comparison.p
        if p >= _HIGHEST_P:
            return "in every case"
        return f"in {100 * p:.2g} of 100 cases" if p >= 0.001 else "in fewer than 1 of 1,000 cases"


def comparison_view(site: Site, old: SiteRun, new: SiteRun) -> ComparisonView:
    """The view of two runs, the second of which is the newer one."""
    here = compare_page(old.slug, new.slug)
    first, second = _side(site, old), _side(site, new)
    comparison, problem, words = None, "", ""
    try:
        comparison = compare(first, second)
        words = "\n".join(text.lines(comparison, ("A", "B")))
    except NothingInCommon as error:
        problem = str(error)
    settings, unread = _settings(site, old, new)
    return ComparisonView(
        old=ComparedRun(old, "A", relative_url(here, run_page(old.slug))),
        new=ComparedRun(new, "B", relative_url(here, run_page(new.slug))),
        doubts=(*unread, *_doubts([old, new])),
        settings=settings,
        comparison=comparison,
        problem=problem,
        groups=() if comparison is None else tuple(_groups(here, comparison, _Trials(site, old, new, first, second))),
        left_out=tuple(_left_out(here, first, second, comparison)),
        bar=_bar(comparison),
        words=words,
    )


def _side(site: Site, run: SiteRun) -> Side:
    rewards = site.rewards(run)
    return Side(run.row.name, rewards.table, rewards.hashes)


def _settings(site: Site, old: SiteRun, new: SiteRun) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The settings that differ, and what could not be read of them."""
    if old.row.fingerprint == new.row.fingerprint:
        return (), ()
    try:
        return differing_settings(site.stored(old), site.stored(new)), ()
    except RunUnreadable as error:
        return (), (f"Their settings are not compared: {error}",)


def _doubts(runs: Iterable[SiteRun]) -> Iterator[str]:
    for run in runs:
        row = run.row
        if row.missing:
            missing = f"{row.missing:,} of {row.planned:,} trials have no result"
            yield f"{row.name} is not complete: {missing}, and count as 0."


class _Trials:
    """The trials of two runs by task, as cells."""

    def __init__(self, site: Site, old: SiteRun, new: SiteRun, first: Side, second: Side) -> None:
        self._runs, self._sides = (old, new), (first, second)
        self._trials = tuple(_by_task(site.history.trials(run.row.path)) for run in (old, new))

    def cells(self, here: str, which: int, task: str, comparison: Comparison) -> tuple[SeedCell, ...]:
        seeds: Sequence[int] = comparison.seeds
        if comparison.paired_by == "position":
            seeds = self._sides[which].table.seeds[: len(seeds)]
        trials = self._trials[which].get(task, [])
        return tuple(seed_cells(here, self._runs[which], trials, seeds[:MOST_CELLS]))

    def compared(self, comparison: Comparison) -> Iterator[str]:
        """The tasks that are compared, in the order of the first run."""
        second, changed = set(self._sides[1].table.tasks), set(comparison.left_out.changed)
        return (task for task in self._sides[0].table.tasks if task in second and task not in changed)

    def rate(self, task: str, comparison: Comparison) -> float:
        """The mean reward of a task over the compared seeds in the first run, 0 without a verdict."""
        table = self._sides[0].table
        row = dict(zip(table.seeds, table.rows[table.tasks.index(task)], strict=True))
        return mean([row[seed] or 0.0 for seed in comparison.seeds])


def _by_task(trials: Iterable[TrialRow]) -> dict[str, list[TrialRow]]:
    found: defaultdict[str, list[TrialRow]] = defaultdict(list)
    for trial in trials:
        found[trial.task].append(trial)
    return found


def _groups(here: str, comparison: Comparison, trials: _Trials) -> Iterator[PairedTasks]:
    """The tasks by how they moved; those with the largest losses are first, but for gains."""
    rates = _rates(comparison, trials)
    members: dict[GroupName, list[PairedTask]] = {name: [] for name in _GROUPS}
    for task, (name, old_rate, new_rate) in rates.items():
        members[name].append(
            PairedTask(
                task=task,
                href=relative_url(here, task_page(task)),
                old=trials.cells(here, 0, task, comparison),
                new=trials.cells(here, 1, task, comparison),
                more=max(0, len(comparison.seeds) - MOST_CELLS),
                old_rate=old_rate,
                new_rate=new_rate,
            )
        )
    for name, (heading, hint) in _GROUPS.items():
        if found := members[name]:
            ordered = sorted(found, key=lambda each: -each.difference if name == "passing" else each.difference)
            yield PairedTasks(name, heading, hint, tuple(ordered))


def _rates(comparison: Comparison, trials: _Trials) -> dict[str, tuple[GroupName, float, float]]:
    """How each compared task moved, and its mean rewards in both runs."""
    changes = {each.task: each for each in comparison.changes}
    failed, solved = ({each.task for each in some} for some in (comparison.newly_failed, comparison.newly_solved))
    unscored = {*comparison.only_first_unscored, *comparison.only_second_unscored, *comparison.both_unscored}
    found: dict[str, tuple[GroupName, float, float]] = {}
    for task in trials.compared(comparison):
        change = changes.get(task)
        name: GroupName = "same" if change is None else "moved"
        name = (
            "unscored" if task in unscored else "failing" if task in failed else "passing" if task in solved else name
        )
        rate = trials.rate(task, comparison)
        found[task] = (name, rate, rate) if change is None else (name, change.first_rate, change.second_rate)
    return found


def _left_out(here: str, first: Side, second: Side, comparison: Comparison | None) -> Iterator[LoneTasks]:
    """Tasks that only one run has, or whose content is another in each."""
    old, new = first.table.tasks, second.table.tasks
    changed = comparison.left_out.changed if comparison is not None else [task for task in old if task in new]
    for words, tasks in (
        (f"Only in {first.name}", [task for task in old if task not in new]),
        (f"Only in {second.name}", [task for task in new if task not in old]),
        ("Their content is another in each run", changed),
    ):
        if tasks:
            yield LoneTasks(words, tuple((task, relative_url(here, task_page(task))) for task in tasks))


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


# The page that compares two runs, and the one on which any two can be chosen.


def render(site: Site, old: SiteRun, new: SiteRun) -> str:
    """The page of two runs, task by task."""
    here = compare_page(old.slug, new.slug)
    crumbs = [Crumb("compare", COMPARE), Crumb(new.row.name)]
    return page("compare/pair.html.j2", here, crumbs=crumbs, view=comparison_view(site, old, new))


def render_choice(site: Site) -> str:
    """The page on which two runs are chosen."""
    return page("compare/choice.html.j2", COMPARE, crumbs=[Crumb("compare")], choice=comparison_choice(site))


def data(site: Site, run: SiteRun) -> str:
    """The script with a run's rewards, for the page on which two runs are chosen."""
    return assignment(f"rewards {run.slug}", rewards_data(site, run))
