"""What is known of an image: its paths, and what lies at some of them. Kept over runs, as its content never changes."""

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
from tbench.sandbox.backend import Compares, Sandbox, output_of
from tbench.verify.changes.facts import LISTS, File, ImageTree, WalkedFiles, look_functions

Read = Callable[[Sandbox, set[str]], Awaitable[Mapping[str, File]]]
"""Reads what lies at paths in a sandbox: the agent's container and its image are read by the same."""

_LIST_SEC = 600.0
_LIST = f"""{LISTS} || exit
printf '\\0%s' "$PATH"
"""
"""Prints all paths, and behind another zero byte the search path."""
_OF_CONTAINERS = frozenset({"/etc/hosts", "/etc/hostname"})
"""The engine writes them for each container, so that no image has them."""
_OF_ENGINE = frozenset({"/etc/resolv.conf"})
"""The engine writes it alike for all containers on one network, on one day."""
_IN_MEMORY = 32
_MOST_IMAGES, _MOST_BYTES = 2000, 1 << 30
"""Of what is kept on disk."""
_LARGEST_BYTES = 256 << 20
"""Of one file of it, when it is unpacked."""
_RECORD: TypeAdapter[tuple[bytes, dict[bytes, File | None]]] = TypeAdapter(
    tuple[bytes, dict[bytes, File | None]], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
)
"""A file of it: the listing of an image, and what lies at paths of it."""
_writing = threading.Lock()


@dataclass
class _AskedOnce:
    listing: bytes
    tree: ImageTree
    files: dict[str, File | None] = field(default_factory=dict)
    """What lies at the paths that were asked for; None where nothing does."""


class ImageFacts:
    """What is known of the image of one sandbox; what is not is asked of a container of it."""

    def __init__(self, sandbox: Compares, read: Read, known: _AskedOnce, kept: _OnDisk | None) -> None:
        self.tree = known.tree
        self._sandbox, self._read, self._known, self._kept = sandbox, read, known, kept

    async def files(self, paths: set[str], now: Mapping[str, File] = MappingProxyType({})) -> dict[str, File]:
        """What lies at the paths in the image. Raises TrialError.

        `now` is what lies there in the sandbox. What the engine writes is another on another day, or network: it is
        asked for where it differs.
        """
        known = self._known.files
        if self._unknown(paths, now):
            async with _lock(self._sandbox.image_id()):  # others may ask for the same
                if unknown := self._unknown(paths, now):
                    lies = await self._read(await self._sandbox.original(), unknown)
                    known |= {path: lies.get(path) for path in unknown}
                    if self._kept is not None:
                        await asyncio.to_thread(self._kept.write, self._known.listing, dict(known))
        return {path: found for path in paths if (found := known.get(path)) is not None}

    def _unknown(self, paths: set[str], now: Mapping[str, File]) -> set[str]:
        known = self._known.files
        asked = {path for path in paths if path in self.tree.paths or path.startswith("/etc/")} - _OF_CONTAINERS
        changed = {path for path in asked & _OF_ENGINE & known.keys() if known[path] != now.get(path)}
        return (asked - known.keys()) | changed


async def image_facts(sandbox: Compares, read: Read) -> ImageFacts:
    """What is known of a sandbox's image. Raises TrialError."""
    identity = sandbox.image_id()
    if not identity:
        return ImageFacts(sandbox, read, await _asked(sandbox), None)
    kept = _OnDisk(identity)
    async with _lock(identity):
        known = _in_memory().pop(identity, None) or await asyncio.to_thread(kept.read)
        if known is None:
            known = await _asked(sandbox)
            await asyncio.to_thread(kept.write, known.listing, {})
    _in_memory()[identity] = known
    while len(_in_memory()) > _IN_MEMORY:
        _in_memory().pop(next(iter(_in_memory())))
    return ImageFacts(sandbox, read, known, kept)


@cache
def _in_memory() -> dict[str, _AskedOnce]:
    """What was asked for last comes last."""
    return {}


@cache
def _locks() -> weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, defaultdict[str, asyncio.Lock]]:
    return weakref.WeakKeyDictionary()


def _lock(identity: str) -> asyncio.Lock:
    """Held by whoever asks about an image."""
    return _locks().setdefault(asyncio.get_running_loop(), defaultdict(asyncio.Lock))[identity]


async def _asked(sandbox: Compares) -> _AskedOnce:
    listing = await output_of(await sandbox.original(), _LIST, timeout_sec=_LIST_SEC)
    return _AskedOnce(listing, _tree(listing))


def _tree(listing: bytes) -> ImageTree:
    paths, _, search_path = listing.rpartition(b"\0")
    tree = WalkedFiles.read(paths).paths
    return ImageTree(tree, _search_path(search_path.decode("utf-8", "surrogateescape"), tree))


def _search_path(variable: str, paths: frozenset[str]) -> tuple[str, ...]:
    """The directories of PATH, and where installers of users put programs; /bin is left out where it is a link."""
    found = [each.rstrip("/") for each in variable.split(":") if each.startswith("/")]
    found += ["/usr/local/bin", "/usr/bin", "/bin", "/root/.local/bin"]
    merged = {"/bin", "/sbin"} if "/bin/sh" not in paths else set()
    return tuple(dict.fromkeys(each for each in found if each not in merged))


@cache
def _scripts() -> str:
    """What reads images: where it is another, all is asked anew."""
    return _LIST + look_functions()


class _OnDisk:
    """What is kept of an image on disk. Never raises: what is lost, broken, or cannot be written is asked anew."""

    def __init__(self, identity: str) -> None:
        name = hashlib.sha256(f"{identity}\0{_scripts()}".encode()).hexdigest()[:40]
        self._path = cache_home() / "images" / f"{name}.json.gz"

    def read(self) -> _AskedOnce | None:
        try:
            with gzip.open(self._path) as file:
                listing, files = _RECORD.validate_json(file.read(_LARGEST_BYTES))  # cut where it is larger
            os.utime(self._path)
        except (OSError, EOFError, zlib.error, ValueError):
            return None
        return _AskedOnce(listing, _tree(listing), {os.fsdecode(path): found for path, found in files.items()})

    def write(self, listing: bytes, files: Mapping[str, File | None]) -> None:
        content = _RECORD.dump_json((listing, {os.fsencode(path): found for path, found in files.items()}))
        if len(content) > _LARGEST_BYTES:
            return
        with contextlib.suppress(OSError), _writing:
            write_atomically(self._path, gzip.compress(content, 1))
            _drop_oldest(self._path.parent)


def _drop_oldest(directory: Path) -> None:
    """Remove what was used least lately, where there is too much. Raises OSError."""
    entries: list[Any] = [(each.stat().st_mtime, each.stat().st_size, each.name) for each in os.scandir(directory)]
    count, size = len(entries), sum(each[1] for each in entries)
    for _, bytes_of, name in sorted(entries):
        if count <= _MOST_IMAGES and size <= _MOST_BYTES:
            return
        (directory / name).unlink(missing_ok=True)
        count, size = count - 1, size - bytes_of
