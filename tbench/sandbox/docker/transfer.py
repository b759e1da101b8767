"""Files that go from one container into another, as an archive that one command makes and another takes apart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from posixpath import dirname

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from tbench.errors import Origin, TrialError
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker.commands import EndOfOutput
from tbench.sandbox.docker.stream import ExecStream
from tbench.text import one_line

_TRANSFER_SEC = 900
_TRIES = 3
"""How often files are brought: some may vanish while they are packed, as what the agent started may run on."""
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

Open = Callable[[str, int], Awaitable[tuple[ExecStream, EndOfOutput]]]
"""Starts a script as root, with its limit in seconds; returns its stream, and what finds the end in that."""


async def transfer(source: Open, target: Open, paths: Collection[str], removed: Collection[str]) -> None:
    """Bring files from one container into another, piece by piece; what is `removed` is removed there first.

    Raises TrialError: verifier_failed, also where it takes too long, or where not all of it came; engine_unreachable,
    sandbox_lost, sandbox_failed.
    """
    if not (paths or removed):
        return
    trying = AsyncRetrying(retry=retry_if_exception_type(OSError), stop=stop_after_attempt(_TRIES), reraise=True)
    try:
        async with asyncio.timeout(_TRANSFER_SEC):
            await trying(_pump, source, target, paths, removed)
    except OSError as error:  # a TimeoutError is one, too
        words = str(error) or f"it took longer than {_TRANSFER_SEC} s"
        # The engine did its part: what the agent left could not be brought, unless the machine's disk is full.
        origin = None if "No space left" in words else Origin("copy", is_fresh=False, ran=True)
        raise TrialError(
            "verifier_failed", f"bringing the agent's files into a copy failed: {words}", origin=origin
        ) from error


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
    return b"".join(pieces)


def _require_end(end: EndOfOutput) -> None:
    if end.is_missing:
        raise TrialError("engine_unreachable", "the connection to the engine was cut while files were copied")
