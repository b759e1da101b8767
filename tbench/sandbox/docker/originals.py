"""Images as they were, in containers beside those of trials: what an agent changed is told by them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

from tbench.sandbox.archive import sums_by_path
from tbench.sandbox.backend import BUSYBOX, ChangeKind, Sandbox, output_of
from tbench.sandbox.docker.create import ContainerLimits, Recipe

_COMPARE_SEC = 900
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


_LISTS = f"""odd=$(printf '\\001')
names() {{ {BUSYBOX} find / -xdev "$@" -print0 2>/dev/null | {BUSYBOX} tr '\\n\\0' '\\001\\n'; }}
plain() {{ names "$@" | {BUSYBOX} grep -v "$odd" | {BUSYBOX} tr '\\n' '\\0'; }}
plain | {BUSYBOX} xargs -0 {BUSYBOX} stat -c '%f %u %g %n' 2>/dev/null
names | {BUSYBOX} grep "$odd" | {BUSYBOX} sed 's/^/0 0 0 /'
printf '\\0'
plain -type f ! -size +8388607 | {BUSYBOX} xargs -0 -r {BUSYBOX} sha256sum 2>/dev/null
exit 0"""
"""Lists modes and owners, then sums. A line break in a name becomes another character; of 4 GB or more is no sum."""
_REGULAR = 0o10


async def compare(original: Sandbox, other: Sandbox) -> dict[str, ChangeKind]:
    """The paths at which two sandboxes differ, by modes, owners and contents of all their files. Raises TrialError.

    A file without a sum differs. Of what lies deeper than a path can be long, nothing is listed.
    """
    then, now = await asyncio.gather(_listing(original), _listing(other))
    changes: dict[str, ChangeKind] = dict.fromkeys(then.keys() - now.keys(), "removed")
    changes |= dict.fromkeys(now.keys() - then.keys(), "added")
    return changes | {path: "changed" for path in now.keys() & then.keys() if _differ(now[path], then[path])}


async def _listing(sandbox: Sandbox) -> dict[str, tuple[str, str]]:
    """Mode and owner, and the sum of a file, by path."""
    output = await output_of(sandbox, _LISTS, timeout_sec=_COMPARE_SEC)
    stats, _, sums = output.decode("utf-8", "surrogateescape").partition("\0")
    contents = sums_by_path(sums)
    entries = (line.split(" ", 3) for line in stats.split("\n"))
    return {entry[3]: (" ".join(entry[:3]), contents.get(entry[3], "")) for entry in entries if len(entry) == 4}


def _differ(now: tuple[str, str], then: tuple[str, str]) -> bool:
    mode, _, _ = now[0].partition(" ")
    return now != then or (int(mode, 16) >> 12 == _REGULAR and not now[1])
