"""The order of trials: how long a run takes on the durations of real trials, beside the least that is possible.

They are those of three models on the same tasks, 445 trials each; what is known of one model's are the other two.
Without these durations there is no figure.
"""

from __future__ import annotations

import heapq
import json
import statistics
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from figures import Figures

from tbench.runs.plan import longest_first
from tbench.runs.trial_progress import TrialPlan

DURATIONS = Path(__file__).parents[3] / "shared" / "data" / "statistics" / "trials.jsonl"
SLOTS = 32


class Trial(NamedTuple):
    """A trial as it was."""

    model: str
    task: str
    seed: int
    seconds: float


async def of_trials(place: object, figures: Figures, scratch: Path) -> None:
    """The worst of the models, with the longest first and seed by seed; the floor is the least possible."""
    if not DURATIONS.is_file():
        return
    trials = [read(json.loads(line)) for line in DURATIONS.read_text().splitlines()]
    worst = {"makespan_over_bound": 0.0, "makespan_first_come_over_bound": 0.0}
    for model in {each.model for each in trials}:
        seconds = {(each.task, each.seed): each.seconds for each in trials if each.model == model}
        plans = [TrialPlan(trial="", task_name=task, seed=seed, task=None) for task, seed in by_seed(seconds)]
        least = max(*seconds.values(), sum(seconds.values()) / SLOTS)
        known = means(each for each in trials if each.model != model)
        for name, order in zip(worst, (longest_first(plans, known), plans), strict=True):
            took = makespan([seconds[each.task_name, each.seed] for each in order])
            worst[name] = max(worst[name], took / least)
    for name, ratio in worst.items():
        figures.add(name, ratio, "x", 1.0)


def read(line: Mapping[str, str]) -> Trial:
    begun, ended = (datetime.fromisoformat(line[key]) for key in ("started_at", "finished_at"))
    return Trial(line["model"], line["task"], int(line["seed"]), (ended - begun).total_seconds())


def by_seed(trials: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(trials, key=lambda each: each[::-1])


def means(trials: Iterable[Trial]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for each in trials:
        found.setdefault(each.task, []).append(each.seconds)
    return {task: statistics.mean(seconds) for task, seconds in found.items()}


def makespan(seconds: Iterable[float]) -> float:
    """When the last of them ends, of which each begins as soon as a slot is free."""
    slots = [0.0] * SLOTS
    for each in seconds:
        heapq.heapreplace(slots, slots[0] + each)
    return max(slots)
