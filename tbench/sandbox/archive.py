"""Tar archives in which files get into and out of a sandbox, and checksums of files."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tbench.tasks.environment import Environment
from tbench.tasks.files import TreeEntry, mode_of
from tbench.tasks.task import IMAGE_FILES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer


@dataclass(frozen=True)
class FileEntry:
    """One file to be put into a sandbox, or a directory if `data` is None."""

    data: bytes | None
    mode: int = 0o644
    owner: tuple[int, int] = (0, 0)
    """User id and group id; root by default."""


def place_tree(target: str, tree: Mapping[str, TreeEntry]) -> dict[str, FileEntry]:
    """Return the entries of a task's folder below the directory `target`; the first entry is `target` itself."""
    entries = {target: FileEntry(None, 0o755)}
    return entries | {f"{target}/{name}": FileEntry(entry.data, entry.mode) for name, entry in tree.items()}


def pack(files: Mapping[str, FileEntry]) -> bytes:
    """Return a tar archive of `files`, which are given by absolute path."""
    buffer = io.BytesIO()
    # Busybox cannot read the extended headers in which other formats store long and non-ASCII names.
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, entry in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode = entry.mode
            member.uid, member.gid = entry.owner
            member.mtime = int(time.time())
            if entry.data is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            else:
                member.size = len(entry.data)
                archive.addfile(member, io.BytesIO(entry.data))
    return buffer.getvalue()


def unpack(stream: IO[bytes], limit_bytes: int, *, whole_names: bool = False) -> dict[str, bytes]:
    """Read the regular files of concatenated archives, by path; the path's first part is dropped unless `whole_names`.

    Content beyond `limit_bytes` in total is cut. A truncated archive gives the files before the break. If two files
    have the same path, the first one counts.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=stream, mode="r|", ignore_zeros=True) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                name = name if whole_names else name.partition("/")[2]
                if not member.isreg() or name in found:
                    continue
                content = archive.extractfile(member)
                assert content is not None
                found[name] = content.read(limit_bytes)
                limit_bytes = max(0, limit_bytes - member.size)
    except tarfile.TarError:
        pass
    return found


def sums_by_path(listing: str) -> dict[str, str]:
    """Parse the output of `sha256sum` (64 characters, two blanks, the path) into sums by path."""
    return {line[66:]: line[:64] for line in listing.split("\n") if len(line) > 66}


class ChunkReader(io.RawIOBase):
    """A raw stream over an iterator of bytes, to be wrapped in io.BufferedReader."""

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


# Files of environment/ when no image is built from it: as in Harbor they are copied into the working directory.

_IGNORED = {".gitkeep"}


@dataclass(frozen=True)
class LooseFiles:
    """Files that are copied into the sandbox of a published image."""

    root: Path
    paths: tuple[Path, ...]

    def pack(self, file: IO[bytes]) -> None:
        """Write a tar archive of the files to `file`. Raises OSError."""
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in self.paths:
                add_path(archive, path.relative_to(self.root).as_posix(), path)


def loose_files(environment: Environment) -> LooseFiles | None:
    """Return the files to copy into the sandbox of a published image; None if there are none."""
    folder = environment.path
    if environment.folder != "environment" or not environment.settings.docker_image or not folder.is_dir():
        return None
    paths = tuple(environment.context_paths())
    names = {path.name for path in paths if path.parent == folder}
    return LooseFiles(folder, paths) if names - _IGNORED and names.isdisjoint(IMAGE_FILES) else None


def add_path(archive: tarfile.TarFile, name: str, path: Path) -> None:
    """Add a file, folder or link to an archive, owned by root and with git's mode. Other kinds are skipped."""
    member = tarfile.TarInfo(name)
    member.mtime = int(path.lstat().st_mtime)
    if path.is_symlink():
        member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
        archive.addfile(member)
    elif path.is_dir():
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(member)
    elif path.is_file():
        with path.open("rb") as content:
            member.mode, member.size = mode_of(path), os.fstat(content.fileno()).st_size
            archive.addfile(member, content)
