"""Writes files whole or not at all, makes names safe to write, and refuses files of another version."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tbench.errors import UsageError
from tbench.text import unseen_as, visible

Made = TypeVar("Made")
_BESIDE = ".writing-"


def write_atomically(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a file beside `path`, then rename it: a reader sees the old content or the new one. Raises OSError.

    With `durable` that is so after a power cut, too, which else may leave the new name and none of the content.
    """
    # Not derived from the name: names out of a container may already be as long as a file system allows.
    beside = path.with_name(f"{_BESIDE}{os.urandom(8).hex()}")
    try:
        with in_directory(path.parent, lambda: beside.open("wb")) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
        if durable:
            _sync_directory(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def _sync_directory(directory: Path) -> None:
    """Let the names in a directory outlast a power cut, where its file system can do that at all."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def in_directory(directory: Path, make: Callable[[], Made]) -> Made:
    """Make a file in `directory`, which is made first where it is missing; gives what `make` does. Raises OSError."""
    try:
        return make()
    except FileNotFoundError:  # not looked for before: nearly always it is there
        directory.mkdir(parents=True, exist_ok=True)
        return make()


def is_beside(path: Path) -> bool:
    """Whether a process that was killed in `write_atomically` may have left this file."""
    return path.name.startswith(_BESIDE)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, with escapes for what is not visible, to last. Raises OSError."""
    text = visible(json.dumps(value, indent=2, ensure_ascii=False))
    write_atomically(path, f"{text}\n".encode("utf-8", "replace"), durable=True)


def cache_home(variables: Mapping[str, str] = os.environ) -> Path:
    """The directory of all caches: TBENCH_CACHE, else below XDG_CACHE_HOME, else below ~/.cache."""
    if own := variables.get("TBENCH_CACHE"):
        return Path(own).absolute()
    shared = variables.get("XDG_CACHE_HOME", "")
    # A relative one is to be ignored, says its specification.
    base = Path(shared) if Path(shared).is_absolute() else Path.home() / ".cache"
    return base / "tbench"


def is_unused(path: Path) -> bool:
    """Whether nothing is at `path`, or an empty directory. Raises UsageError."""
    try:
        return not path.exists() or (path.is_dir() and not any(path.iterdir()))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def safe_relative(name: str) -> Path:
    """Relative path for a file name from a container, without any way to climb out of the directory.

    What is not visible in it is a question mark, which is never longer.
    """
    name = unseen_as(name, "?")
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return Path(*parts) if parts else Path("unnamed")


def refuse_other_version(content: Mapping[str, Any], known: int) -> None:
    """Check that the content of a file has the version that is read. Raises ValueError with a line."""
    if (version := content.get("schema_version")) != known:
        raise ValueError(
            f"schema_version {json.dumps(version)} is of another version of tbench, and this one reads {known}; "
            "use the tbench that wrote it"
        )
