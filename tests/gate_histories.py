"""Simulated histories of a nightly benchmark, judged by the gate: false alarms, drops seen, and how soon.

`PYTHONPATH=tests:. python tests/gate_histories.py` prints these tables in an hour; docs/nightly.md has some of
the rows. Each cell is of 400 histories (100 for "some tasks lost" and "h = 4", 20 of a year), of 89 tasks with
1 seed if the row does not say otherwise. Each task is solved with its own chance, drawn from Beta(0.5, 0.7);
from night 30 on all chances are lower by the same share. A cell holds the false alarms per 100 nights (in
brackets: nights with an alarm per 100), the share of drops seen within 30 nights, and the median nights until
then.

| 60 nights | no drop | 3 points | 6 points | 10 points |
|---|---|---|---|---|
| 89 tasks, 1 seed | 0.11 (0.5) | 0.06 / 72 % / 16 | 0.06 / 99 % / 5 | 0.06 / 100 % / 3 |
| 89 tasks, 3 seeds | 0.14 (0.9) | 0.13 / 99 % / 6 | 0.13 / 100 % / 3 | 0.13 / 100 % / 2 |
| 89 tasks, 1 seed, some tasks lost | 0.10 (1.3) | 0.15 / 73 % / 15 | 0.15 / 100 % / 4 | 0.15 / 100 % / 3 |
| 89 tasks, 1 seed, h = 4 | 0.19 (0.4) | 0.20 / 73 % / 17 | 0.20 / 99 % / 4 | 0.20 / 100 % / 2 |
| 89 tasks, 1 seed, C alone (min_se = 0) | 0.28 (2.5) | 0.25 / 81 % / 13 | 0.25 / 99 % / 5 | 0.25 / 100 % / 3 |
| 89 tasks, 1 seed, 5 nights of baseline | 0.11 (0.9) | 0.09 / 73 % / 16 | 0.09 / 99 % / 5 | 0.09 / 100 % / 3 |
| 20 tasks, 1 seed | 0.13 (1.1) | 0.15 / 22 % / – | 0.15 / 70 % / 17 | 0.15 / 97 % / 7 |
| 20 tasks, 5 seeds | 0.11 (0.6) | 0.10 / 74 % / 15 | 0.10 / 100 % / 5 | 0.10 / 100 % / 3 |
| 89 tasks, 1 seed, a year | 0.08 (0.4) | 0.07 / 88 % / 14.5 | 0.07 / 100 % / 5 | 0.07 / 100 % / 3 |
| not the gate: 5 % below the night before | 43.38 (35.5) | 43.38 (35.3) | 43.38 (35.3) | 43.38 (35.3) |
| nights differ 1.4 times as much | 0.42 (2.4) | 0.42 / 56 % / 23.5 | 0.42 / 93 % / 7 | 0.42 / 99 % / 4 |
| the same, each like the night before by 0.5 | 1.00 (8.0) | 1.06 / 67 % / 18 | 1.06 / 88 % / 7 | 1.06 / 99 % / 4 |
| 3 trials in 10 end as the night before | 0.18 (1.1) | 0.19 / 44 % / – | 0.19 / 94 % / 8 | 0.19 / 100 % / 4 |
| 5 trials in 10 end as the night before | 0.12 (1.2) | 0.15 / 38 % / – | 0.15 / 88 % / 11 | 0.15 / 100 % / 5 |
| 7 trials in 10 end as the night before | 0.34 (4.5) | 0.43 / 37 % / – | 0.43 / 82 % / 12 | 0.43 / 99 % / 5 |
| elsewhere: CUSUM, ten fixed nights, 1 seed | 0.17 | 0.1 / 78 % / 13 | 0.1 / 98 % / 6 | 0.3 / 100 % / 3 |
| elsewhere: CUSUM, ten fixed nights, 3 seeds | | 0.3 / 97 % / 6 | 0.6 / 100 % / 3 | 0.4 / 100 % / 2 |

| no drop | false alarms per 100 nights | nights with an alarm per 100 |
|---|---|---|
| 89 tasks, each solved 1,999 times in 2,000 | 0.17 | 0.3 |
| 89 tasks, each solved 199 times in 200 | 0.48 | 2.1 |
| 89 tasks, 70 % of them always or never solved | 0.08 | 0.3 |
| 11 tasks | 0.09 | 0.3 |
| 11 tasks, each solved 97 times in 100 | 0.38 | 1.3 |
| 2 tasks | 0.06 | 0.2 |
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from tbench.scores.gate.judge import judge
from tbench.scores.gate.nights import GateRule, Night
from tbench.scores.statistics import RewardTable, score

Chances = list[float]
"""How often each task is solved."""
Draw = Callable[[random.Random], float]
Alarms = Callable[[list[Night], GateRule], list[bool]]
REFERENCE = """\
| elsewhere: CUSUM, ten fixed nights, 1 seed | 0.17 | 0.1 / 78 % / 13 | 0.1 / 98 % / 6 | 0.3 / 100 % / 3 |
| elsewhere: CUSUM, ten fixed nights, 3 seeds | | 0.3 / 97 % / 6 | 0.6 / 100 % / 3 | 0.4 / 100 % / 2 |"""
"""The figures to be reached, from an independent simulation of a simpler rule; medians are of the drops seen."""


def terminal_bench(rng: random.Random) -> float:
    return rng.betavariate(0.5, 0.7)


@dataclass(frozen=True)
class Setting:
    """A simulation: a benchmark of so many tasks, run with so many seeds, that drops at `dropped_at`."""

    points: float = 0.0
    seeds: int = 1
    tasks: int = 89
    nights: int = 60
    dropped_at: int = 30
    rule: GateRule = field(default_factory=GateRule)
    draw: Draw = terminal_bench
    weather: float = 0.0
    """Standard deviation of what moves all tasks of a night at once, in log odds."""
    sticky: float = 0.0
    """Correlation of that with the night before, and chance of a trial to end as it did the night before."""
    alarms: Alarms = field(default_factory=lambda: by_gate)
    broken: bool = False
    """Whether some tasks are lost altogether, instead of all being solved less often."""


@dataclass(frozen=True)
class Seen:
    """Findings of the gate in many histories."""

    false_alarms_per_100: float
    """First alarms without a drop per 100 nights that were judged until then."""
    alarmed_per_100: float
    """Nights with an alarm without a drop, per 100 that were judged."""
    share: float | None
    """Drops with an alarm within the nights that follow."""
    median_nights: float
    """Nights until then, the first included; of all drops, where those not seen take forever."""
    median_of_seen: float


def lowered(chances: Chances, points: float, rng: random.Random, *, broken: bool) -> Chances:
    """The chances after a drop of the expected score by so many points, or to 0."""
    loss = points / 100 * len(chances)
    if not broken:
        left = max(0.0, 1.0 - loss / sum(chances))
        return [chance * left for chance in chances]
    lower = list(chances)
    for place in rng.sample(range(len(chances)), len(chances)):
        lost = min(loss, lower[place])
        lower[place] -= lost
        loss -= lost
    return lower


def moved(chances: Chances, log_odds: float) -> Chances:
    """The chances on a better or worse night."""
    odds = math.exp(log_odds)
    return [chance * odds / (1.0 - chance + chance * odds) for chance in chances] if log_odds else chances


def history(setting: Setting, rng: random.Random) -> list[Night]:
    names, seeds = tuple(f"task-{t}" for t in range(setting.tasks)), tuple(range(setting.seeds))
    before = [setting.draw(rng) for _ in names]
    after = lowered(before, setting.points, rng, broken=setting.broken)
    nights: list[Night] = []
    weather, fresh = rng.gauss(0.0, 1.0), math.sqrt(1.0 - setting.sticky**2)
    last: tuple[tuple[float, ...], ...] = ()
    for number in range(setting.nights):
        weather = setting.sticky * weather + fresh * rng.gauss(0.0, 1.0)
        chances = moved(before if number < setting.dropped_at else after, weather * setting.weather)
        rows = tuple(tuple(float(rng.random() < chance) for _ in seeds) for chance in chances)
        if setting.sticky and not setting.weather and number not in (0, setting.dropped_at):
            rows = tuple(
                tuple(old if rng.random() < setting.sticky else new for old, new in zip(*both, strict=True))
                for both in zip(last, rows, strict=True)
            )
        last = rows
        nights.append(Night(f"night-{number}", f"2026-01-01T{number:05}", RewardTable(names, seeds, rows), {}))
    return nights


def by_gate(nights: list[Night], rule: GateRule) -> list[bool]:
    """Whether there is an alarm, night by night: the verdicts of all nights are in the path of the last one's."""
    return [night.alarm for night in judge(nights, rule).path]


def by_ratio(nights: list[Night], rule: GateRule) -> list[bool]:
    """The simulation for an alarm where the score is 5 % below that of the night before."""
    scores = [score(night.table) for night in nights]
    return [False, *(now < 0.95 * before for before, now in pairwise(scores))]


def seen(setting: Setting, histories: int, seed: int = 0) -> Seen:
    """Judge so many histories."""
    rng = random.Random(seed)
    quiet_nights = false_alarms = alarmed = judged = 0
    waits: list[float] = []
    for _ in range(histories):
        alarms = setting.alarms(history(setting, rng), setting.rule)
        end = setting.dropped_at if setting.points else setting.nights
        before = alarms[setting.rule.base_nights : end]
        judged += len(before)
        alarmed += sum(before)
        false = next((at for at, alarm in enumerate(before) if alarm), None)
        quiet_nights += len(before) if false is None else false + 1
        if false is not None:
            false_alarms += 1
        elif setting.points:
            after = alarms[setting.dropped_at :]
            waits.append(next((at + 1.0 for at, alarm in enumerate(after) if alarm), float("inf")))
    found = [wait for wait in waits if wait < float("inf")]
    return Seen(
        100 * false_alarms / quiet_nights,
        100 * alarmed / judged,
        len(found) / len(waits) if waits else None,
        median(waits) if waits else float("nan"),
        median(found) if found else float("nan"),
    )


POINTS = (0.0, 3.0, 6.0, 10.0)


def nights_shown(nights: float) -> str:
    return f"{nights:g}" if nights < float("inf") else "–"


def row(name: str, histories: int, **known: Any) -> str:
    """A row of a table: false alarms per 100 nights / drops seen / median nights, for no drop and each drop."""
    cells = []
    for points in POINTS:
        found = seen(Setting(points=points, **known), histories)
        rate = f"{found.false_alarms_per_100:.2f}"
        if found.share is None:
            cells.append(f"{rate} ({found.alarmed_per_100:.1f})")
        else:
            cells.append(f"{rate} / {100 * found.share:.0f} % / {nights_shown(found.median_nights)}")
    return f"| {name} | {' | '.join(cells)} |"


def rows() -> dict[str, dict[str, Any]]:
    """Simulations by name of their row."""
    rule = GateRule
    return {
        "89 tasks, 1 seed": {},
        "89 tasks, 3 seeds": {"seeds": 3},
        "89 tasks, 1 seed, some tasks lost": {"broken": True},
        "89 tasks, 1 seed, h = 4": {"rule": rule(h=4.0)},
        "89 tasks, 1 seed, C alone (min_se = 0)": {"rule": rule(min_se=0.0)},
        "89 tasks, 1 seed, 5 nights of baseline": {"rule": rule(base_nights=5)},
        "20 tasks, 1 seed": {"tasks": 20},
        "20 tasks, 5 seeds": {"tasks": 20, "seeds": 5},
        "89 tasks, 1 seed, a year": {"nights": 365, "dropped_at": 335},
        "not the gate: 5 % below the night before": {"alarms": by_ratio},
        "89 tasks, 1 seed, nights differ 1.4 times as much": {"weather": 0.29},
        "the same, each like the night before by 0.5": {"weather": 0.29, "sticky": 0.5},
        "89 tasks, 1 seed, 3 trials in 10 end as the night before": {"sticky": 0.3},
        "89 tasks, 1 seed, 5 trials in 10 end as the night before": {"sticky": 0.5},
        "89 tasks, 1 seed, 7 trials in 10 end as the night before": {"sticky": 0.7},
    }


def steady() -> dict[str, dict[str, Any]]:
    """Benchmarks that hardly vary, or are small: only false alarms are counted."""
    return {
        "89 tasks, each solved 1,999 times in 2,000": {"draw": lambda _: 0.9995},
        "89 tasks, each solved 199 times in 200": {"draw": lambda _: 0.995},
        "89 tasks, 70 % of them always or never solved": {
            "draw": lambda rng: rng.choice((0.0, 1.0)) if rng.random() < 0.7 else rng.betavariate(0.5, 0.7)
        },
        "11 tasks": {"tasks": 11},
        "11 tasks, each solved 97 times in 100": {"tasks": 11, "draw": lambda _: 0.97},
        "2 tasks": {"tasks": 2},
    }


def main() -> None:
    """Print the tables; the first argument is the number of histories for each cell."""
    histories = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    print(f"| {histories} histories of 60 nights | no drop | 3 points | 6 points | 10 points |\n|---|---|---|---|---|")
    for name, known in rows().items():
        print(row(name, histories // 5 if "nights" in known else histories, **known), flush=True)
    print(REFERENCE)
    print("\n| no drop | false alarms per 100 nights | nights with an alarm per 100 |\n|---|---|---|")
    for name, known in steady().items():
        found = seen(Setting(**known), histories)
        print(f"| {name} | {found.false_alarms_per_100:.2f} | {found.alarmed_per_100:.1f} |", flush=True)


if __name__ == "__main__":
    main()
