"""A machine of a fleet, as it is watched: whether it answers, and what is to be done when it is lost or back."""

from __future__ import annotations

import asyncio
from typing import Protocol

from tbench.errors import UsageError
from tbench.sandbox.backend import Backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine, EngineError

PROBE_SEC = 10.0
"""Time limit of one look at a machine."""
RECOVER_SEC = 600.0
"""Time limit of making a machine ready again."""


class FleetMachine(Protocol):
    """A machine of a fleet."""

    @property
    def name(self) -> str:
        """Its name in messages and results."""

    @property
    def backend(self) -> Backend:
        """What makes sandboxes on it."""

    async def answers(self) -> str:
        """What is wrong with it, empty where nothing is. Bounded; raises nothing."""

    def give_up(self) -> None:
        """Take it that the machine is gone: whatever is asked of it fails at once from now on."""

    async def recover(self) -> int:
        """Get it ready again, and remove what it had; returns how many sandboxes that were. Raises TbenchError."""

    def close(self) -> None:
        """Release what leads to it. Never raises."""


class Way:
    """What leads to an engine: nothing, where its address is one that can be connected to."""

    async def mend(self) -> str:
        """Repair it where it is broken, which may take until later; why it is, empty where it is not."""
        return ""

    def close(self) -> None:
        """Take it away. Never raises."""


class EngineMachine:
    """A machine with a container engine."""

    def __init__(self, name: str, engine: Engine, backend: DockerBackend, way: Way) -> None:
        self.name = name
        self.engine = engine
        self.backend = backend
        self._way = way

    async def answers(self) -> str:
        return await self._way.mend() or await self.engine.answers(PROBE_SEC)

    def give_up(self) -> None:
        self.engine.give_up()

    async def recover(self) -> int:
        self.engine.take_up()
        try:
            async with asyncio.timeout(RECOVER_SEC):
                return await self.backend.recover()
        except BaseException as error:
            self.engine.give_up()
            if isinstance(error, EngineError | TimeoutError):
                raise UsageError(str(error) or f"it takes longer than {RECOVER_SEC:.0f} s to make it ready") from error
            raise

    def close(self) -> None:
        self.engine.close()
        self._way.close()
