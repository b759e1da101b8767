"""Images as they were, in containers beside those of trials: what an agent changed is told by them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

from tbench.sandbox.backend import Sandbox
from tbench.sandbox.docker.create import ContainerLimits, Recipe

_SMALL = ContainerLimits(cpus=1.0, memory_mb=256.0, pids=256)

Start = Callable[[Recipe], Awaitable[Sandbox]]
IsThere = Callable[[Sandbox], Awaitable[bool]]


class Originals:
    """One container per image in which nothing runs but what reads the image's own files."""

    def __init__(self) -> None:
        self._started: dict[tuple[str, bool], Sandbox] = {}
        self._locks: dict[tuple[str, bool], asyncio.Lock] = {}

    async def get(self, recipe: Recipe, start: Start, is_there: IsThere) -> Sandbox:
        """The container of the recipe's image, started when it is first asked for, or was lost. Raises TrialError."""
        key = recipe.image.id, recipe.has_internet
        async with self._locks.setdefault(key, asyncio.Lock()):
            if (known := self._started.get(key)) is not None and not await is_there(known):
                await self._started.pop(key).remove()
            if key not in self._started:
                # Its networks of phases are of no use here, and would cost a router.
                plain = dataclasses.replace(
                    recipe,
                    limits=_SMALL,
                    trial="",
                    environment={},
                    agent_user=None,
                    closed_to=(),
                    beside=None,
                    starts=False,
                    is_fresh=True,
                    options=None,
                    more_labels={},
                    network=None,
                    has_internet=recipe.has_internet and recipe.network is None,
                    loose=None,
                    cpuset=(),
                    gpus=0,
                    storage_mb=None,
                )
                self._started[key] = await start(plain)
            return self._started[key]

    async def remove_of(self, image_id: str) -> None:
        """Remove those of one image. Never raises."""
        found = [key for key in self._started if key[0] == image_id]
        await asyncio.gather(*(self._started.pop(key).remove() for key in found))

    async def close(self) -> None:
        """Remove all of them. Never raises."""
        started, self._started = list(self._started.values()), {}
        await asyncio.gather(*(each.remove() for each in started))
