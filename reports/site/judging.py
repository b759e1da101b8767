"""What the gate said of each run of a series when that was the last one; one verdict tells of all nights before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import pairwise

from tbench.errors import UsageError
from tbench.scores.gate.judge import judge
from tbench.scores.gate.nights import GateRule, Night
from tbench.scores.gate.verdict import GateVerdict, JudgedNight


@dataclass(frozen=True, slots=True)
class AlarmSpan:
    """An alarm over the nights that it stood, all by name."""

    first: str
    """The night that raised it."""
    last: str
    """The last night at which it stood."""
    low: tuple[str, ...]
    """The nights from the likeliest first one of the drop to the last of the alarm."""
    over: str | None
    """The night at which it ended; None while it stands."""


@dataclass(frozen=True, slots=True)
class JudgedSeries:
    """The nights of a series that have a score, with what the gate says of them."""

    rule: GateRule = field(default_factory=GateRule)
    nights: tuple[Night, ...] = ()
    """Oldest first, each with a name of its own."""
    verdict: GateVerdict | None = None
    """About the last of them."""
    by_name: Mapping[str, JudgedNight] = field(default_factory=dict)
    alarms: tuple[AlarmSpan, ...] = ()
    """Oldest first."""

    def verdict_at(self, name: str) -> GateVerdict | None:
        """What was to be said when the night of this name was the last one; None for one that is not judged."""
        if self.verdict is not None and self.verdict.night.name == name:
            return self.verdict
        places = [at for at, night in enumerate(self.nights) if night.name == name]
        return _verdict(self.nights[: places[0] + 1], self.rule) if places else None


def judged(nights: Sequence[Night], rule: GateRule) -> JudgedSeries:
    """Judge a series, which is given oldest first."""
    if not nights:
        return JudgedSeries(rule)
    verdicts = list(_verdicts(nights, rule))
    by_name = {night.name: night for verdict in reversed(verdicts) for night in verdict.path}
    known = JudgedSeries(rule, tuple(nights), verdicts[0], by_name)
    return replace(known, alarms=tuple(span for verdict in reversed(verdicts) for span in _spans(known, verdict)))


def _verdicts(nights: Sequence[Night], rule: GateRule) -> Iterator[GateVerdict]:
    """The verdict on the last night, then on the last of those with which it is not compared, and so on."""
    known: set[str] = set()
    for end in range(len(nights), 0, -1):
        if nights[end - 1].name not in known:
            verdict = _verdict(nights[:end], rule)
            known |= {night.name for night in verdict.path} | {nights[end - 1].name}
            yield verdict


def _verdict(nights: Sequence[Night], rule: GateRule) -> GateVerdict:
    """The verdict on the last of some nights; those before the baseline's first are judged as if there were none."""
    try:
        return judge(nights, rule if _begins_in(nights, rule) else replace(rule, base_from=None))
    except UsageError:  # the baseline's first night is not in the series any more
        return judge(nights, replace(rule, base_from=None))


def _begins_in(nights: Sequence[Night], rule: GateRule) -> bool:
    if rule.base_from is None or any(night.name == rule.base_from for night in nights):
        return True
    try:
        day = date.fromisoformat(rule.base_from)
    except ValueError:
        return False
    return any(night.day is not None and night.day >= day for night in nights)


def _spans(series: JudgedSeries, verdict: GateVerdict) -> Iterator[AlarmSpan]:
    """The alarms among the nights that were compared for a verdict."""
    path = verdict.path
    starts = [0] if path[0].alarm else []
    starts += [at for at, (before, night) in enumerate(pairwise(path), start=1) if night.alarm and not before.alarm]
    for start in starts:
        end = next((at for at in range(start, len(path)) if not path[at].alarm), len(path))
        over = path[end].name if end < len(path) else None
        names = tuple(night.name for night in path[_drop_begins(series, path, start, end - 1) : end])
        yield AlarmSpan(path[start].name, path[end - 1].name, names, over)


def _drop_begins(series: JudgedSeries, path: Sequence[JudgedNight], start: int, end: int) -> int:
    """The place of the night at which the drop began; that of the alarm where nothing else is known."""
    verdict = series.verdict_at(path[end].name)
    since = verdict.since if verdict is not None else None
    places = (at for at, night in enumerate(path[:start]) if since is not None and night.name == since.name)
    return next(places, start)
