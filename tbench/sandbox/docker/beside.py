"""What is made beside a trial's container: the image as it was, to compare with, and a way for files to a copy."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Collection

from tbench.errors import TrialError
from tbench.sandbox.archive import sums_by_path
from tbench.sandbox.backend import BUSYBOX, ChangeKind, Sandbox
from tbench.sandbox.docker.create import ContainerLimits, Recipe
from tbench.sandbox.docker.exec_stream import ExecStream
from tbench.sandbox.docker.output import EndOfOutput

_TRANSFER_SEC = 900
_SMALL = ContainerLimits(cpus=1.0, memory_mb=256.0, pids=256)
# Owners are numbers in this format, so accounts do not matter. A file of 4 GB or more has no place in it and stays.
_FIT = f"'exec {BUSYBOX} find \"$@\" -maxdepth 0 ! \\( -type f -size +8388607 \\) -print0 2>/dev/null'"
_PACKS = f"cd / && {BUSYBOX} xargs -0 {BUSYBOX} sh -c {_FIT} - | {BUSYBOX} cpio -o -0 -H newc"
_UNPACKS = f"cd / && exec {BUSYBOX} cpio -i -d -m -u -H newc"
_REMOVES = f"cd / && exec {BUSYBOX} xargs -0 {BUSYBOX} rm -rf --"

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


_LISTS = f"""{BUSYBOX} find / -xdev -exec {BUSYBOX} stat -c '%f %u %g %n' {{}} + 2>/dev/null
printf '\\0'
{BUSYBOX} find / -xdev -type f -exec {BUSYBOX} sha256sum {{}} + 2>/dev/null"""


async def compare(original: Sandbox, other: Sandbox) -> dict[str, ChangeKind]:
    """The paths at which two sandboxes differ, by modes, owners and contents of all their files. Raises TrialError."""
    then, now = await asyncio.gather(_listing(original), _listing(other))
    changes: dict[str, ChangeKind] = dict.fromkeys(then.keys() - now.keys(), "removed")
    changes |= dict.fromkeys(now.keys() - then.keys(), "added")
    return changes | {path: "changed" for path in now.keys() & then.keys() if now[path] != then[path]}


async def _listing(sandbox: Sandbox) -> dict[str, tuple[str, str]]:
    """Mode and owner, and the sum of a file, by path."""
    ended = await sandbox.shell(_LISTS, timeout_sec=_TRANSFER_SEC, user="root")
    stats, _, sums = ended.output.decode("utf-8", "surrogateescape").partition("\0")
    contents = sums_by_path(sums)
    entries = (line.split(" ", 3) for line in stats.split("\n"))
    return {entry[3]: (" ".join(entry[:3]), contents.get(entry[3], "")) for entry in entries if len(entry) == 4}


Open = Callable[[str, int], Awaitable[tuple[ExecStream, EndOfOutput]]]
"""Starts a script as root, with its limit in seconds; returns its stream, and what finds the end in that."""


async def transfer(source: Open, target: Open, paths: Collection[str], removed: Collection[str]) -> None:
    """Bring files from one container into another, piece by piece; what is `removed` is removed there first.

    Raises TrialError (verifier_failed), also where it takes too long.
    """
    try:
        async with asyncio.timeout(_TRANSFER_SEC):
            if removed:
                await _feed_and_drain(*await target(_REMOVES, _TRANSFER_SEC), _listed(removed))
            if paths:
                await _pump(source, target, _listed(paths))
    except (OSError, TimeoutError) as error:
        raise TrialError("verifier_failed", f"bringing the agent's files into a copy failed: {error}") from error


def _listed(paths: Collection[str]) -> bytes:
    # A directory comes before what lies in it, so that its owner and mode are not those of a made one.
    return b"".join(f".{path}".encode("utf-8", "surrogateescape") + b"\0" for path in sorted(paths))


async def _pump(source: Open, target: Open, names: bytes) -> None:
    async with contextlib.AsyncExitStack() as streams:
        # Each as soon as it is open: whoever waits for the second may be cancelled.
        packs, end_of_packing = await source(_PACKS, _TRANSFER_SEC)
        streams.push_async_callback(packs.close)
        unpacks, end = await target(_UNPACKS, _TRANSFER_SEC)
        streams.push_async_callback(unpacks.close)
        naming = asyncio.create_task(_feed(packs, names))
        answers = asyncio.create_task(_drain(unpacks, end))
        try:
            while data := await packs.read_output():
                await unpacks.write(end_of_packing.strip(data))
            _require_end(end_of_packing)
            unpacks.end_input()
            await naming
            await answers
        finally:
            naming.cancel()
            answers.cancel()


async def _feed(stream: ExecStream, data: bytes) -> None:
    await stream.write(data)
    stream.end_input()


async def _drain(stream: ExecStream, end: EndOfOutput) -> None:
    while data := await stream.read_output():
        end.strip(data)
    _require_end(end)


def _require_end(end: EndOfOutput) -> None:
    if end.is_missing:
        raise ConnectionResetError("the connection to the engine was cut")


async def _feed_and_drain(stream: ExecStream, end: EndOfOutput, data: bytes) -> None:
    try:
        feeding = asyncio.create_task(_feed(stream, data))
        await _drain(stream, end)
        await feeding
    finally:
        await stream.close()
