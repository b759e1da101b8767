"""The runs of a lane over the nights, as the gate sees them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tbench.history.index import RunHistory
from tbench.nightly.checkpoints import is_glob
from tbench.nightly.journal import CheckpointRecord, NightRecord
from tbench.scores.gate.nights import Night


@dataclass(frozen=True, slots=True)
class LaneRun:
    """One run of a lane that came to its end."""

    night: NightRecord
    checkpoint: CheckpointRecord

    @property
    def name(self) -> str:
        """What tables call it: the night, and the checkpoint where the lane has several."""
        lane, night = self.checkpoint.lane, self.night.name
        return f"{night} {self.checkpoint.slug}" if is_glob(lane) else night


def runs_of_lane(nights: Iterable[NightRecord], lane: str) -> list[LaneRun]:
    """A lane's runs that came to their end, oldest first."""
    return [
        LaneRun(night, each) for night in nights for each in night.checkpoints if each.lane == lane and each.has_run
    ]


def as_the_gate_sees(runs: Iterable[LaneRun], folder: Path, history: RunHistory) -> list[Night]:
    """The runs with their rewards and task hashes, out of the index. Raises UsageError for one that is not in it."""
    rows = ((each, history.run(folder / each.checkpoint.run)) for each in runs)
    return [history.night(row, each.name, each.night.begun_at) for each, row in rows]
