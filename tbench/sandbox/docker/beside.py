"""What is made beside a trial's container: the image as it was, to compare with, and a way for files to a copy."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterable
from posixpath import dirname

from tbench.errors import TrialError
from tbench.sandbox.archive import sums_by_path
from tbench.sandbox.backend import BUSYBOX, ChangeKind, Sandbox
from tbench.sandbox.docker.create import ContainerLimits, Recipe
from tbench.sandbox.docker.exec_stream import ExecStream
from tbench.sandbox.docker.output import EndOfOutput
from tbench.text import one_line

_TRANSFER_SEC = 900
_TRIES = 3
"""How often files are brought: some may vanish while they are packed, as what the agent started may run on."""
_SMALL = ContainerLimits(cpus=1.0, memory_mb=256.0, pids=256)
_NAMES = f"{BUSYBOX} xargs -0 -r"
_LIST = f"read -r size; {BUSYBOX} dd bs=$size count=1 iflag=fullblock 2>/dev/null"
"""Reads a list of names from an input in which more comes behind it."""
_WHICH = f"'exec {BUSYBOX} find \"$@\" -maxdepth 0 -type d -print0'"
# Owners are numbers in this format, so accounts do not matter. A file of 4 GB or more has no place in it and stays.
_FIT = f"'exec {BUSYBOX} find \"$@\" -maxdepth 0 ! \\( -type f -size +8388607 \\) -print0 2>/dev/null'"
# An archive that is not whole must not be unpacked: cpio takes one that only ends for whole.
_PACKS = f"""cd / || exit
{_LIST} | {_NAMES} {BUSYBOX} sh -c {_WHICH} -
printf '\\0'
{_NAMES} {BUSYBOX} sh -c {_FIT} - | {BUSYBOX} cpio -o -0 -H newc || echo broken"""
_IN_THE_WAY = """'for path; do case $path in
*//) path=${path%//} ;;
*/.) path=${path%/.}; [ -d "$path" ] && continue ;;
*/) path=${path%/}; [ ! -L "$path" ] && { [ -d "$path" ] || [ ! -e "$path" ]; } && continue ;;
*) [ -L "$path" ] || [ ! -d "$path" ] && continue ;;
esac; printf "%s\\0" "$path"; done'"""
"""Of a list, what cpio would not replace: a/ will be a directory, a/. holds one, and a// goes in any case."""
_UNPACKED = b"\6"
# cpio stops at the archive's end, or at what it cannot unpack: whatever comes behind that is read as well, so that a
# stream which ends early is always one that was cut.
_UNPACKS = f"""cd / || exit
{_LIST} | {_NAMES} {BUSYBOX} sh -c {_IN_THE_WAY} - | {_NAMES} {BUSYBOX} rm -rf --
{BUSYBOX} cpio -i -d -m -u -H newc && printf '\\6'
exec {BUSYBOX} cat >/dev/null"""

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

    Raises TrialError: verifier_failed, also where it takes too long, or where not all of it came; engine_unreachable,
    sandbox_lost, sandbox_failed.
    """
    try:
        async with asyncio.timeout(_TRANSFER_SEC):
            for attempt in range(1, _TRIES + 1):
                try:
                    await _pump(source, target, paths, removed)
                    break
                except OSError:
                    if attempt == _TRIES:
                        raise
    except (OSError, TimeoutError) as error:
        raise TrialError("verifier_failed", f"bringing the agent's files into a copy failed: {error}") from error


async def _pump(source: Open, target: Open, paths: Collection[str], removed: Collection[str]) -> None:
    names = _listed(paths)
    async with contextlib.AsyncExitStack() as streams:
        # Each as soon as it is open: whoever waits for the second may be cancelled.
        packs, end_of_packing = await source(_PACKS, _TRANSFER_SEC)
        streams.push_async_callback(packs.close)
        unpacks, end = await target(_UNPACKS, _TRANSFER_SEC)
        streams.push_async_callback(unpacks.close)
        naming = asyncio.create_task(_feed(packs, _sized(names) + names))
        answers = asyncio.create_task(_output(unpacks, end))
        try:
            directories, data = await _directories(packs, end_of_packing)
            await unpacks.write(_sized(_listed(_marked(paths, directories, removed))) + data)
            while data := await packs.read_output():
                await unpacks.write(end_of_packing.strip(data))
            _require_end(end_of_packing)
            unpacks.end_input()
            await naming
            if await answers != _UNPACKED:
                raise OSError(one_line(f"{packs.errors} {unpacks.errors}".strip(), 300))
        except ConnectionError:
            await answers
            raise
        finally:
            naming.cancel()
            answers.cancel()


def _listed(paths: Iterable[str]) -> bytes:
    # A directory comes before what lies in it, so that its owner and mode are not those of a made one.
    return b"".join(f".{path}".encode("utf-8", "surrogateescape") + b"\0" for path in sorted(paths))


def _sized(names: bytes) -> bytes:
    return b"%d\n%b" % (len(names), names)


def _marked(paths: Collection[str], directories: Collection[str], removed: Collection[str]) -> set[str]:
    """What a target is told to make way for, marked as `_IN_THE_WAY` says."""
    to_come = {f"{path}/" if path in directories else path for path in paths}
    return to_come | {f"{dirname(path)}/." for path in paths} | {f"{path}//" for path in removed}


async def _directories(packs: ExecStream, end: EndOfOutput) -> tuple[set[str], bytes]:
    """The directories among the names, which come first from what packs, and what has come of the archive."""
    come = b"\0"
    while b"\0\0" not in come:
        if not (data := await packs.read_output()):
            _require_end(end)
            raise OSError(f"nothing was packed: {one_line(packs.errors, 200)}")
        come += end.strip(data)
    listed, _, archive = come.partition(b"\0\0")
    return {name.removeprefix(".") for name in listed.decode("utf-8", "surrogateescape").split("\0")}, archive


async def _feed(stream: ExecStream, data: bytes) -> None:
    await stream.write(data)
    stream.end_input()


async def _output(stream: ExecStream, end: EndOfOutput) -> bytes:
    """All output to its end. Raises TrialError (engine_unreachable) where that does not come."""
    pieces = []
    while data := await stream.read_output():
        pieces.append(end.strip(data))
    _require_end(end)
    return b"".join([*pieces, end.rest()])


def _require_end(end: EndOfOutput) -> None:
    if end.is_missing:
        raise TrialError("engine_unreachable", "the connection to the engine was cut while files were copied")
