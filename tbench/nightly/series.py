"""The runs of a lane over the nights, as the gate and a comparison see them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tbench.nightly.journal import NightRecord, Nights

def runs_of_lane(nights: Iterable[NightRecord], lane: str) -> list[str]:
    """The names of a lane's runs that came to their end, oldest first."""
    return [
        each.run for night in nights for each in night.checkpoints if each.lane == lane and has_run(each)
    ]
