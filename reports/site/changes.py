"""What has changed from one run of a series to another: the score, and the tasks that fail or pass since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reports.names import task_page
from reports.site.content import Site, SiteRun
from tbench.reward import exact_mean, is_solved, mean
from tbench.scores.comparing.side import NothingInCommon, Pairing, Side, pair
from tbench.scores.statistics import Row, mean_std

_NORMAL_975 = 1.96


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """The difference of two scores over the tasks and seeds that both runs planned; trials without a verdict are 0."""

    points: float
    """A fraction: the later score less the earlier one."""
    se: float | None
    """Its standard error, paired by task; None for a single task."""
    tasks: int

    @property
    def direction(self) -> str:
        """`up` or `down` where that is more than chance allows at 95 %, else empty."""
        if self.se is None or abs(self.points) <= _NORMAL_975 * self.se:
            return ""
        return "up" if self.points > 0 else "down"


@dataclass(frozen=True, slots=True)
class MovedRate:
    """A task whose reward has changed, by the trials that have a verdict in both runs."""

    task: str
    before: float
    now: float
    is_new: bool
    """Whether it was solved before and is not at any seed now, or the other way round."""

    @property
    def moved(self) -> float:
        return self.now - self.before

    @property
    def page(self) -> str:
        return task_page(self.task)


@dataclass(frozen=True, slots=True)
class RunChange:
    """A run beside an earlier one of its series."""

    score: ScoreChange
    lower: tuple[MovedRate, ...]
    """What fell the most comes first; of these what is not solved at all any more."""
    higher: tuple[MovedRate, ...]
    silent: tuple[str, ...]
    """Tasks that had a verdict, and have none now."""


def score_change(site: Site, old: SiteRun, new: SiteRun) -> ScoreChange | None:
    """How the score has changed; None for runs that have no task in common."""
    pairing = _pairing(site, old, new)
    return None if pairing is None else _score_change(pairing)


def run_change(site: Site, old: SiteRun, new: SiteRun) -> RunChange | None:
    """How a run differs from an earlier one; None for runs that have no task in common."""
    pairing = _pairing(site, old, new)
    if pairing is None:
        return None
    rows = list(zip(pairing.tasks, pairing.first, pairing.second, strict=True))
    moved = [found for task, before, now in rows if (found := _moved(task, before, now)) is not None]
    return RunChange(
        score=_score_change(pairing),
        lower=_worst_first(each for each in moved if each.moved < 0),
        higher=_worst_first(each for each in moved if each.moved > 0),
        silent=tuple(task for task, before, now in rows if _has_verdict(before) and not _has_verdict(now)),
    )


def _pairing(site: Site, old: SiteRun, new: SiteRun) -> Pairing | None:
    first, second = (Side(run.row.name, site.rewards(run).table, site.rewards(run).hashes) for run in (old, new))
    try:
        return pair(first, second)
    except NothingInCommon:
        return None


def _score_change(pairing: Pairing) -> ScoreChange:
    rows = zip(pairing.first, pairing.second, strict=True)
    changes = [exact_mean(_filled(now)) - exact_mean(_filled(before)) for before, now in rows]
    se = mean_std([float(change) for change in changes]).sem
    return ScoreChange(float(sum(changes) / len(changes)), se, len(changes))


def _filled(row: Row) -> list[float]:
    return [0.0 if reward is None else reward for reward in row]


def _moved(task: str, before: Row, now: Row) -> MovedRate | None:
    """None for a task that has not moved, or has no pair of trials with verdicts."""
    pairs = [(a, b) for a, b in zip(before, now, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    old, new = mean([a for a, _ in pairs]), mean([b for _, b in pairs])
    if old == new:
        return None
    some, none = (before, now) if new < old else (now, before)
    return MovedRate(task, old, new, _is_solved(some) and not _is_solved(none))


def _is_solved(row: Row) -> bool:
    return any(reward is not None and is_solved(reward) for reward in row)


def _has_verdict(row: Row) -> bool:
    return any(reward is not None for reward in row)


def _worst_first(moved: Iterable[MovedRate]) -> tuple[MovedRate, ...]:
    return tuple(sorted(moved, key=lambda each: (-round(abs(each.moved), 6), not each.is_new, each.task)))
