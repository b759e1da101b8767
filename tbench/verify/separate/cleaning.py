"""Takes over from an archive what is plain: files, folders, and links that stay within. Whoever made it is not trusted.

What a name says decides nothing outside of the archive: no entry leads above its root, or through a link, or is put in
the place of another. Owners, devices, setuid bits and what others may write are left behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Literal

from tbench.files import safe_relative
from tbench.verify.separate.tar import Kind, Member, all_members, header_of, padding

_COPIED_AT_ONCE = 1 << 20
_MOST_NOTES = 20
Parts = tuple[str, ...]


@dataclass
class Room:
    """What may still be taken over."""

    entries: int
    shown_bytes: int
    """Bytes of files that are also written as files, for people."""


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
        self._kinds: dict[Parts, Kind] = {}
        self._taken = Taken()

    def take_over(self) -> Taken:
        for member in all_members(self._raw):
            if self._taken.kind == "nothing":
                if member.kind == "file":
                    self._taken.kind = "file"
                    self._add_file(replace(member, name=""), ())
                    continue
                if member.kind != "directory":
                    continue
                self._taken.kind = "directory"
                self._write(Member("", "directory", 0, 0o777, member.mtime, ""), ())
            elif self._taken.kind == "directory":
                self._add(member)
        return self._taken

    def _add(self, member: Member) -> None:
        parts = _parts(member.name)
        if parts is None:
            self._taken.leave(member.name, "a name that leads out of it")
        elif parts and parts not in self._kinds:
            if any(self._kinds.get(parts[:depth], "directory") != "directory" for depth in range(1, len(parts))):
                self._taken.leave(member.name, "lies in what is no folder")
            else:
                self._add_new(member, parts)

    def _add_new(self, member: Member, parts: Parts) -> None:
        if member.kind == "file":
            self._add_file(member, parts)
        elif member.kind == "directory":
            self._write(replace(member, mode=0o755), parts)
        elif member.kind == "symlink":
            if _stays_within(parts, member.target):
                self._write(replace(member, mode=0o777), parts)
            else:
                self._taken.leave(member.name, f"a link that leads out of it, to {member.target}")
        elif member.kind == "hardlink" and self._kinds.get(first := _parts(member.target) or ()) == "file":
            self._write(replace(member, mode=0o644, target=self._path(first)), parts)
        else:
            self._taken.leave(member.name, "no file, folder or link")

    def _add_file(self, member: Member, parts: Parts) -> None:
        # As tarfile's filter "data" has it: whoever owns it may read it, and nobody else write it.
        mode = member.mode & (0o755 if member.mode & 0o100 else 0o644) | 0o600
        self._write(replace(member, mode=mode), parts)
        self._taken.files += 1
        with contextlib.ExitStack() as files:
            sinks = [self._target, *files.enter_context(_opened(self._shown(member, parts)))]
            left = member.size
            while left and (data := self._raw.read(min(left, _COPIED_AT_ONCE))):
                for sink in sinks:
                    sink.write(data)
                left -= len(data)
        # An archive that ends here is found out by whoever goes on to the next header.
        self._target.write(bytes(left) + padding(member.size))

    def _shown(self, member: Member, parts: Parts) -> Path | None:
        if self._show_at is None or member.size > self._room.shown_bytes:
            return None
        self._room.shown_bytes -= member.size
        return self._show_at / safe_relative("/".join(parts)) if parts else self._show_at

    def _write(self, member: Member, parts: Parts) -> None:
        self._room.entries -= 1
        if self._room.entries < 0:
            raise TooMany
        self._kinds[parts] = member.kind
        self._target.write(header_of(replace(member, name=self._path(parts))))

    def _path(self, parts: Parts) -> str:
        return "/".join((self._root, *parts))


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[Sequence[IO[bytes]]]:
    """The file at `path`, which is new; none where it cannot be made: what people see is not what is judged."""
    with contextlib.ExitStack() as stack:
        files = []
        if path is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                files.append(stack.enter_context(path.open("xb")))
        yield files


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
