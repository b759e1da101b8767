"""Ends agents that write more than their tasks' `storage_mb`, or fill the disk, where no quota stops them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from harness.concurrency import cancel
from tbench.errors import TbenchError

RESERVE_MB = 1024.0
"""If fewer megabytes are free, the agent that has written most is ended, provided that it wrote more than this."""
_EVERY_SEC = 1.0
_SELDOM_SEC = 30.0
"""Seconds after which containers with a limit are measured even if the disk has lost less space than they may use."""
_PAUSES = 5.0
"""Shortest pause after measuring, as a multiple of the time that measuring took: it looks at all written files."""


@dataclass(eq=False)
class WatchedDisk:
    """The disk use of one container, and a way to end its processes."""

    trial: str
    limit_mb: float | None
    """The task's limit; None for no limit, or if the engine enforces it."""
    end_processes: Callable[[], Awaitable[None]]
    written_mb: float = 0.0
    is_at_work: bool = False
    """Whether the agent works in it. Tests may exceed the task's limit."""
    _is_full: asyncio.Event = field(default_factory=asyncio.Event)
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def exceeded(self) -> asyncio.Event:
        """Wait until the agent has to end; returns an event that is set once its processes are killed."""
        self.is_at_work = True
        try:
            await self._is_full.wait()
        finally:
            self.is_at_work = False
        return self._is_over

    @property
    def left_mb(self) -> float:
        """Megabytes that the agent may still write."""
        return math.inf if self.limit_mb is None or not self.is_at_work else self.limit_mb - self.written_mb

    async def end(self) -> None:
        self._is_full.set()
        try:
            await self.end_processes()
        finally:
            self._is_over.set()


class DiskWatch:
    """Checks the free space of the containers' disk every second, and measures containers when much space is gone."""

    def __init__(
        self,
        free_mb: Callable[[], Awaitable[float | None]],
        measure: Callable[[Collection[str]], Awaitable[Mapping[str, float]]],
        say: Callable[[str], None],
    ) -> None:
        """`free_mb` returns None if the disk is on another machine.

        `measure` returns the megabytes written by each of the containers that still run; it may raise TbenchError.
        """
        self._free_mb, self._measure, self._say = free_mb, measure, say
        self._disks: dict[str, WatchedDisk] = {}
        self._task: asyncio.Task[None] | None = None
        self._free_then: float | None = None
        self._measured_at, self._measuring_sec = time.monotonic(), 0.0

    def add(
        self, container: str, trial: str, limit_mb: float | None, end_processes: Callable[[], Awaitable[None]]
    ) -> WatchedDisk:
        """Watch a container until it no longer runs."""
        disk = self._disks[container] = WatchedDisk(trial, limit_mb, end_processes)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        return disk

    async def close(self) -> None:
        self._disks.clear()
        if self._task is not None:
            await cancel(self._task)

    async def _watch(self) -> None:
        self._free_then = await self._free_mb()
        while self._disks:
            await asyncio.sleep(_EVERY_SEC)
            free = await self._free_mb()
            if self._is_due(free):
                with contextlib.suppress(TbenchError):  # the engine is away or busy: tried again
                    await self._look(free)

    def _is_due(self, free: float | None) -> bool:
        rest = time.monotonic() - self._measured_at
        left = min((disk.left_mb for disk in self._disks.values()), default=math.inf)
        if rest < _PAUSES * self._measuring_sec:
            return False
        if rest >= _SELDOM_SEC and left < math.inf:
            return True
        if free is None or self._free_then is None:
            return False
        lost = self._free_then - free
        return lost >= left or (free < RESERVE_MB and lost > 0)

    async def _look(self, free: float | None) -> None:
        """Measure all containers, and end those that have written too much. Raises TbenchError."""
        started, asked = time.monotonic(), tuple(self._disks)
        try:
            written = await self._measure(asked)
        finally:
            self._measured_at = time.monotonic()
            self._measuring_sec = self._measured_at - started
        self._free_then = free
        for name in asked:
            if name not in written:
                self._disks.pop(name, None)
        for name, disk in self._disks.items():
            disk.written_mb = written.get(name, 0.0)
        ending = {
            name: f"more than its storage_mb, {disk.limit_mb:,.0f}"
            for name, disk in self._disks.items()
            if disk.left_mb < 0
        }
        if free is not None and free < RESERVE_MB and self._disks:
            largest = max(self._disks, key=lambda name: self._disks[name].written_mb)
            if self._disks[largest].written_mb > RESERVE_MB:
                ending.setdefault(largest, f"and the disk has only {free:,.0f} MB left")
        for name, why in ending.items():
            disk = self._disks.pop(name)
            self._say(f"{disk.trial}: wrote {disk.written_mb:,.0f} MB, {why}: its agent ends (disk_limit)")
            await disk.end()
