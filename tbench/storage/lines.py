"""Files of JSON lines: only whole lines are appended, and each problem in reading names its file and line."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from tbench.locks import FileLock
from tbench.text import one_line, visible

Model = TypeVar("Model", bound=BaseModel)
_CHUNK_BYTES = 1 << 16


def read_lines(
    path: Path, raw: bytes, model: type[Model], problems: list[str], mend: Callable[[Any], Any] = lambda value: value
) -> Iterator[tuple[str, Model]]:
    """Yield `FILE:LINE` and the object for each valid line of `raw`; blank lines are skipped.

    For each other line `FILE:LINE: what is wrong` is added to `problems`. `mend` may change a decoded value before it
    is validated."""
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            yield where, model.model_validate(mend(json.loads(line)))
        except ValidationError as error:
            problems.append(f"{where}: {first_problem(error)}")
        except (ValueError, RecursionError) as error:
            problems.append(f"{where}: not JSON ({one_line(str(error))})")


def first_problem(error: ValidationError, whole: str = "line") -> str:
    """The place and nature of the first problem, in one line; `whole` names the place where no single key is wrong."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {one_line(first['msg'])}"


class LineFile:
    """Appends whole lines to a file: a line that a full disk cuts short is taken back."""

    def __init__(self, path: Path, *, locked: bool = False, empty: bool = False) -> None:
        """Open the file and mend a last line that a killed process left torn; with `empty`, remove all that is in it.

        Raises OSError, BlockingIOError where `locked` and another process has locked it.
        """
        self._file = path.open("ab", buffering=0)
        self._lock: FileLock | None = None
        try:
            if locked:
                # Before anything else: a torn last line may be one that a living process is just writing.
                self._lock = FileLock(path, self._file.fileno())
            if empty:
                self._file.truncate(0)
            else:
                _mend_last_line(path)
        except OSError:
            self.close()
            raise

    def append(self, line: str) -> None:
        """Append one line, with JSON's escapes for what is not visible. Raises OSError; then nothing was appended."""
        data = visible(line).encode("utf-8", "replace") + b"\n"
        size = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), size)
            raise

    def close(self) -> None:
        """Close the file and give up its lock."""
        if self._lock is not None:
            self._lock.release()
        self._file.close()


def _mend_last_line(path: Path) -> None:
    """Mend a last line without its line end: end it where it is whole, else remove it."""
    with path.open("r+b") as file:
        torn = _torn_end(file)
        if not torn:
            return
        try:
            json.loads(torn)
        except ValueError:
            file.truncate(file.seek(-len(torn), os.SEEK_END))
        else:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")


def _torn_end(file: BinaryIO) -> bytes:
    """The bytes after the last line end; of a long file only the end is read."""
    start = file.seek(0, os.SEEK_END)
    torn = b""
    while start > 0 and b"\n" not in torn:
        size = min(_CHUNK_BYTES, start)
        start = file.seek(start - size)
        torn = file.read(size) + torn
    return torn.rpartition(b"\n")[2]
