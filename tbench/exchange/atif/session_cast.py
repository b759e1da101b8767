"""When in a recorded session each step of a trajectory began to type."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.trajectory import Step


@dataclass(frozen=True, slots=True)
class CastTimes:
    """The beginning of a recording, and seconds from there to the first action of steps, by step index.

    Steps that typed nothing, and those whose actions are not found in the recording, are missing.
    """

    began_at: datetime | None = None
    """As exact as the recording's header, which has whole seconds; None without a recording."""
    by_step_sec: dict[int, float] | None = None

    def of(self, step: Step) -> float | None:
        """Seconds from the recording's beginning to the step's first action."""
        return None if self.by_step_sec is None else self.by_step_sec.get(step.index)

    def at(self, seconds: float) -> datetime | None:
        """The moment so many seconds into the recording."""
        try:
            return None if self.began_at is None else self.began_at + timedelta(seconds=seconds)
        except OverflowError:
            return None


def cast_times(file: Path, steps: Sequence[Step], trial_began_at: datetime) -> CastTimes:
    """Read an asciicast (version 2) and match its input events with the steps' actions, in order.

    A recording begins after its trial, whatever the second in its header. What cannot be read or matched is left out:
    a recording is evidence beside a trajectory, not a part of it.
    """
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            began_at = _began_at(next(lines, ""), trial_began_at)
            typed = list(_typed(lines))
    except OSError:
        return CastTimes()
    found: dict[int, float] = {}
    at = 0
    for step in steps:
        for action in filter(None, step.actions):
            place = next((n for n in range(at, len(typed)) if typed[n][1] == action.replace("\0", "")), None)
            if place is None:
                break
            found.setdefault(step.index, typed[place][0])
            at = place + 1
    return CastTimes(began_at, found)


def _began_at(header: str, trial_began_at: datetime) -> datetime | None:
    try:
        told = datetime.fromtimestamp(json.loads(header)["timestamp"], UTC)
        return max(told, trial_began_at) if trial_began_at.tzinfo is not None else told
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return None


def _typed(lines: Iterator[str]) -> Iterator[tuple[float, str]]:
    for line in lines:
        # Output is most of a recording, and no input looks like it at its beginning.
        if '"i"' not in line[:40]:
            continue
        try:
            seconds, kind, text = json.loads(line)
        except (ValueError, TypeError):
            continue
        if kind == "i" and isinstance(seconds, int | float) and isinstance(text, str):
            yield float(seconds), text
