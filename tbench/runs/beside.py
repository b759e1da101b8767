"""Trials beside a run's own, in the room that those leave: the calibration of its tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from tbench.errors import UsageError
from tbench.runs.scheduling.admission import Admission, Demand, NoMachine
from tbench.runs.scheduling.slots import Slots

Say = Callable[[str], None]
Room = Callable[[Demand], AbstractAsyncContextManager[None]]
"""Holds room for a trial that needs so much, for the duration of a block."""
Calibrate = Callable[[Say, Room], Awaitable[Mapping[str, str]]]
"""Measures a run's tasks; gives those that are not healthy, by name with why. Raises UsageError."""


class Spare:
    """The slots, cpus and memory that a run does not use: there are some once all of its trials have begun.

    From then on nothing of it waits for a slot, so no trial is held back. Only another attempt at one may wait for cpus
    and memory that were taken meanwhile.
    """

    def __init__(
        self, slots: Slots, admission: Admission, trials: int, may_start: Callable[[], Awaitable[None]]
    ) -> None:
        """`trials` is how many the run has; `may_start` returns when it is not paused."""
        self._slots, self._admission, self._may_start = slots, admission, may_start
        self._left = trials
        self._all_begun = asyncio.Event()
        self.begun(0)

    def begun(self, trials: int = 1) -> None:
        """Have it that so many more trials of the run have a slot."""
        self._left -= trials
        if self._left <= 0:
            self._all_begun.set()

    @contextlib.asynccontextmanager
    async def room(self, demand: Demand) -> AsyncIterator[None]:
        """Hold a slot, and cpus and memory. Raises NoMachine."""
        await self._all_begun.wait()
        async with self._slots, self._admission.admit(demand):
            await self._may_start()
            yield

    async def calibrated(self, calibrate: Calibrate, say: Say) -> dict[str, str] | None:
        """What `calibrate` finds; None where it came to nothing, which costs a run nothing that it has."""
        await self._all_begun.wait()
        try:
            return dict(await calibrate(say, self.room))
        except (UsageError, NoMachine) as error:
            say(f"calibration: {str(error) or 'no machine is left'}")
            return None
