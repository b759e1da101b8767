"""Lets a trial start when its cpus and memory fit what the machine has left. First come, first served."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """What one trial's container may use."""

    cpus: float
    memory_mb: float


class Admission:
    """A budget of cpus and memory.

    A demand above the whole budget is admitted alone: such a trial runs, but next to nothing else.
    Waiting is in order, so a large task is not starved by small ones.
    """

    def __init__(self, cpus: float, memory_mb: float) -> None:
        self._cpus = cpus
        self._memory_mb = memory_mb
        self._used_cpus = 0.0
        self._used_memory_mb = 0.0
        self._holders = 0
        self._waiting: deque[tuple[Demand, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def admit(self, demand: Demand) -> AsyncIterator[None]:
        """Hold `demand` for the duration of the block."""
        if self._waiting or not self._fits(demand):
            await self._queue(demand)
        else:
            self._take(demand)
        try:
            yield
        finally:
            self._give_back(demand)

    async def _queue(self, demand: Demand) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((demand, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove((demand, turn))
                self._wake()
            else:
                self._give_back(demand)
            raise

    def _fits(self, demand: Demand) -> bool:
        if self._holders == 0:
            return True
        return (
            self._used_cpus + demand.cpus <= self._cpus + 1e-9
            and self._used_memory_mb + demand.memory_mb <= self._memory_mb + 1e-9
        )

    def _take(self, demand: Demand) -> None:
        self._holders += 1
        self._used_cpus += demand.cpus
        self._used_memory_mb += demand.memory_mb

    def _give_back(self, demand: Demand) -> None:
        self._holders -= 1
        self._used_cpus -= demand.cpus
        self._used_memory_mb -= demand.memory_mb
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            demand, turn = self._waiting[0]
            # One that was cancelled in this turn of the loop is still in line: its task has not run since.
            if not turn.cancelled():
                if not self._fits(demand):
                    return
                self._take(demand)
                turn.set_result(None)
            self._waiting.popleft()
