"""Takes over from an archive what is plain: files, folders, and links that stay within. Whoever made it is not trusted.

What a name says decides nothing outside of the archive: no entry leads above its root, or through a link, or is put in
the place of another. Owners, devices, setuid bits and what others may write are left behind.
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
"""What an archive ends with."""
_COPIED_AT_ONCE = 1 << 20
_LONGEST_HEADER = 1 << 17
"""Most bytes of a header; a longer one has a name that no file system has."""
_MOST_NOTES = 20
_FILES = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE})
Parts = tuple[str, ...]


class BrokenArchive(Exception):
    """The archive is cut off, or no archive."""


@dataclass
class Room:
    """What may still be taken over."""

    entries: int
    shown_bytes: int
    """Bytes of files that are also written as files, for people."""
    links: frozenset[str] = frozenset()
    """Paths of the archive that are hard links."""


class TooMany(Exception):
    """There are more entries than are taken over."""


@dataclass
class Taken:
    """What was taken over of one source."""

    kind: Literal["file", "directory", "nothing"] = "nothing"
    files: int = 0
    left_out: list[str] = field(default_factory=list)
    """Entries that were not taken over, `path: why` each."""

    def leave(self, name: str, why: str) -> None:
        if len(self.left_out) < _MOST_NOTES:
            self.left_out.append(f"{name.removeprefix('./').rstrip('/')}: {why}")


class _Headers:
    """An archive as tarfile reads it: a header that asks for much memory is broken, whatever it says."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.tell, self.seek = raw.tell, raw.seek

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LONGEST_HEADER:
            raise BrokenArchive(f"a header of {size} bytes")
        return self._raw.read(size)


def members(archives: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """The members of all archives up to an empty one, behind which `archives` stands then. Raises BrokenArchive.

    The content of a member stands behind its header while it is the current one.
    """
    is_empty = False
    while not is_empty:
        is_empty = True
        for member in _members(archives):
            is_empty = False
            yield member


def _members(raw: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    try:
        archive = tarfile.TarFile(fileobj=_Headers(raw), encoding="utf-8", errors="surrogateescape")  # type: ignore[arg-type]
        while (member := archive.next()) is not None:
            if member.size < 0:
                raise BrokenArchive("a file of less than nothing")
            archive.members.clear()  # type: ignore[attr-defined] # it would keep them all
            raw.seek(member.offset_data)
            yield member
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise BrokenArchive(str(error)) from None
    # What is no header ends it for tarfile.
    raw.seek(archive.offset)
    if raw.read(len(END)) != END:
        raise BrokenArchive("it ends before its end")


def take_over(raw: IO[bytes], target: IO[bytes], path: str, room: Room, show_at: Path | None) -> Taken:
    """Take over the archives at which `raw` stands, up to an empty one. In `target` its entries lie at the path `path`.

    Plain files are written below the directory `show_at` as well, as long as there is room. Raises BrokenArchive,
    TooMany, and OSError where the disk is full.
    """
    return _Source(raw, target, path.lstrip("/"), room, show_at).take_over()


class _Source:
    def __init__(self, raw: IO[bytes], target: IO[bytes], root: str, room: Room, show_at: Path | None) -> None:
        self._raw = raw
        self._target = target
        self._root = root
        self._room = room
        self._show_at = show_at
        self._types: dict[Parts, bytes] = {}
        self._taken = Taken()

    def take_over(self) -> Taken:
        for member in members(self._raw):
            if self._taken.kind == "directory":
                self._add(member)
            elif self._taken.kind == "nothing" and is_file(member):
                self._taken.kind = "file"
                self._add_file(member, ())
            elif self._taken.kind == "nothing" and member.isdir():
                self._taken.kind = "directory"
                self._write(member, (), tarfile.DIRTYPE, 0o777)
        return self._taken

    def _add(self, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if parts is None:
            self._taken.leave(member.name, "a name that leads out of it")
        elif parts and parts not in self._types:
            if any(self._types.get(parts[:depth]) not in (None, tarfile.DIRTYPE) for depth in range(1, len(parts))):
                self._taken.leave(member.name, "lies in what is no folder")
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
                self._taken.leave(member.name, f"a link that leads out of it, to {member.linkname}")
        elif member.islnk() and self._types.get(first := _parts(member.linkname) or ()) == tarfile.REGTYPE:
            self._write(member, parts, tarfile.LNKTYPE, 0o644, self._path(first))
            self._room.links |= {self._path(parts)}
        else:
            self._taken.leave(member.name, "no file, folder or link")

    def _add_file(self, member: tarfile.TarInfo, parts: Parts) -> None:
        # As tarfile's filter "data" has it: whoever owns it may read it, and nobody else write it.
        # Where an earlier artifact has a link, it is made last, and must find nothing there.
        targets = [] if self._path(parts) in self._room.links else [self._target]
        self._types[parts] = tarfile.REGTYPE
        if targets:
            mode = member.mode & (0o755 if member.mode & 0o100 else 0o644) | 0o600
            self._write(member, parts, tarfile.REGTYPE, mode)
        self._taken.files += 1
        with contextlib.ExitStack() as files:
            sinks = [*targets, *self._shown(member, parts, files)]
            left = member.size
            while left and (data := self._raw.read(min(left, _COPIED_AT_ONCE))):
                for sink in sinks:
                    sink.write(data)
                left -= len(data)
        # An archive that ends here is found out by whoever goes on to the next header.
        for target in targets:
            target.write(bytes(left) + bytes(-member.size % tarfile.BLOCKSIZE))

    def _shown(self, member: tarfile.TarInfo, parts: Parts, files: contextlib.ExitStack) -> list[IO[bytes]]:
        """A new file for people; none where it cannot be made: what people see is not what is judged."""
        if self._show_at is None or member.size > self._room.shown_bytes:
            return []
        self._room.shown_bytes -= member.size
        path = self._show_at / safe_relative("/".join(parts)) if parts else self._show_at
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return [files.enter_context(path.open("xb"))]
        return []

    def _write(self, member: tarfile.TarInfo, parts: Parts, kind: bytes, mode: int, target: str = "") -> None:
        """Write a header that belongs to root."""
        self._room.entries -= 1
        if self._room.entries < 0:
            raise TooMany
        self._types[parts] = kind
        info = tarfile.TarInfo(self._path(parts))
        info.type, info.mode, info.mtime, info.linkname = kind, mode, max(0, member.mtime), target
        info.size = member.size if kind == tarfile.REGTYPE else 0
        self._target.write(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))

    def _path(self, parts: Parts) -> str:
        return "/".join((self._root, *parts))


def is_file(member: tarfile.TarInfo) -> bool:
    """Whether a member is a plain file. Of one with holes the archive has less than its size."""
    return member.type in _FILES and not member.issparse()


def _parts(name: str) -> Parts | None:
    """The parts of a relative path; None for one that leads out."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    return None if name.startswith("/") or ".." in parts else parts


def _stays_within(parts: Parts, target: str) -> bool:
    """Whether a link at `parts` leads to a place below the root. Nothing on the way is a link to elsewhere."""
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
