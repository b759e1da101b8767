"""Lets a trial start when its cpus, memory and GPUs fit what the machine has left. First come, first served.

With a limit on the machine's load, no trial starts either while other processes keep the machine busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tbench.runs.host import load_per_cpu

CHECK_EVERY_SEC = 5.0


@dataclass(frozen=True)
class Demand:
    """What one trial's container may use."""

    cpus: float
    memory_mb: float
    gpus: int = 0


class Admission:
    """A budget of cpus, memory and GPUs (None: not known how many, and no bound).

    A demand above the whole budget is admitted alone: such a trial runs, but next to nothing else.
    Waiting is in order, so a large task is not starved by small ones. `max_load` (load average over one minute / cpus)
    holds back every trial but a first: while none is under way the load is not ours, and a run must get on.
    """

    def __init__(
        self,
        cpus: float,
        memory_mb: float,
        *,
        gpus: int | None = None,
        max_load: float | None = None,
        load: Callable[[], float | None] = load_per_cpu,
        say: Callable[[str], None] = lambda _: None,
        check_every_sec: float = CHECK_EVERY_SEC,
    ) -> None:
        self._cpus = cpus
        self._memory_mb = memory_mb
        self._gpus = math.inf if gpus is None else gpus
        self._used_gpus = 0
        self._used_cpus = 0.0
        self._used_memory_mb = 0.0
        self._holders = 0
        self._waiting: deque[tuple[Demand, asyncio.Future[None]]] = deque()
        self._max_load, self._load, self._say = max_load, load, say
        self._check_every_sec = check_every_sec
        self._next_check: asyncio.TimerHandle | None = None
        self._is_held_back = False

    @asynccontextmanager
    async def admit(self, demand: Demand) -> AsyncIterator[None]:
        """Hold `demand` for the duration of the block."""
        if self._waiting or not self._can_start(demand):
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
                self._admit_waiting()
            else:
                self._give_back(demand)
            raise

    def _can_start(self, demand: Demand) -> bool:
        return self._fits(demand) and (self._holders == 0 or not self._is_too_busy())

    def _is_too_busy(self) -> bool:
        """Whether the load is above the limit; if so, a later check of it is arranged."""
        load = self._load() if self._max_load is not None else None
        if load is None or self._max_load is None or load <= self._max_load:
            self._is_held_back = False
            return False
        if not self._is_held_back:
            self._is_held_back = True
            self._say(f"load {load:.2f} per cpu is above --max-load {self._max_load:g}: the next trial waits")
        if self._next_check is None:
            self._next_check = asyncio.get_running_loop().call_later(self._check_every_sec, self._check_again)
        return True

    def _check_again(self) -> None:
        self._next_check = None
        self._admit_waiting()

    def _fits(self, demand: Demand) -> bool:
        if self._holders == 0:
            return True
        return (
            self._used_cpus + demand.cpus <= self._cpus + 1e-9
            and self._used_memory_mb + demand.memory_mb <= self._memory_mb + 1e-9
            and self._used_gpus + demand.gpus <= self._gpus
        )

    def _take(self, demand: Demand) -> None:
        self._holders += 1
        self._used_cpus += demand.cpus
        self._used_memory_mb += demand.memory_mb
        self._used_gpus += demand.gpus

    def _give_back(self, demand: Demand) -> None:
        self._holders -= 1
        self._used_cpus -= demand.cpus
        self._used_memory_mb -= demand.memory_mb
        self._used_gpus -= demand.gpus
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting:
            demand, turn = self._waiting[0]
            # One that was cancelled in this turn of the loop is still in line: its task has not run since.
            if not turn.cancelled():
                if not self._can_start(demand):
                    return
                self._take(demand)
                turn.set_result(None)
            self._waiting.popleft()
