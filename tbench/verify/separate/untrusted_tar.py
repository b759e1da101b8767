"""Copies the safe entries of an untrusted archive: files, folders, and links that stay within it.

No entry leads above the root or through a link, or replaces another one. Owners, devices, setuid bits and write
permissions for others are dropped.
"""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from tbench.files import safe_relative

END = bytes(2 * tarfile.BLOCKSIZE)
"""End mark of an archive."""
_COPIED_AT_ONCE = 1 << 20
_MAX_HEADER_BYTES = 1 << 17
"""Limit of one extended header; a longer one holds a name that no file system supports."""
_MAX_SKIPPED = 20
_FILES = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE})
Parts = tuple[str, ...]


class BrokenArchive(Exception):
    """The archive is cut off or malformed."""


@dataclass
class CopyBudget:
    """What may still be copied from archives."""

    entries: int
    shown_bytes: int
    """Bytes that may still be unpacked as files, for people to read."""
    links: frozenset[str] = frozenset()
    """Paths of hard links that were copied."""


class TooManyEntries(Exception):
    """The archive has more entries than the budget allows."""


@dataclass
class Copied:
    """Entries copied from one source."""

    kind: Literal["file", "directory", "nothing"] = "nothing"
    files: int = 0
    skipped: list[str] = field(default_factory=list)
    """Entries that were not copied, each as `path: reason`."""

    def skip(self, name: str, reason: str) -> None:
        if len(self.skipped) < _MAX_SKIPPED:
            self.skipped.append(f"{name.removeprefix('./').rstrip('/')}: {reason}")


class _BoundedReader:
    """File for tarfile that refuses headers which would take much memory. Raises BrokenArchive."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.tell, self.seek = raw.tell, raw.seek

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise BrokenArchive(f"a header of {size} bytes")
        return self._raw.read(size)


def members(archives: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield the members of consecutive archives, up to an empty archive. Raises BrokenArchive.

    At each member, `archives` is positioned at its content; at the end, behind the empty archive.
    """
    is_empty = False
    while not is_empty:
        is_empty = True
        for member in _members(archives):
            is_empty = False
            yield member


def _members(raw: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    try:
        archive = tarfile.TarFile(fileobj=_BoundedReader(raw), encoding="utf-8", errors="surrogateescape")  # type: ignore[arg-type]
        while (member := archive.next()) is not None:
            if member.size < 0:
                raise BrokenArchive("a file with a negative size")
            archive.members.clear()  # type: ignore[attr-defined] # otherwise it keeps all members in memory
            raw.seek(member.offset_data)
            yield member
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise BrokenArchive(str(error)) from None
    # tarfile mistakes anything that is not a header for the end of the archive.
    raw.seek(archive.offset)
    if raw.read(len(END)) != END:
        raise BrokenArchive("it has no end mark")


def copy_safe_entries(raw: IO[bytes], target: IO[bytes], path: str, budget: CopyBudget, show_at: Path | None) -> Copied:
    """Copy the safe entries of the archives in `raw`, up to an empty one, into `target` below `path`.

    Regular files are also written below the directory `show_at`, within the budget. Raises BrokenArchive,
    TooManyEntries, and OSError if the disk is full.
    """
    return _Copier(raw, target, path.lstrip("/"), budget, show_at).copy()


class _Copier:
    def __init__(self, raw: IO[bytes], target: IO[bytes], root: str, budget: CopyBudget, show_at: Path | None) -> None:
        self._raw = raw
        self._target = target
        self._root = root
        self._budget = budget
        self._show_at = show_at
        self._types: dict[Parts, bytes] = {}
        self._copied = Copied()

    def copy(self) -> Copied:
        for member in members(self._raw):
            if self._copied.kind == "directory":
                self._add(member)
            elif self._copied.kind == "nothing" and is_file(member):
                self._copied.kind = "file"
                self._add_file(member, ())
            elif self._copied.kind == "nothing" and member.isdir():
                self._copied.kind = "directory"
                self._write(member, (), tarfile.DIRTYPE, 0o777)
        return self._copied

    def _add(self, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if parts is None:
            self._copied.skip(member.name, "its name leads out of the artifact")
        elif parts and parts not in self._types:
            if any(self._types.get(parts[:depth]) not in (None, tarfile.DIRTYPE) for depth in range(1, len(parts))):
                self._copied.skip(member.name, "its parent is not a folder")
            else:
                self._add_new(member, parts)

    def _add_new(self, member: tarfile.TarInfo, parts: Parts) -> None:
        if is_file(member):
            self._add_file(member, parts)
        elif member.isdir():
            self._write(member, parts, tarfile.DIRTYPE, 0o755)
        elif member.issym():
            if _stays_within(parts, member.linkname):
                self._write(member, parts, tarfile.SYMTYPE, 0o777, member.linkname)
            else:
                self._copied.skip(member.name, f"a link that leads out of the artifact, to {member.linkname}")
        elif member.islnk() and self._types.get(first := _parts(member.linkname) or ()) == tarfile.REGTYPE:
            self._write(member, parts, tarfile.LNKTYPE, 0o644, self._path(first))
            self._budget.links |= {self._path(parts)}
        else:
            self._copied.skip(member.name, "not a file, folder or valid link")

    def _add_file(self, member: tarfile.TarInfo, parts: Parts) -> None:
        # If an earlier artifact has a hard link at this path, no file is written: links are unpacked last.
        targets = [] if self._path(parts) in self._budget.links else [self._target]
        self._types[parts] = tarfile.REGTYPE
        if targets:
            # As in tarfile's filter "data": readable by the owner, not writable by others.
            mode = member.mode & (0o755 if member.mode & 0o100 else 0o644) | 0o600
            self._write(member, parts, tarfile.REGTYPE, mode)
        self._copied.files += 1
        with contextlib.ExitStack() as files:
            sinks = [*targets, *self._shown(member, parts, files)]
            left = member.size
            while left and (data := self._raw.read(min(left, _COPIED_AT_ONCE))):
                for sink in sinks:
                    sink.write(data)
                left -= len(data)
        # If the archive is cut off here, reading the next header fails.
        for target in targets:
            target.write(bytes(left) + bytes(-member.size % tarfile.BLOCKSIZE))

    def _shown(self, member: tarfile.TarInfo, parts: Parts, files: contextlib.ExitStack) -> list[IO[bytes]]:
        """Return a list with a new file for people to read; empty if it exceeds the budget or cannot be created.

        Neither is an error, since the verifier does not use this file.
        """
        if self._show_at is None or member.size > self._budget.shown_bytes:
            return []
        self._budget.shown_bytes -= member.size
        path = self._show_at / safe_relative("/".join(parts)) if parts else self._show_at
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return [files.enter_context(path.open("xb"))]
        return []

    def _write(self, member: tarfile.TarInfo, parts: Parts, kind: bytes, mode: int, target: str = "") -> None:
        """Write a header with root as the owner."""
        self._budget.entries -= 1
        if self._budget.entries < 0:
            raise TooManyEntries
        self._types[parts] = kind
        info = tarfile.TarInfo(self._path(parts))
        info.type, info.mode, info.mtime, info.linkname = kind, mode, max(0, member.mtime), target
        info.size = member.size if kind == tarfile.REGTYPE else 0
        self._target.write(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))

    def _path(self, parts: Parts) -> str:
        return "/".join((self._root, *parts))


def is_file(member: tarfile.TarInfo) -> bool:
    """Whether a member is a regular file. Sparse files are not: the archive holds less than their size."""
    return member.type in _FILES and not member.issparse()


def _parts(name: str) -> Parts | None:
    """Return the parts of a relative path; None if it leads out of its root."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    return None if name.startswith("/") or ".." in parts else parts


def _stays_within(parts: Parts, target: str) -> bool:
    """Whether a link at `parts` stays below the root. Links on its way are checked already."""
    depth = len(parts) - 1
    if target.startswith("/") or not target:
        return False
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            return False
    return True
