"""Caches the paths and some files of each image across runs, as an image never changes."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import os
import threading
import weakref
import zlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from tbench.files import cache_home, write_atomically
from tbench.sandbox.backend import Compares, Sandbox, check_output
from tbench.verify.changes.facts import LIST_ALL_PATHS, File, ImageTree, WalkedFiles, look_functions

Read = Callable[[Sandbox, set[str]], Awaitable[Mapping[str, File]]]
"""Reads files of a sandbox; the same function reads the agent's container and its image."""

_LIST_SEC = 600.0
_LIST = f"""{LIST_ALL_PATHS} || exit
printf '\\0%s' "$PATH"
"""
"""Prints all paths, a further zero byte, and the search path."""
_PER_CONTAINER = frozenset({"/etc/hosts", "/etc/hostname"})
"""Files that the engine writes for each container: no image has them."""
_PER_NETWORK = frozenset({"/etc/resolv.conf"})
"""Files that the engine writes for each network: they may change from day to day."""
_IN_MEMORY = 32
_MAX_IMAGES, _MAX_BYTES = 2000, 1 << 30
"""Limits of the cache on disk."""
_MAX_RECORD_BYTES = 256 << 20
"""Largest uncompressed size of one record."""
_RECORD: TypeAdapter[tuple[bytes, dict[bytes, File | None]]] = TypeAdapter(
    tuple[bytes, dict[bytes, File | None]], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
)
"""A record of the cache on disk: the listing of an image, and files read from it."""
_writing = threading.Lock()


@dataclass
class _KnownImage:
    listing: bytes
    tree: ImageTree
    files: dict[str, File | None] = field(default_factory=dict)
    """The paths read so far; None: the path does not exist."""


class ImageFacts:
    """Paths and files of a sandbox's image; a container of the image is read only for unknown ones."""

    def __init__(self, sandbox: Compares, read: Read, known: _KnownImage, disk: _DiskCache | None) -> None:
        self.tree = known.tree
        self._sandbox, self._read, self._known, self._disk = sandbox, read, known, disk

    async def files(self, paths: set[str], now: Mapping[str, File] = MappingProxyType({})) -> dict[str, File]:
        """Return the files at the paths in the image. Raises TrialError.

        `now` are the files in the sandbox: a file that the engine writes is read again if it differs there.
        """
        known = self._known.files
        if self._unknown(paths, now):
            async with _lock(self._sandbox.image_id()):  # another task may be reading the same paths
                if unknown := self._unknown(paths, now):
                    answer = await self._read(await self._sandbox.original(), unknown)
                    known |= {path: answer.get(path) for path in unknown}
                    if self._disk is not None:
                        await asyncio.to_thread(self._disk.write, self._known.listing, dict(known))
        return {path: found for path in paths if (found := known.get(path)) is not None}

    def _unknown(self, paths: set[str], now: Mapping[str, File]) -> set[str]:
        known = self._known.files
        asked = {path for path in paths if path in self.tree.paths or path.startswith("/etc/")} - _PER_CONTAINER
        changed = {path for path in asked & _PER_NETWORK & known.keys() if known[path] != now.get(path)}
        return (asked - known.keys()) | changed


async def image_facts(sandbox: Compares, read: Read) -> ImageFacts:
    """Load the known facts of a sandbox's image, or list the image. Raises TrialError."""
    identity = sandbox.image_id()
    if not identity:
        return ImageFacts(sandbox, read, await _list_image(sandbox), None)
    disk = _DiskCache(identity)
    async with _lock(identity):
        known = _in_memory().pop(identity, None) or await asyncio.to_thread(disk.read)
        if known is None:
            known = await _list_image(sandbox)
            await asyncio.to_thread(disk.write, known.listing, {})
    _in_memory()[identity] = known
    while len(_in_memory()) > _IN_MEMORY:
        _in_memory().pop(next(iter(_in_memory())))
    return ImageFacts(sandbox, read, known, disk)


@cache
def _in_memory() -> dict[str, _KnownImage]:
    """Known images by identity, the most recently used one last."""
    return {}


@cache
def _locks() -> weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, defaultdict[str, asyncio.Lock]]:
    return weakref.WeakKeyDictionary()


def _lock(identity: str) -> asyncio.Lock:
    """Return the lock for reading an image in this event loop."""
    return _locks().setdefault(asyncio.get_running_loop(), defaultdict(asyncio.Lock))[identity]


async def _list_image(sandbox: Compares) -> _KnownImage:
    listing = await check_output(await sandbox.original(), _LIST, timeout_sec=_LIST_SEC)
    return _KnownImage(listing, _tree(listing))


def _tree(listing: bytes) -> ImageTree:
    paths, _, search_path = listing.rpartition(b"\0")
    tree = WalkedFiles.read(paths).paths
    return ImageTree(tree, _search_path(search_path.decode("utf-8", "surrogateescape"), tree))


def _search_path(variable: str, paths: frozenset[str]) -> tuple[str, ...]:
    """Return the directories of PATH and those of per-user installers, without /bin where it is a link."""
    found = [each.rstrip("/") for each in variable.split(":") if each.startswith("/")]
    found += ["/usr/local/bin", "/usr/bin", "/bin", "/root/.local/bin"]
    merged = {"/bin", "/sbin"} if "/bin/sh" not in paths else set()
    return tuple(dict.fromkeys(each for each in found if each not in merged))


@cache
def _script_texts() -> str:
    """Return the scripts that read images; a change to them invalidates the cache."""
    return _LIST + look_functions()


class _DiskCache:
    """The record of one image on disk. Never raises: a missing or broken record means reading the image again."""

    def __init__(self, identity: str) -> None:
        name = hashlib.sha256(f"{identity}\0{_script_texts()}".encode()).hexdigest()[:40]
        self._path = cache_home() / "images" / f"{name}.json.gz"

    def read(self) -> _KnownImage | None:
        try:
            with gzip.open(self._path) as file:
                listing, files = _RECORD.validate_json(file.read(_MAX_RECORD_BYTES))  # invalid if cut
            os.utime(self._path)
        except (OSError, EOFError, zlib.error, ValueError):
            return None
        return _KnownImage(listing, _tree(listing), {os.fsdecode(path): found for path, found in files.items()})

    def write(self, listing: bytes, files: Mapping[str, File | None]) -> None:
        content = _RECORD.dump_json((listing, {os.fsencode(path): found for path, found in files.items()}))
        if len(content) > _MAX_RECORD_BYTES:
            return
        with contextlib.suppress(OSError), _writing:
            write_atomically(self._path, gzip.compress(content, 1))
            _drop_oldest(self._path.parent)


def _drop_oldest(directory: Path) -> None:
    """Remove the least recently used records beyond the limits. Raises OSError."""
    entries: list[Any] = [(each.stat().st_mtime, each.stat().st_size, each.name) for each in os.scandir(directory)]
    count, size = len(entries), sum(each[1] for each in entries)
    for _, file_size, name in sorted(entries):
        if count <= _MAX_IMAGES and size <= _MAX_BYTES:
            return
        (directory / name).unlink(missing_ok=True)
        count, size = count - 1, size - file_size
