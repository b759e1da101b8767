"""Files that git-lfs keeps elsewhere: in their place is a pointer, which must never pass for a task's data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_LONGEST_POINTER = 1024
"""As the specification of git-lfs has it."""


def pointers_in(directories: Sequence[Path]) -> list[Path]:
    """The files below these directories that are pointers of git-lfs, in order."""
    return sorted(path for directory in directories for path in _small_files(directory) if _is_pointer(path))


def _small_files(directory: str | Path) -> Iterator[Path]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _small_files(entry.path)
            elif entry.is_file(follow_symlinks=False):
                size = entry.stat(follow_symlinks=False).st_size
                if len(_POINTER) < size <= _LONGEST_POINTER:
                    yield Path(entry.path)


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER
