"""Simulated histories of a nightly benchmark, judged by the gate: false alarms, drops seen, and how soon.

`PYTHONPATH=tests:. python tests/gate_histories.py` prints the tables of docs/gate.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from tbench.scores.gate.judge import judge
from tbench.scores.gate.nights import GateRule, Night
from tbench.scores.statistics import RewardTable

Chances = list[float]
"""How often each task is solved."""
Draw = Callable[[random.Random], float]


def terminal_bench(rng: random.Random) -> float:
    return rng.betavariate(0.5, 0.7)


@dataclass(frozen=True)
class Setting:
    """What is simulated: a benchmark of so many tasks, run with so many seeds, that drops at `dropped_at`."""

    points: float = 0.0
    seeds: int = 1
    tasks: int = 89
    nights: int = 60
    dropped_at: int = 30
    rule: GateRule = field(default_factory=GateRule)
    draw: Draw = terminal_bench
    broken: bool = False
    """Whether some tasks are lost altogether, instead of all being solved less often."""


@dataclass(frozen=True)
class Seen:
    """What the gate saw in many histories."""

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


def history(setting: Setting, rng: random.Random) -> list[Night]:
    names, seeds = tuple(f"task-{t}" for t in range(setting.tasks)), tuple(range(setting.seeds))
    before = [setting.draw(rng) for _ in names]
    after = lowered(before, setting.points, rng, broken=setting.broken)
    nights = []
    for number in range(setting.nights):
        chances = before if number < setting.dropped_at else after
        rows = tuple(tuple(float(rng.random() < chance) for _ in seeds) for chance in chances)
        nights.append(Night(f"night-{number}", f"2026-01-01T{number:05}", RewardTable(names, seeds, rows), {}))
    return nights


def seen(setting: Setting, histories: int, seed: int = 0) -> Seen:
    """Judge so many histories. The verdicts of all nights are in the path of the last one's."""
    rng = random.Random(seed)
    quiet_nights = false_alarms = alarmed = judged = 0
    waits: list[float] = []
    for _ in range(histories):
        alarms = [night.alarm for night in judge(history(setting, rng), setting.rule).path]
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
