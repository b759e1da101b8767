"""Directories of records: a manifest, and files of JSON lines to which one process at a time appends whole lines.

Runs, replays and extractions are such directories, with different content of manifest and lines.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

from tbench.errors import UsageError
from tbench.files import is_temporary_file, is_unused, writable, write_atomically, write_json
from tbench.locks import FileLock, Held, is_held, lock_file_for
from tbench.text import escape_invisible, one_line

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

# Files of JSON lines: only whole lines are appended, and errors name file and line

Model = TypeVar("Model", bound="BaseModel")
_CHUNK_BYTES = 1 << 16


def read_lines(
    path: Path, raw: bytes, model: type[Model], problems: list[str], repair: Callable[[Any], Any] = lambda value: value
) -> Iterator[tuple[str, Model]]:
    """Yield `FILE:LINE` and the object of each valid line of `raw`; blank lines are skipped.

    For each invalid line, `FILE:LINE: reason` is added to `problems`. `repair` may change a decoded value before
    validation."""
    from pydantic import ValidationError  # slow, and not needed to send orders to runs

    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            yield where, model.model_validate(repair(json.loads(line)))
        except ValidationError as error:
            problems.append(f"{where}: {first_problem(error)}")
        except (ValueError, RecursionError) as error:
            problems.append(f"{where}: not JSON ({one_line(str(error))})")


def first_problem(error: ValidationError, whole: str = "line") -> str:
    """Describe the first validation error on one line; `whole` is the location if it concerns no single key."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {one_line(first['msg'])}"


class LineFile:
    """Appends whole lines to a file; a line that a full disk truncates is removed again."""

    def __init__(self, path: Path, *, locked: bool = False, empty: bool = False) -> None:
        """Open the file and repair a last line that a killed process left incomplete; with `empty`, truncate the file.

        Raises OSError; with `locked`, BlockingIOError if another process has locked the file.
        """
        self._file = path.open("ab", buffering=0)
        self._lock: FileLock | None = None
        try:
            if locked:
                # First, because another process may be writing an incomplete last line right now.
                self._lock = FileLock(path, self._file.fileno())
            if empty:
                self._file.truncate(0)
            else:
                _repair_last_line(path)
        except OSError:
            self.close()
            raise

    def append(self, line: str) -> None:
        """Append a line, with invisible characters escaped. Raises OSError; then nothing was appended."""
        self.append_bytes(escape_invisible(line).encode("utf-8", "replace"))

    def append_bytes(self, line: bytes) -> None:
        """Append a line as it is. Raises OSError; then nothing was appended."""
        written = self._file.write(line + b"\n")  # an error means that nothing was written
        if written <= len(line):
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), os.fstat(self._file.fileno()).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._lock is not None:
            self._lock.release()
        self._file.close()


def _repair_last_line(path: Path) -> None:
    """Repair a last line without line end: add the line end if it is valid JSON, else remove the line."""
    with path.open("r+b") as file:
        incomplete = _incomplete_line(file)
        if not incomplete:
            return
        try:
            json.loads(incomplete)
        except ValueError:
            file.truncate(file.seek(-len(incomplete), os.SEEK_END))
        else:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")


def _incomplete_line(file: BinaryIO) -> bytes:
    """Return the bytes after the last line end, reading the file from its end."""
    start = file.seek(0, os.SEEK_END)
    incomplete = b""
    while start > 0 and b"\n" not in incomplete:
        size = min(_CHUNK_BYTES, start)
        start = file.seek(start - size)
        incomplete = file.read(size) + incomplete
    return incomplete.rpartition(b"\n")[2]


@dataclass(frozen=True)
class Layout:
    """Names of the files in a directory of records, and of the directory in messages."""

    noun: str
    manifest: str
    """A JSON object, written atomically; a directory without it was never begun."""
    lines: tuple[str, ...]
    """Files of JSON lines. Writers of any of them hold the lock of the first."""

    def is_new(self, path: Path) -> bool:
        """Whether `path` is missing, empty, or has only leftovers of a process killed before it wrote a manifest.

        Raises UsageError if it cannot be read.
        """
        return is_unused(path) or (path.is_dir() and all(self._is_leftover(each) for each in path.iterdir()))

    def _is_leftover(self, path: Path) -> bool:
        if is_temporary_file(path) or path.name.startswith(lock_file_for(path.with_name(self.lines[0])).name):
            return True
        return path.name in self.lines and path.is_file() and path.stat().st_size == 0

    def is_locked(self, path: Path) -> bool:
        """Whether a process is writing to the directory. Raises OSError if that cannot be determined.

        To find out, the lock is taken for a moment if it is free.
        """
        with (path / self.lines[0]).open("rb") as file:
            return is_held(path / self.lines[0], file.fileno())

    def refuse_to_overwrite(self, path: Path) -> None:
        """Check that the directory is new. Raises UsageError."""
        if not self.is_new(path):
            raise UsageError(
                f"{path}: not empty; name a new directory with --output (nothing is overwritten), "
                f"or go on with the {self.noun} in it with --resume"
            )


class RecordDirectory:
    """A directory of records that is open for writing. Close it to release the lock."""

    def __init__(self, path: Path, layout: Layout) -> None:
        """Lock the directory. Raises UsageError if another process is writing to it, or if it cannot be written."""
        self.path = path
        self._layout = layout
        self._files: dict[str, LineFile] = {}
        with self._with_usage_errors():
            self._open(layout.lines[0])

    @classmethod
    def create(cls, path: Path, layout: Layout, manifest: Mapping[str, Any]) -> Self:
        """Create a new directory. Raises UsageError if it is not empty or cannot be written."""
        layout.refuse_to_overwrite(path)
        with writable(path):
            path.mkdir(parents=True, exist_ok=True)
        directory = cls(path, layout)
        with directory._closed_on_failure():
            # Another process may have created and finished the directory before this process got the lock.
            layout.refuse_to_overwrite(path)
            directory.write_manifest(manifest)
            directory._open_all()
        return directory

    @classmethod
    def go_on(cls, path: Path, layout: Layout, manifest: Mapping[str, Any] | None = None) -> Self:
        """Open an existing directory, with a new manifest if given. Raises UsageError like the constructor.

        A line that a killed process left incomplete is repaired.
        """
        directory = cls(path, layout)
        with directory._closed_on_failure():
            directory._open_all()
            if manifest is not None:
                directory.write_manifest(manifest)
        return directory

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest. Raises OSError."""
        write_json(self.path / self._layout.manifest, manifest)

    def append(self, name: str, line: str) -> None:
        """Append a line to the file `name`. Raises OSError; then nothing was appended."""
        self._files[name].append(line)

    def rewrite(self, name: str, lines: Iterable[str]) -> None:
        """Replace all lines of a file other than the locked one. Raises OSError."""
        assert name != self._layout.lines[0], "another process could lock the new file"
        data = "".join(f"{escape_invisible(line)}\n" for line in lines).encode("utf-8", "replace")
        write_atomically(self.path / name, data, durable=True)
        before = self._files[name]
        self._open(name)
        before.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _open_all(self) -> None:
        for name in self._layout.lines[1:]:
            self._open(name)

    def _open(self, name: str) -> None:
        self._files[name] = LineFile(self.path / name, locked=name == self._layout.lines[0])

    @contextlib.contextmanager
    def _with_usage_errors(self) -> Iterator[None]:
        try:
            with writable(self.path):
                yield
        except Held as held:
            reason = f"this {self._layout.noun} is still going on; wait for its end, or end it first"
            raise UsageError(f"{self.path}: {reason}{f' ({held})' if held.args else ''}") from None

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            with self._with_usage_errors():
                yield
        except BaseException:
            self.close()
            raise


# New directories that appear atomically


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield a temporary directory, which is renamed to `target` at the end of the block.

    If the block fails, the temporary one is removed. Raises UsageError if `target` is not empty or cannot be written.
    """
    if not is_unused(target):
        raise UsageError(f"{target}: not empty; name a new directory with --output (nothing is overwritten)")
    temporary = target.with_name(f".{target.name[:100]}.writing-{os.getpid()}")
    try:
        with writable(target):
            temporary.mkdir(parents=True)
            yield temporary
            temporary.replace(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
