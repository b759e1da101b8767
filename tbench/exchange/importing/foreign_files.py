"""Reads files of other programs, without following links and with size limits."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tbench.text import one_line, size_text

LARGEST_BYTES = 64_000_000
"""Maximum size of files that are read or copied; parsed JSON takes about ten times as much memory."""
_MAX_FILES = 2_000
"""Maximum number of files that are read from one directory."""
_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class UnusableFile(Exception):
    """A file cannot be used. The message is the reason, without the file's name."""


def is_directory(path: Path) -> bool:
    """Whether `path` is a directory, not a link to one."""
    return _kind(path) == stat.S_IFDIR


def is_file(path: Path) -> bool:
    """Whether `path` is a regular file, not a link to one."""
    return _kind(path) == stat.S_IFREG


def _kind(path: Path) -> int:
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except (OSError, ValueError):
        return 0


def read_bytes(file: Path) -> bytes:
    """Read a regular file of at most `LARGEST_BYTES`. Raises UnusableFile."""
    try:
        status = file.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise UnusableFile("is a link, and links are not followed")
        if not stat.S_ISREG(status.st_mode):
            raise UnusableFile("is not a regular file")
        if status.st_size > LARGEST_BYTES:
            raise UnusableFile(f"has {size_text(status.st_size)}, more than the maximum of {size_text(LARGEST_BYTES)}")
        return file.read_bytes()
    except FileNotFoundError:
        raise UnusableFile("is missing") from None
    except OSError as error:
        raise UnusableFile(error.strerror or str(error)) from None


def read_json(file: Path) -> Any:
    """Read a JSON file. Raises UnusableFile."""
    raw = read_bytes(file)
    try:
        value = json.loads(raw)
        return _without_surrogates(value) if _HALF_A_PAIR.search(raw) else value
    except (ValueError, RecursionError) as error:
        what = "is empty" if not raw.strip() else f"is not valid JSON or is incomplete ({one_line(str(error), 100)})"
        raise UnusableFile(what) from None


def _without_surrogates(value: Any) -> Any:
    """Replace lone surrogates, which cannot be encoded, by question marks."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_without_surrogates(each) for each in value]
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(each) for name, each in value.items()}
    return value


def read_object(file: Path) -> dict[str, Any]:
    """Read a file with a JSON object. Raises UnusableFile."""
    value = read_json(file)
    if not isinstance(value, dict):
        raise UnusableFile("is not a JSON object")
    return value


def object_or_none(file: Path) -> dict[str, Any] | None:
    """Read a file with a JSON object; None if it is missing or invalid."""
    try:
        return read_object(file)
    except UnusableFile:
        return None


def files_below(directory: Path) -> Iterator[Path]:
    """Yield the regular files below a directory in order, up to a maximum number, without following links."""
    if not is_directory(directory):
        return
    found = 0
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            if is_file(path := Path(folder, name)):
                yield path
                found += 1
                if found >= _MAX_FILES:
                    return
