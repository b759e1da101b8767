"""A directory that one process at a time adds to: a manifest, and files of JSON lines, the first of which is locked.

Runs, replays and extractions are such directories; each decides what its manifest and lines say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tbench.errors import UsageError
from tbench.files import is_beside, is_unused, write_atomically, write_json
from tbench.locks import Held, is_held, note_of
from tbench.storage.lines import LineFile
from tbench.text import visible


@dataclass(frozen=True)
class Layout:
    """The files that make a directory of records, and its name in messages."""

    noun: str
    manifest: str
    """A JSON object, written whole; a directory without it was never begun."""
    lines: tuple[str, ...]
    """Files of JSON lines. Whoever adds to any of them holds the lock of the first."""

    def is_new(self, path: Path) -> bool:
        """Whether `path` holds nothing, or only what a start leaves that was killed before it wrote a manifest.

        Raises UsageError where it cannot be read.
        """
        return is_unused(path) or (path.is_dir() and all(self._is_of_a_killed_start(each) for each in path.iterdir()))

    def _is_of_a_killed_start(self, path: Path) -> bool:
        if is_beside(path) or path.name.startswith(note_of(path.with_name(self.lines[0])).name):
            return True
        return path.name in self.lines and path.is_file() and path.stat().st_size == 0

    def is_locked(self, path: Path) -> bool:
        """Whether a process adds to the directory now. Raises OSError where that cannot be seen.

        To see it, the lock is tried for a moment where nobody holds it.
        """
        with (path / self.lines[0]).open("rb") as file:
            return is_held(path / self.lines[0], file.fileno())

    def refuse_to_overwrite(self, path: Path) -> None:
        """Check that the directory holds nothing. Raises UsageError."""
        if not self.is_new(path):
            raise UsageError(
                f"{path}: is not empty; name a new directory with --output (nothing is overwritten), "
                f"or go on with the {self.noun} in it with --resume"
            )


class RecordDirectory:
    """A directory of records, open for adding to it. Close it to give up the lock."""

    def __init__(self, path: Path, layout: Layout) -> None:
        """Lock the directory. Raises UsageError where another process adds to it, or where it cannot be written."""
        self.path = path
        self._layout = layout
        self._files: dict[str, LineFile] = {}
        with self._with_usage_errors():
            self._open(layout.lines[0])

    @classmethod
    def create(cls, path: Path, layout: Layout, manifest: Mapping[str, Any]) -> Self:
        """Begin a new directory. Raises UsageError where it holds anything, or cannot be written."""
        layout.refuse_to_overwrite(path)
        with writable(path):
            path.mkdir(parents=True, exist_ok=True)
        directory = cls(path, layout)
        with directory._closed_on_failure():
            # Another process may have begun one, and ended, before the lock was to be had.
            layout.refuse_to_overwrite(path)
            directory.write_manifest(manifest)
            directory._open_all()
        return directory

    @classmethod
    def go_on(cls, path: Path, layout: Layout, manifest: Mapping[str, Any] | None = None) -> Self:
        """Open an existing directory, with a new manifest if one is given. Raises UsageError as the constructor does.

        A line that a killed process left torn is mended.
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
        """Add a line to the file `name`. Raises OSError; then nothing was added."""
        self._files[name].append(line)

    def rewrite(self, name: str, lines: Iterable[str]) -> None:
        """Replace all lines of a file that is not the locked one. Raises OSError."""
        assert name != self._layout.lines[0], "another process could lock the new file"
        data = "".join(f"{visible(line)}\n" for line in lines).encode("utf-8", "replace")
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
            words = f"this {self._layout.noun} is still going on; wait for its end, or end it first"
            raise UsageError(f"{self.path}: {words}{f' ({held})' if held.args else ''}") from None

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            with self._with_usage_errors():
                yield
        except BaseException:
            self.close()
            raise


@contextlib.contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into the UsageError that `path` cannot be written; BlockingIOError passes."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
