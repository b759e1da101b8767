"""Watches this machine while trials run: load, memory, clocks. Readings are cheap: they come from files in /proc.

Time in suspension is not charged to any trial: deadlines use CLOCK_MONOTONIC, which stops in suspension. The values in
results only warn readers who compare times.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self
from weakref import WeakSet

from harness.concurrency import cancel
from tbench.results import HostSample

EVERY_SEC = 5.0
JUMP_SEC = 1.0
"""Smallest difference between two readings that counts as a clock jump; below it, clocks are only being adjusted."""
_CLOCK_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


@dataclass(frozen=True)
class Reading:
    """One reading of the machine's state; a field is None if the machine does not report it."""

    load: float | None
    """Load average over one minute / CPUs."""
    memory_available_mb: float | None
    memory_stall: float | None
    """Share of the last ten seconds in which processes waited for memory."""
    suspended_sec: float
    """Seconds that the machine was suspended since boot."""
    clock_ahead_sec: float
    """Wall clock minus monotonic clock, in seconds: changes when the clock is set, and in a suspend."""


class Machine(Protocol):
    """A source of readings: this machine, or a test's."""

    def read(self) -> Reading: ...


class ThisMachine:
    """Readings from Linux's /proc. Other systems report little more than the load."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def read(self) -> Reading:
        monotonic = time.monotonic()
        suspended = 0.0 if _CLOCK_BOOTTIME is None else time.clock_gettime(_CLOCK_BOOTTIME) - monotonic
        stall = self._number("pressure/memory", r"^some avg10=([\d.]+)")
        available_kb = self._number("meminfo", r"^MemAvailable:\s+(\d+)")
        return Reading(
            load=load_per_cpu(),
            memory_available_mb=None if available_kb is None else available_kb / 1024,
            memory_stall=None if stall is None else stall / 100,
            suspended_sec=suspended,
            clock_ahead_sec=time.time() - monotonic,
        )

    def _number(self, name: str, pattern: str) -> float | None:
        try:
            found = re.search(pattern, (self._proc / name).read_text(), re.MULTILINE)
        except OSError:
            return None
        return float(found[1]) if found else None


def load_per_cpu() -> float | None:
    """Return the load average over one minute / CPUs; None if the machine does not report it."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return None


class Observation:
    """Highest load and memory stall, least available memory and sum of clock jumps since the observation began."""

    def __init__(self, first: Reading, take_reading: Callable[[], None]) -> None:
        self._take_reading = take_reading
        self._load, self._stall = first.load, first.memory_stall
        self._available_mb = first.memory_available_mb
        self._jumps_sec = 0.0

    def add(self, reading: Reading, jump_sec: float) -> None:
        self._load = _extreme(max, self._load, reading.load)
        self._stall = _extreme(max, self._stall, reading.memory_stall)
        self._available_mb = _extreme(min, self._available_mb, reading.memory_available_mb)
        self._jumps_sec += jump_sec

    def sample(self) -> HostSample:
        """Take another reading, and return what was observed so far."""
        self._take_reading()
        return HostSample(
            load_max=_rounded(self._load, 2),
            memory_available_min_mb=_rounded(self._available_mb, 0),
            memory_stall_max=_rounded(self._stall, 4),
            clock_jump_sec=round(self._jumps_sec, 1),
        )


class HostWatch:
    """Takes a reading every few seconds while it is entered, and whenever a trial begins or ends."""

    def __init__(self, machine: Machine | None = None, every_sec: float = EVERY_SEC) -> None:
        self._machine = machine or ThisMachine()
        self._every_sec = every_sec
        self._last = self._machine.read()
        self._open: WeakSet[Observation] = WeakSet()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch(), name="host watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            await cancel(self._task)

    def observe(self) -> Observation:
        """Begin an observation that is kept up to date while it is referenced."""
        self.take_reading()
        observation = Observation(self._last, self.take_reading)
        self._open.add(observation)
        return observation

    def take_reading(self) -> None:
        """Read the machine once, for all observations."""
        before, now = self._last, self._machine.read()
        # A suspend changes both values by its length, so they are not added up.
        sizes = (now.suspended_sec - before.suspended_sec, now.clock_ahead_sec - before.clock_ahead_sec)
        jump_sec = max(map(abs, sizes))
        self._last = now
        for observation in self._open:
            observation.add(now, jump_sec if jump_sec >= JUMP_SEC else 0.0)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_sec)
            self.take_reading()


def _extreme(choose: Callable[[float, float], float], one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
