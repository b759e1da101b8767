"""The cache of converted tasks: what is given in the form of Terminal-Bench 1 runs in the current one.

A directory per content of a task and version of the rules, whole or not there at all; an edit of it is noticed.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tbench.datasets.cache import RECORD, cache_directory
from tbench.errors import TaskInvalid
from tbench.files import write_json
from tbench.tasks.task import Task
from tbench.tasks.terminal_bench_1 import is_of_terminal_bench_1
from tbench.text import counted

_STAGING = ".converting-"


class _ConversionRecord(BaseModel):
    """What is known of a converted task: .tbench.json beside it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hash: str
    """The task's hash, as it was converted."""


class Conversions:
    """Reads tasks of either form; those of Terminal-Bench 1 as they are in the cache, converted where they are not."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_directory().with_name("converted")
        self.count = 0
        """Number of tasks that were read as converted ones."""

    def read(self, path: Path) -> Task:
        """The task at `path`. Raises TaskInvalid, for one that cannot be converted with the reason."""
        if not is_of_terminal_bench_1(path):
            return Task.read(path)
        path = path.resolve()
        try:
            task = self._converted(path)
        except OSError as error:
            raise TaskInvalid(f"{error.filename or path}: {error.strerror or error}") from None
        self.count += 1
        return task

    @property
    def words(self) -> str | None:
        """One line about what was converted; None where nothing was."""
        if not self.count:
            return None
        return f"{counted(self.count, 'task')} of Terminal-Bench 1, converted to the current form in {self.root}"

    def _converted(self, path: Path) -> Task:
        from tbench.tasks.terminal_bench_1.conversion import RULES  # whoever has none of these tasks needs no YAML

        target = self.root / f"{RULES}-{_digest(path)[:20]}"
        if not (target / RECORD).is_file():
            self._convert(path, target)
        task = Task.read(target / path.name)
        try:
            record = _ConversionRecord.model_validate_json((target / RECORD).read_bytes())
        except ValidationError:
            record = None
        if record is None or record.hash != task.hash:
            raise TaskInvalid(f"{target}: changed since it was converted of {path}; remove it (or run a copy of it)")
        return task

    def _convert(self, path: Path, target: Path) -> None:
        """Convert the task beside `target` and rename it: another process may do the same."""
        from tbench.tasks.terminal_bench_1.conversion import convert

        self.root.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=self.root))
        try:
            task = Task.read(convert(path, staging / path.name).path)
            write_json(staging / RECORD, _ConversionRecord(hash=task.hash).model_dump())
            if not (target / RECORD).is_file():
                shutil.rmtree(target, ignore_errors=True)  # somebody took away a part of it
            try:
                staging.rename(target)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise  # else another process was faster
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def convert_in_place(path: Path) -> None:
    """Put the converted task in the place of the one at `path`. Raises TaskInvalid, and leaves it as it is."""
    from tbench.tasks.terminal_bench_1.conversion import convert

    with tempfile.TemporaryDirectory(prefix=_STAGING, dir=path.parent) as staging:
        made = convert(path, Path(staging) / path.name).path
        path.rename(Path(staging) / "before")
        made.rename(path)


def _digest(path: Path) -> str:
    """sha256 over name and content of everything in a directory, with its own name."""
    whole = hashlib.sha256(path.name.encode("utf-8", "surrogateescape"))
    for name, content in _contents(path):
        whole.update(f"\n{name}\0{content}".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def _contents(path: Path) -> Iterator[tuple[str, str]]:
    for each in sorted(path.rglob("*")):
        name = each.relative_to(path).as_posix()
        if each.is_symlink():
            yield name, f"to {each.readlink()}"
        elif each.is_file():
            with each.open("rb") as file:
                yield name, f"{each.stat().st_mode & 0o777:o} {hashlib.file_digest(file, 'sha256').hexdigest()}"
        else:
            yield name, "folder"
