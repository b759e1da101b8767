"""Content of a site: runs, the series that they form over time, and the gate's verdicts on these."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from reports.page_paths import night_page, run_page, series_page, slug
from tbench.errors import UsageError
from tbench.explaining.trials import Side, side_of
from tbench.history.directories import stamp
from tbench.history.index import RunHistory
from tbench.history.records import RunReader
from tbench.history.rows import RunRow, TrialRow
from tbench.scores.comparing.compared_run import ComparedRun
from tbench.scores.gate.judge import judge
from tbench.scores.gate.nights import GateRule, Night
from tbench.scores.gate.verdict import GateVerdict, JudgedNight, Shift
from tbench.scores.summary import Summary
from tbench.storage.read_run import StoredRun, read_run
from tbench.storage.run_files import CONFIG_NAME, NOTES_NAME, RESULTS_NAME, is_abandoned, is_run
from tbench.storage.summaries import make_summary

# The gate's verdict on each run of a series, as it was when that run was the newest one.


@dataclass(frozen=True, slots=True)
class AlarmSpan:
    """An alarm and its nights, all by name."""

    first: str
    """Night that raised the alarm."""
    last: str
    """Last night of the alarm."""
    drop: tuple[str, ...]
    """Nights of the drop, from its most likely first one to the last of the alarm."""
    ended_at: str | None
    """Night that ended the alarm; None while it lasts."""
    shift: Shift | None = field(default=None, compare=False)
    """The drop as judged at the last night of the alarm: all pages about the drop show these same figures."""


@dataclass(frozen=True, slots=True)
class JudgedSeries:
    """Nights of a series that have a score, with the gate's verdicts."""

    rule: GateRule = field(default_factory=GateRule)
    nights: tuple[Night, ...] = ()
    """Oldest first, with unique names."""
    verdict: GateVerdict | None = None
    """Verdict on the last night."""
    by_name: Mapping[str, JudgedNight] = field(default_factory=dict)
    alarms: tuple[AlarmSpan, ...] = ()
    """Oldest first."""

    def verdict_at(self, name: str) -> GateVerdict | None:
        """Return the verdict at the time when this night was the last one; None if it is not judged."""
        if self.verdict is not None and self.verdict.night.name == name:
            return self.verdict
        places = [at for at, night in enumerate(self.nights) if night.name == name]
        return _verdict(self.nights[: places[0] + 1], self.rule) if places else None


def judge_series(nights: Sequence[Night], rule: GateRule) -> JudgedSeries:
    """Judge a series of nights, oldest first."""
    if not nights:
        return JudgedSeries(rule)
    verdicts = list(_verdicts(nights, rule))
    by_name = {night.name: night for verdict in reversed(verdicts) for night in verdict.path}
    known = JudgedSeries(rule, tuple(nights), verdicts[0], by_name)
    return replace(known, alarms=tuple(span for verdict in reversed(verdicts) for span in _alarm_spans(known, verdict)))


def _verdicts(nights: Sequence[Night], rule: GateRule) -> Iterator[GateVerdict]:
    """Yield the verdict on the last night, then on the last night that no verdict has compared yet, and so on."""
    known: set[str] = set()
    for end in range(len(nights), 0, -1):
        if nights[end - 1].name not in known:
            verdict = _verdict(nights[:end], rule)
            known |= {night.name for night in verdict.path} | {nights[end - 1].name}
            yield verdict


def _verdict(nights: Sequence[Night], rule: GateRule) -> GateVerdict:
    """Return the verdict on the last night; if all nights precede the configured baseline, ignore that setting."""
    try:
        return judge(nights, rule if _baseline_has_begun(nights, rule) else replace(rule, base_from=None))
    except UsageError:  # the baseline's first night is no longer in the series
        return judge(nights, replace(rule, base_from=None))


def _baseline_has_begun(nights: Sequence[Night], rule: GateRule) -> bool:
    if rule.base_from is None or any(night.name == rule.base_from for night in nights):
        return True
    try:
        day = date.fromisoformat(rule.base_from)
    except ValueError:
        return False
    return any(night.day is not None and night.day >= day for night in nights)


def _alarm_spans(series: JudgedSeries, verdict: GateVerdict) -> Iterator[AlarmSpan]:
    """Yield the alarms among the nights that a verdict compared."""
    path = verdict.path
    starts = [0] if path[0].alarm else []
    starts += [at for at, (before, night) in enumerate(pairwise(path), start=1) if night.alarm and not before.alarm]
    for start in starts:
        end = next((at for at in range(start, len(path)) if not path[at].alarm), len(path))
        over = path[end].name if end < len(path) else None
        last = series.verdict_at(path[end - 1].name)
        shift = last.drop if last is not None and last.alarm else None
        places = (at for at, night in enumerate(path[:start]) if shift is not None and night.name == shift.since.name)
        names = tuple(night.name for night in path[next(places, start) : end])
        yield AlarmSpan(path[start].name, path[end - 1].name, names, over, shift)


_RUNS_KEPT, _RESULTS_KEPT = 4, 30_000
"""Number of runs that are always kept in memory (a run, those it is compared with, and one to spare), and total number
of results up to which further runs are kept."""


@dataclass(slots=True)
class _KeptRun:
    stamp: str
    stored: StoredRun
    summary: Summary | None = None
    side: Side | None = None


class KeptRuns(RunReader):
    """Reads and summarises runs once for the index and for their pages, as long as they fit into memory."""

    def __init__(self, summarise: Callable[[StoredRun], Summary] = make_summary) -> None:
        self._summarise = summarise
        self._kept: dict[Path, _KeptRun] = {}
        """The most recently used run comes last."""
        self._results = 0
        """Number of results of all runs in memory."""

    def _run(self, path: Path) -> _KeptRun:
        """Read a run, unless it was read when its files had the same stamp."""
        try:
            known = stamp(path, (CONFIG_NAME, RESULTS_NAME, NOTES_NAME))
        except OSError:
            known = ""  # reading raises RunUnreadable, with the reason
        if (kept := self._kept.get(path)) is not None:
            self._drop(path)
        self._kept[path] = run = kept if kept and kept.stamp == known else _KeptRun(known, read_run(path))
        self._results += len(run.stored.results)
        while len(self._kept) > _RUNS_KEPT and self._results > _RESULTS_KEPT:
            self._drop(next(iter(self._kept)))
        return run

    def _drop(self, path: Path) -> None:
        self._results -= len(self._kept.pop(path).stored.results)

    def stored(self, path: Path) -> StoredRun:
        return self._run(path).stored

    def summary(self, run: StoredRun) -> Summary:
        kept = self._run(run.path)
        if kept.stored is not run:  # changed meanwhile
            return self._summarise(run)
        kept.summary = kept.summary or self._summarise(run)
        return kept.summary

    def side(self, path: Path) -> Side:
        """Return a run as a side of explanations. Raises RunUnreadable, and UsageError like `side_of`."""
        kept = self._run(path)
        for unused in [*self._kept.values()][:-_RUNS_KEPT]:
            unused.side = None
        kept.side = kept.side or side_of(kept.stored)
        return kept.side


@dataclass(frozen=True, slots=True)
class NightlySeries:
    """Runs that a nightly benchmark declares to be one series."""

    name: str
    nights: Mapping[Path, str]
    """Name of the night, by run directory, oldest first."""
    rule: GateRule = field(default_factory=GateRule)
    explained: Mapping[Path, Mapping[str, Any]] = field(default_factory=dict)
    """Each night's record of how its last run differs from the good ones: `sentence` and `parts`."""


@dataclass(frozen=True, slots=True)
class SiteRun:
    """Run that has a page."""

    row: RunRow
    slug: str
    night: str
    """Name that a nightly benchmark gave to its night, else the UTC day on which the run started."""
    is_cut_off: bool = False
    """Whether its process is gone although it never recorded an end."""

    @property
    def page(self) -> str:
        return run_page(self.slug)

    @property
    def night_page(self) -> str:
        return night_page(self.night)

    @property
    def has_score(self) -> bool:
        return self.row.score is not None

    @property
    def is_over(self) -> bool:
        """Whether the run has finished or no result is missing."""
        return self.row.status in ("finished", None) or (self.row.status != "running" and not self.row.missing)


@dataclass(frozen=True)
class RunSeries:
    """Successive runs: those of a nightly series, or those of one model that differ only in time."""

    name: str
    runs: tuple[SiteRun, ...]
    """Oldest first; never empty."""
    slug: str
    """Slug of the series' page."""
    is_nightly: bool
    key: str
    """Identity of the series, which stays the same as runs are added."""
    judged: JudgedSeries
    names: Mapping[str, str]
    """Name of each run's night in the gate's verdicts, by slug."""
    explained: Mapping[str, Mapping[str, Any]]
    """Explanations that nights recorded, by slug of the run."""

    @property
    def rule(self) -> GateRule:
        return self.judged.rule

    @property
    def verdict(self) -> GateVerdict | None:
        """The gate's verdict on the last run with a score; None if no run has ended with one."""
        return self.judged.verdict

    @cached_property
    def alarms(self) -> frozenset[str]:
        """Slugs of the runs in alarm."""
        judged = self.judged.by_name
        return frozenset(run for run, name in self.names.items() if name in judged and judged[name].alarm)

    @property
    def last(self) -> SiteRun:
        return self.runs[-1]

    @property
    def page(self) -> str:
        return series_page(self.slug)

    @property
    def last_over(self) -> SiteRun | None:
        """Newest run that ended with a score."""
        return next((run for run in reversed(self.runs) if run.has_score and run.is_over), None)

    @cached_property
    def drop_runs(self) -> frozenset[str]:
        """Slugs of the runs of all drops: those in alarm, and those before an alarm that belong to its drop."""
        names = {name for span in self.judged.alarms for name in span.drop}
        return frozenset(run for run, name in self.names.items() if name in names)

    def judged_night(self, run: SiteRun) -> JudgedNight | None:
        """Return how a run was judged, in short; None if it is not a night."""
        return self.judged.by_name.get(self.names[run.slug])

    def run_named(self, name: str) -> SiteRun:
        """Return the run whose night has this name."""
        return next(run for run in self.runs if self.names[run.slug] == name)

    def drop_at(self, run: SiteRun) -> Shift | None:
        """Return the drop for which there was an alarm at a run; None if there was no alarm."""
        return span.shift if (span := self.alarm_at(run)) is not None else None

    def alarm_at(self, run: SiteRun) -> AlarmSpan | None:
        """Return the alarm at a run; None if there was no alarm."""
        name = self.names[run.slug]
        found = self.judged_night(run)
        if found is None or not found.alarm:
            return None
        return next((span for span in self.judged.alarms if name in span.drop), None)


@dataclass(frozen=True)
class Site:
    """Everything from which the pages of a site are made."""

    history: RunHistory
    runs: tuple[SiteRun, ...]
    """Newest first; runs without a known start time last."""
    series: tuple[RunSeries, ...]
    notes: tuple[str, ...]
    """Files that could not be read, one sentence each."""
    kept: KeptRuns

    @cached_property
    def _series_of(self) -> Mapping[str, RunSeries]:
        return {run.slug: each for each in self.series for run in each.runs}

    @cached_property
    def _nights(self) -> Mapping[str, Night]:
        return {each.run_named(night.name).slug: night for each in self.series for night in each.judged.nights}

    @cached_property
    def _good_before(self) -> Mapping[str, SiteRun | None]:
        """The last good run before each run, by slug."""
        found = dict[str, SiteRun | None]()
        for series in self.series:
            good = None
            for run in series.runs:
                found[run.slug] = good
                is_good = _is_night(run) and run.slug not in series.drop_runs
                good = run if is_good and run.row.coverage >= series.rule.min_coverage else good
        return found

    def series_of(self, run: SiteRun) -> RunSeries:
        """Return the series of a run."""
        return self._series_of[run.slug]

    def read_run(self, run: SiteRun) -> StoredRun:
        """Return the run as it is stored. Raises RunUnreadable."""
        return self.kept.stored(run.row.path)

    def side(self, run: SiteRun) -> Side:
        """Return the run as a side of explanations. Raises RunUnreadable, and UsageError like `side_of`."""
        return self.kept.side(run.row.path)

    def last_good_before(self, run: SiteRun) -> SiteRun | None:
        """Return the last run of the series before this one that ended with enough coverage and is in no drop."""
        return self._good_before[run.slug]

    def verdict_at(self, run: SiteRun) -> GateVerdict | None:
        """Return the verdict at the time when this run was the last of its series; None if it is not a night."""
        series = self.series_of(run)
        return series.judged.verdict_at(series.names[run.slug])

    def rewards(self, run: SiteRun) -> Night:
        """Return the rewards of a run with the hashes of its tasks."""
        return self._nights.get(run.slug) or self.history.night(run.row, run.slug, run.row.begun_at or "")

    def compared_run(self, run: SiteRun) -> ComparedRun:
        """Return a run as one side of a comparison."""
        rewards = self.rewards(run)
        return ComparedRun(run.row.name, rewards.table, rewards.hashes)

    def trials(self, run: SiteRun) -> tuple[TrialRow, ...]:
        """Return the final results of a run, kept for its own page and for comparisons with its neighbours."""
        known = self._trials
        if run.slug not in known:
            while len(known) >= _RUNS_KEPT:
                del known[next(iter(known))]
            known[run.slug] = self.history.trials(run.row.path)
        return known[run.slug]

    @cached_property
    def _trials(self) -> dict[str, tuple[TrialRow, ...]]:
        return {}

    @cached_property
    def by_directory(self) -> dict[Path, SiteRun]:
        """Runs by directory."""
        return {run.row.path: run for run in self.runs}

    @cached_property
    def nights(self) -> dict[str, tuple[SiteRun, ...]]:
        """Runs of each night, newest night first."""
        found: defaultdict[str, list[SiteRun]] = defaultdict(list)
        for run in self.runs:
            found[run.night].append(run)
        return {name: tuple(runs) for name, runs in found.items()}


def gather(
    history: RunHistory,
    roots: Sequence[Path],
    lanes: Iterable[NightlySeries] = (),
    notes: Sequence[str] = (),
    kept: KeptRuns | None = None,
) -> Site:
    """Gather all runs below `roots` from the index; the runs of each of `lanes` form one series."""
    known = list(lanes)
    nights = {path.resolve(): night for lane in known for path, night in lane.nights.items()}
    # Runs for debugging are in no overview of scores, unless their directory is named.
    rows = history.runs(under=roots, unscored=all(map(is_run, roots)))
    names = Counter(row.name for row in rows)
    runs = tuple(
        SiteRun(
            row,
            slug(row.name if names[row.name] == 1 else f"{row.name} {row.path}"),
            nights.get(row.path, row.day or row.name),
            row.status == "running" and is_abandoned(row.path),
        )
        for row in rows
    )
    return Site(history, runs, tuple(_series(history, runs, known)), tuple(notes), kept or KeptRuns())


def _series(history: RunHistory, runs: Sequence[SiteRun], lanes: Sequence[NightlySeries]) -> Iterable[RunSeries]:
    """Yield the series, with the newest run's series first."""
    lane_of = {path.resolve(): lane for lane in lanes for path in lane.nights}
    grouped: defaultdict[tuple[str, ...], list[SiteRun]] = defaultdict(list)
    for run in runs:
        lane = lane_of.get(run.row.path)
        own_key = ("lane", lane.name) if lane is not None else ("model", run.row.model or "", run.row.fingerprint)
        grouped[own_key].append(run)
    named = _series_names(grouped)
    names = Counter(named.values())
    for key, found in grouped.items():
        lane, name = lane_of.get(found[0].row.path), named[key]
        own = slug(name if names[name] == 1 else f"{name} {' '.join(key)}")
        yield _one_series(history, tuple(reversed(found)), lane, name, own, "\n".join(key))


def _series_names(grouped: Mapping[tuple[str, ...], Sequence[SiteRun]]) -> dict[tuple[str, ...], str]:
    """Return the name of each series: lane or model, and the agent if series of this name have several agents."""
    names = {key: key[1] or runs[0].row.agent or runs[0].row.name for key, runs in grouped.items()}
    agents: defaultdict[str, set[str | None]] = defaultdict(set)
    for key, name in names.items():
        agents[name].add(grouped[key][0].row.agent)
    return {
        key: name_with_agent(name, grouped[key][0].row.agent) if len(agents[name]) > 1 else name
        for key, name in names.items()
    }


def name_with_agent(name: str, agent: str | None) -> str:
    """Return the name of a series whose model has series with other agents, too."""
    return f"{name} with {agent}" if agent and agent != name else name


def _one_series(
    history: RunHistory, runs: tuple[SiteRun, ...], lane: NightlySeries | None, name: str, own_slug: str, key: str
) -> RunSeries:
    names = _unique_names(runs)
    rule = _rule_of(lane, runs, names) if lane is not None else GateRule()
    nights = [history.night(run.row, names[run.slug], run.row.begun_at or "") for run in runs if _is_night(run)]
    explained = _explained(lane, runs) if lane is not None else {}
    return RunSeries(name, runs, own_slug, lane is not None, key, judge_series(nights, rule), names, explained)


def _explained(lane: NightlySeries, runs: Sequence[SiteRun]) -> dict[str, Mapping[str, Any]]:
    """Return the non-empty explanations of a lane's runs, by slug."""
    by_path = {path.resolve(): found for path, found in lane.explained.items()}
    return {run.slug: found for run in runs if (found := by_path.get(run.row.path)) and found.get("sentence")}


def _rule_of(lane: NightlySeries, runs: Sequence[SiteRun], names: Mapping[str, str]) -> GateRule:
    """Return the gate's rule with the baseline's first night renamed: with many checkpoints it is `NIGHT NAME`."""
    begin = lane.rule.base_from
    if begin is None or begin in names.values():
        return lane.rule
    first = next((run for run in runs if run.night == begin.partition(" ")[0]), None)
    return lane.rule if first is None else replace(lane.rule, base_from=names[first.slug])


def _unique_names(runs: Sequence[SiteRun]) -> dict[str, str]:
    """Return unique names of a series' runs, by slug: the night, or the run if a night has several runs."""
    nights, own = (Counter(names) for names in zip(*((run.night, run.row.name) for run in runs), strict=True))
    shared = {
        run.slug: run.night if nights[run.night] == 1 else run.row.name if own[run.row.name] == 1 else run.slug
        for run in runs
    }
    return shared if len(set(shared.values())) == len(shared) else {run.slug: run.slug for run in runs}


def _is_night(run: SiteRun) -> bool:
    return run.has_score and run.row.status != "running"
