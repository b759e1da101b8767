"""Reads and writes tar archives of which nobody vouches, member by member: no more is in memory than one header."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Literal

Kind = Literal["file", "directory", "symlink", "hardlink", "other"]

BLOCK = 512
END = bytes(2 * BLOCK)
"""What an archive ends with."""
_KINDS: dict[bytes, Kind] = {
    b"0": "file", b"\0": "file", b"7": "file", b"1": "hardlink", b"2": "symlink", b"5": "directory",
}  # fmt: skip
_TYPES: dict[Kind, bytes] = {
    "file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE,
}  # fmt: skip
_LONG_NAME, _LONG_LINK = b"L", b"K"
_LONGEST = 1 << 16
"""Most bytes of a name; what is longer is no file system's."""


class BrokenArchive(Exception):
    """The archive is cut off, or no archive."""


@dataclass(frozen=True)
class Member:
    """One entry of an archive, as its header says."""

    name: str
    kind: Kind
    size: int
    """Bytes that follow the header."""
    mode: int
    mtime: int
    target: str
    """Where a link leads."""


def members(archive: IO[bytes]) -> Iterator[Member]:
    """The members of the archive that begins where `archive` stands; after the last one it stands behind the end.

    The content of a member stands behind its header while it is the current one. Raises BrokenArchive.
    """
    name = target = None
    while True:
        header = archive.read(BLOCK)
        if header == bytes(BLOCK) and archive.read(BLOCK) == header:
            return
        kind, member = header[156:157], _member(header)
        data_at = archive.tell()
        behind = data_at + -(-member.size // BLOCK) * BLOCK
        if kind in (_LONG_NAME, _LONG_LINK):
            if member.size > _LONGEST:
                raise BrokenArchive(f"a name of {member.size} bytes")
            text = _text(archive.read(member.size))
            name, target = (text, target) if kind == _LONG_NAME else (name, text)
        else:
            yield Member(
                name or member.name, member.kind, member.size, member.mode, member.mtime, target or member.target
            )
            name = target = None
        _go_to(archive, behind)


def all_members(archives: IO[bytes]) -> Iterator[Member]:
    """The members of all archives up to an empty one, behind which `archives` stands then. Raises BrokenArchive."""
    is_empty = False
    while not is_empty:
        is_empty = True
        for member in members(archives):
            is_empty = False
            yield member


def _go_to(archive: IO[bytes], behind: int) -> None:
    if archive.seek(0, os.SEEK_END) < behind:
        raise BrokenArchive("it ends within a file")
    archive.seek(behind)


def _member(header: bytes) -> Member:
    if len(header) < BLOCK:
        raise BrokenArchive("it ends before its end")
    given = _number(header[148:156])
    if given != sum(header[:148]) + 8 * ord(" ") + sum(header[156:]):
        raise BrokenArchive("a header has another sum than it says")
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    kind = _KINDS.get(header[156:157], "other")
    return Member(
        name=f"{prefix}/{_text(header[:100])}" if prefix else _text(header[:100]),
        kind=kind,
        # Of links some writers give the size of what they lead to, which does not follow.
        size=0 if kind in ("symlink", "hardlink", "directory") else _number(header[124:136]),
        mode=_number(header[100:108]),
        mtime=_number(header[136:148]),
        target=_text(header[157:257]),
    )


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _number(field: bytes) -> int:
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    try:
        number = int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        number = -1
    if number < 0:
        raise BrokenArchive("a number in a header is none")
    return number


def header_of(member: Member) -> bytes:
    """The header of a member that belongs to root."""
    info = tarfile.TarInfo(member.name)
    info.type, info.size, info.mode, info.mtime = _TYPES[member.kind], member.size, member.mode, member.mtime
    info.linkname = member.target
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """What follows `size` bytes of content up to the next header."""
    return bytes(-size % BLOCK)
