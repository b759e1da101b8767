"""Files as tar archives in memory: what goes into a sandbox and what comes out. Pure, no I/O but reading a tree."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer


@dataclass(frozen=True)
class FileEntry:
    """One file or directory (data is None) to be put into a sandbox, owned by root."""

    data: bytes | None
    mode: int = 0o644


def read_tree(root: Path, target: str) -> dict[str, FileEntry]:
    """A directory as entries to be put at `target`; modes are kept, symlinks followed."""
    entries = {target: FileEntry(None, 0o755)}
    for path in _below(root):
        inside = f"{target}/{path.relative_to(root).as_posix()}"
        if path.is_dir():
            entries[inside] = FileEntry(None, 0o755)
        elif path.is_file():
            entries[inside] = FileEntry(path.read_bytes(), path.stat().st_mode & 0o777)
    return entries


def _below(directory: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Everything below, through symlinked directories too (rglob stops at them), but not round in circles."""
    here = directory.resolve()
    if here in above:
        return
    for path in sorted(directory.iterdir()):
        yield path
        if path.is_dir():
            yield from _below(path, above | {here})


def pack(files: Mapping[str, FileEntry]) -> bytes:
    """A tar archive of `files` by absolute path."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, entry in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode = entry.mode
            member.mtime = int(time.time())
            if entry.data is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            else:
                member.size = len(entry.data)
                archive.addfile(member, io.BytesIO(entry.data))
    return buffer.getvalue()


def unpack(stream: IO[bytes], limit_bytes: int) -> dict[str, bytes]:
    """Regular files of an archive by path without its first part; cut where the limit ends.

    An archive that breaks off gives the files before the break; of a file that comes twice the first counts.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = member.name.removeprefix("./").partition("/")[2]
                if not member.isreg() or name in found:
                    continue
                content = archive.extractfile(member)
                assert content is not None
                found[name] = content.read(limit_bytes)
                limit_bytes = max(0, limit_bytes - member.size)
    except tarfile.TarError:
        pass
    return found


class ChunkReader(io.RawIOBase):
    """An iterator of bytes as a raw stream, to be wrapped in io.BufferedReader."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        size = min(len(view), len(self._rest))
        view[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
