"""Reads files of others: nothing that a link leads to, and nothing larger than what can be held."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tbench.text import one_line, size_shown

LARGEST_BYTES = 64_000_000
"""Largest file that is read into memory, or copied: read as JSON it takes about ten times as much."""
_MOST_FILES = 2_000
"""Most files that are taken of one directory."""
_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class UnusableFile(Exception):
    """A file that cannot be used. The message says why in a few words, without the file's name."""


def is_directory(path: Path) -> bool:
    """Whether a directory is at `path`, and no link to one."""
    return _kind(path) == stat.S_IFDIR


def is_file(path: Path) -> bool:
    """Whether a regular file is at `path`, and no link to one."""
    return _kind(path) == stat.S_IFREG


def _kind(path: Path) -> int:
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except (OSError, ValueError):
        return 0


def read_bytes(file: Path) -> bytes:
    """The content of a regular file of at most `LARGEST_BYTES`. Raises UnusableFile."""
    try:
        status = file.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise UnusableFile("is a link, and links are not followed")
        if not stat.S_ISREG(status.st_mode):
            raise UnusableFile("is no regular file")
        if status.st_size > LARGEST_BYTES:
            raise UnusableFile(f"has {size_shown(status.st_size)}, and {size_shown(LARGEST_BYTES)} are read at most")
        return file.read_bytes()
    except FileNotFoundError:
        raise UnusableFile("is missing") from None
    except OSError as error:
        raise UnusableFile(error.strerror or str(error)) from None


def read_json(file: Path) -> Any:
    """The JSON in a file. Raises UnusableFile."""
    raw = read_bytes(file)
    try:
        value = json.loads(raw)
        return _mended(value) if _HALF_A_PAIR.search(raw) else value
    except (ValueError, RecursionError) as error:
        what = "is empty" if not raw.strip() else f"is no JSON, or was cut ({one_line(str(error), 100)})"
        raise UnusableFile(what) from None


def _mended(value: Any) -> Any:
    """The same with question marks for halves of surrogate pairs, which are no text that can be written."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_mended(each) for each in value]
    if isinstance(value, dict):
        return {_mended(name): _mended(each) for name, each in value.items()}
    return value


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises UnusableFile."""
    value = read_json(file)
    if not isinstance(value, dict):
        raise UnusableFile("is no JSON object")
    return value


def object_or_none(file: Path) -> dict[str, Any] | None:
    """The JSON object in a file that may be missing or torn."""
    try:
        return read_object(file)
    except UnusableFile:
        return None


def files_below(directory: Path) -> Iterator[Path]:
    """Regular files in a directory and below it, in order and not too many of them; links are left out."""
    if not is_directory(directory):
        return
    found = 0
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            if is_file(path := Path(folder, name)):
                yield path
                found += 1
                if found >= _MOST_FILES:
                    return
