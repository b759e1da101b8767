"""Divides the trials of a run among shards, so that each machine finds the same division without asking another."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tbench.config.document import PlannedShard
from tbench.config.shard import Shard


class Weighed(NamedTuple):
    """A trial and the seconds that it is expected to take."""

    task: str
    seed: int
    seconds: float


def divide(trials: Iterable[Weighed], count: int) -> list[list[Weighed]]:
    """The trials in `count` parts that are expected to take about as long as each other.

    The longest goes first, to the part that has least so far (Graham's LPT rule), so two parts differ by no more than
    one trial. Among trials of equal length a hash decides, so that neither the seeds of a task nor its neighbours keep
    together. The order in which the trials are given plays no role.
    """
    parts: list[list[Weighed]] = [[] for _ in range(count)]
    loads = [(0.0, 0, index) for index in range(count)]
    for trial in sorted(
        trials, key=lambda each: (-each.seconds, _digest([each.task, each.seed]), each.task, each.seed)
    ):
        seconds, number, index = loads[0]
        parts[index].append(trial)
        heapq.heapreplace(loads, (seconds + trial.seconds, number + 1, index))
    return parts


def planned_shard(trials: Sequence[Weighed], shard: Shard) -> PlannedShard:
    """The trials of one shard, with a digest over all: shards of the same division have the same."""
    own = divide(trials, shard.count)[shard.index]
    whole = sorted((each.task, each.seed, round(each.seconds, 3)) for each in trials)
    return PlannedShard(
        index=shard.index,
        count=shard.count,
        digest=_digest([shard.count, whole]),
        trials=tuple(sorted((each.task, each.seed) for each in own)),
    )


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
