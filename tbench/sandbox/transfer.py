"""Copies files from one container into another: one command packs an archive, another one unpacks it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from posixpath import dirname

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from harness.concurrency import all_of
from tbench.errors import Origin, TrialError
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.commands import EndOfOutput
from tbench.sandbox.stream import OutputStream
from tbench.text import one_line

_TRANSFER_SEC = 900
_ATTEMPTS = 3
"""Attempts at a transfer: processes that the agent left running may remove files while they are packed."""
_FOR_EACH = f"{BUSYBOX} xargs -0 -r"
_READ_LIST = f"read -r size; {BUSYBOX} dd bs=$size count=1 iflag=fullblock 2>/dev/null"
"""Shell command that reads a list of names, preceded by its size, and leaves the rest of the input."""
_DIRECTORIES = f"'exec {BUSYBOX} find \"$@\" -maxdepth 0 -type d -print0'"
# The format stores numeric owners, so accounts do not matter. It cannot hold files of 4 GB or more, which are skipped.
_FITTING = f"'exec {BUSYBOX} find \"$@\" -maxdepth 0 ! \\( -type f -size +8388607 \\) -print0 2>/dev/null'"
# "broken" makes the unpacking fail after an error, since cpio accepts an archive that just ends.
_PACK = f"""cd / || exit
{_READ_LIST} | {_FOR_EACH} {BUSYBOX} sh -c {_DIRECTORIES} -
printf '\\0'
{_FOR_EACH} {BUSYBOX} sh -c {_FITTING} - | {BUSYBOX} cpio -o -0 -H newc || echo broken"""
_OBSTACLES = """'for path; do case $path in
*//) path=${path%//} ;;
*/.) path=${path%/.}; [ -d "$path" ] && continue ;;
*/) path=${path%/}; [ ! -L "$path" ] && { [ -d "$path" ] || [ ! -e "$path" ]; } && continue ;;
*) [ -L "$path" ] || [ ! -d "$path" ] && continue ;;
esac; printf "%s\\0" "$path"; done'"""
"""Shell filter for paths to remove first, because cpio does not replace a directory by a file, or the reverse.

Input: `a/` will be a directory, `a/.` is the parent of a file, `a//` is removed in any case.
"""
_UNPACKED = b"\6"
# cpio stops at the end of the archive or at an error. The rest of the input is read too, so that a stream that ends
# early has certainly been cut.
_UNPACK = f"""cd / || exit
{_READ_LIST} | {_FOR_EACH} {BUSYBOX} sh -c {_OBSTACLES} - | {_FOR_EACH} {BUSYBOX} rm -rf --
{BUSYBOX} cpio -i -d -m -u -H newc && printf '\\6'
exec {BUSYBOX} cat >/dev/null"""

Open = Callable[[str, int], Awaitable[tuple[OutputStream, EndOfOutput]]]
"""Starts a script as root with a time limit in seconds; returns its stream and the finder of its end."""


async def transfer(source: Open, target: Open, paths: Collection[str], removed: Collection[str]) -> None:
    """Copy files from one container into another, in pieces, after the `removed` were removed there.

    Raises TrialError: verifier_failed, also for a timeout or an incomplete copy; engine_unreachable, sandbox_lost,
    sandbox_failed.
    """
    if not (paths or removed):
        return
    trying = AsyncRetrying(retry=retry_if_exception_type(OSError), stop=stop_after_attempt(_ATTEMPTS), reraise=True)
    try:
        async with asyncio.timeout(_TRANSFER_SEC):
            await trying(_pump, source, target, paths, removed)
    except OSError as error:  # includes TimeoutError
        why = str(error) or f"it took longer than {_TRANSFER_SEC} s"
        # Caused by the agent's files and not by the engine, unless the machine's disk is full.
        origin = None if "No space left" in why else Origin("copy", is_fresh=False, ran=True)
        raise TrialError(
            "verifier_failed", f"copying the agent's files into a fresh container failed: {why}", origin=origin
        ) from error


async def _pump(source: Open, target: Open, paths: Collection[str], removed: Collection[str]) -> None:
    names = _list_names(paths)
    async with contextlib.AsyncExitStack() as streams:
        found: dict[str, tuple[OutputStream, EndOfOutput]] = {}

        async def start(opening: Open, script: str) -> None:
            found[script] = await opening(script, _TRANSFER_SEC)
            # Registered as soon as it is open, since waiting for the other one may be cancelled.
            streams.push_async_callback(found[script][0].close)

        await all_of(start(source, _PACK), start(target, _UNPACK))
        (packing, end_of_packing), (unpacking, end) = found[_PACK], found[_UNPACK]
        naming = asyncio.create_task(_feed(packing, _with_size(names) + names))
        outcome = asyncio.create_task(_output(unpacking, end))
        try:
            directories, data = await _read_directories(packing, end_of_packing)
            await unpacking.write(_with_size(_list_names(_with_markers(paths, directories, removed))) + data)
            while data := await packing.read_output():
                await unpacking.write(end_of_packing.strip(data))
            _require_end(end_of_packing)
            unpacking.end_input()
            await naming
            if await outcome != _UNPACKED:
                raise OSError(one_line(f"{packing.errors} {unpacking.errors}".strip(), 300))
        except ConnectionError:
            await outcome
            raise
        finally:
            naming.cancel()
            outcome.cancel()


def _list_names(paths: Iterable[str]) -> bytes:
    # Sorted, so that a directory precedes its files and gets its own owner and mode.
    return b"".join(f".{path}".encode("utf-8", "surrogateescape") + b"\0" for path in sorted(paths))


def _with_size(names: bytes) -> bytes:
    return b"%d\n%b" % (len(names), names)


def _with_markers(paths: Collection[str], directories: Collection[str], removed: Collection[str]) -> set[str]:
    """Return the input for `_OBSTACLES`."""
    to_come = {f"{path}/" if path in directories else path for path in paths}
    return to_come | {f"{dirname(path)}/." for path in paths} | {f"{path}//" for path in removed}


async def _read_directories(packing: OutputStream, end: EndOfOutput) -> tuple[set[str], bytes]:
    """Read the list of directories at the start of the packer's output; returns also the first bytes of the archive."""
    received = b"\0"
    while b"\0\0" not in received:
        if not (data := await packing.read_output()):
            _require_end(end)
            raise OSError(f"nothing was packed: {one_line(packing.errors, 200)}")
        received += end.strip(data)
    listed, _, archive = received.partition(b"\0\0")
    return {name.removeprefix(".") for name in listed.decode("utf-8", "surrogateescape").split("\0")}, archive


async def _feed(stream: OutputStream, data: bytes) -> None:
    await stream.write(data)
    stream.end_input()


async def _output(stream: OutputStream, end: EndOfOutput) -> bytes:
    """Read all output. Raises TrialError(engine_unreachable) if its end is missing."""
    pieces = []
    while data := await stream.read_output():
        pieces.append(end.strip(data))
    _require_end(end)
    return b"".join(pieces)


def _require_end(end: EndOfOutput) -> None:
    if end.is_missing:
        raise TrialError("engine_unreachable", "the connection to the engine was cut while files were copied")
