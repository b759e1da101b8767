"""What pulling will cost: how many bytes come over the network, and whether the engine's disk has room for them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from dataclasses import dataclass

from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.pulling.login import LoginUnreadable, find_login
from tbench.sandbox.docker.pulling.manifest import SizeUnknown, layer_sizes
from tbench.sandbox.docker.pulling.name import ImageName
from tbench.text import counted, size_shown

ASKING_SEC = 10.0
"""Longest time for all registries together."""
_ASKED_AT_ONCE = 8
_UNPACKED = 2.5
"""Size of layers on the disk, as a multiple of what is transferred. Roughly: text packs better, models worse."""


@dataclass(frozen=True)
class Forecast:
    """What is known before anything is pulled."""

    images: int
    """How many are to be pulled."""
    transfer_bytes: int
    """Layers of those whose size is known, each counted once."""
    unknown: int
    """Images whose registry does not tell their size."""
    free_bytes: int | None
    """Free space on the engine's disk; None where it cannot be seen."""
    root: str

    @property
    def disk_bytes(self) -> float:
        """Room that the known ones take on the engine's disk, by a rule of thumb."""
        return self.transfer_bytes * _UNPACKED

    @property
    def is_tight(self) -> bool:
        """Whether there is less room than is needed."""
        return self.free_bytes is not None and self.disk_bytes > self.free_bytes

    @property
    def words(self) -> str:
        """One line for the user."""
        parts = [f"{counted(self.images, 'image')} to be pulled"]
        if self.unknown < self.images:
            parts.append(f"{size_shown(self.transfer_bytes)}, about {size_shown(self.disk_bytes)} on the disk")
        if self.unknown:
            parts.append("size unknown" if self.unknown == self.images else f"size of {self.unknown} more unknown")
        if self.free_bytes is not None:
            parts.append(f"{size_shown(self.free_bytes)} free in {self.root}")
        return "; ".join(parts)

    @property
    def warning(self) -> str:
        """What to do where the room may not do; else empty."""
        if not self.is_tight:
            return ""
        advice = "'docker system prune' makes room, --drop-images needs less"
        return (
            f"the images may not fit: they need about {size_shown(self.disk_bytes)}, and {self.root} has "
            f"{size_shown(self.free_bytes or 0)} free; {advice}"
        )


async def free_bytes(engine: Engine) -> int | None:
    """Free space on the engine's disk; None where it cannot be seen from here."""
    if not engine.is_local:
        return None
    try:
        return (await asyncio.to_thread(shutil.disk_usage, engine.info.root)).free
    except OSError:
        return None  # the engine is elsewhere


async def forecast(engine: Engine, names: Collection[ImageName], *, ask: bool = True) -> Forecast:
    """Find out what pulling these images will cost; without `ask` no registry is asked. Bounded; raises nothing."""
    once = {name.wanted: name for name in names}
    places = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def sizes(name: ImageName) -> dict[str, int] | None:
        try:
            async with asyncio.timeout(ASKING_SEC), places:
                return await engine.call(_sizes, name, engine.info.architecture, deadline_sec=ASKING_SEC)
        except (TimeoutError, EngineError, SizeUnknown, LoginUnreadable):
            return None

    known = await asyncio.gather(*map(sizes, once.values())) if ask else [None] * len(once)
    layers: dict[str, int] = {}
    for each in known:
        layers |= each or {}
    unknown = sum(each is None for each in known)
    return Forecast(len(once), sum(layers.values()), unknown, await free_bytes(engine), engine.info.root)


async def about_pulls(engine: Engine, names: Collection[ImageName], *, ask: bool) -> list[str]:
    """What pulling these images will cost, in a line, and another where they may not fit; none without any."""
    if not names:
        return []
    expected = await forecast(engine, names, ask=ask)
    return [line for line in (expected.words, expected.warning) if line]


def _sizes(name: ImageName, architecture: str) -> dict[str, int]:
    return layer_sizes(name, find_login(name.registry), architecture)
