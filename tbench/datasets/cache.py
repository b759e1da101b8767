"""The caches of datasets and of converted tasks: a directory each, whole or not there at all, and copies of them.

What is there is not written to any more. Files that never get into a container are read-only; the others keep the modes
that git has for them, as containers see those, and an edit of any file is noticed by the task's hash.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tbench.datasets.known import KnownDataset
from tbench.datasets.reference import Piece, without_login
from tbench.errors import TaskInvalid, UsageError
from tbench.files import cache_home, is_unused, write_json
from tbench.locks import FileLock, Held
from tbench.tasks.task import Task
from tbench.tasks.terminal_bench_1 import is_of_terminal_bench_1
from tbench.text import counted

RECORD = ".tbench.json"
_STAGING, _WHOLE, _REPLACED, _LOCK = ".pulling-", ".pulled-", ".replaced-", ".lock-"
_NEVER_IN_A_CONTAINER = ("task.toml", "instruction.md", "README.md")
_FORMAT = 1
WAIT_SEC = 4 * 3600.0
"""Longer than a pull can take: each of its three long steps is given up after an hour."""
_BETWEEN_LOOKS_SEC = 0.1


class CachedDataset(BaseModel):
    """A dataset in the cache, and what .tbench.json in its directory says of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = _FORMAT
    name: str
    version: str | None
    pieces: tuple[Piece, ...]
    hashes: Mapping[str, str | None]
    """The task's hash by name, as pulled; None for a task that cannot be read."""
    published: Mapping[str, str]
    """The published digest by name of the task."""
    digest: str | None
    """The published digests as one."""
    pulled_at: str
    path: Path = Field(default=Path(), exclude=True)
    """The directory in the cache."""
    is_new: bool = Field(default=False, exclude=True)
    """Whether it was pulled just now."""

    @property
    def paths(self) -> list[Path]:
        """Its task directories, sorted by name."""
        return [self.path / name for name in sorted(self.hashes)]


def cache_directory() -> Path:
    """Where datasets are kept: TBENCH_CACHE, else below XDG_CACHE_HOME, else below ~/.cache."""
    return cache_home() / "datasets"


def entry_name(known: KnownDataset) -> str:
    """The name of a dataset's directory; the revisions of its pieces are commits, or their commits are known."""
    title = re.sub(r"[^\w.@+-]+", "--", known.title)
    commits = [piece.commit or piece.revision for piece in known.pieces]
    if len(commits) == 1 and not known.pieces[0].listed:
        return f"{title}-{commits[0][:12]}"
    parts = [(each.url, commit, each.folder, each.listed) for each, commit in zip(known.pieces, commits, strict=True)]
    parts += [(name, path.name, None, ()) for name, path in known.packages.items()]
    whole = hashlib.sha256(repr(parts).encode()).hexdigest()
    first = commits[0][:12] if commits else whole[6:18]
    return f"{title}-{first}-{whole[:6]}"


class DatasetCache:
    """The datasets in a directory, which is made when the first one is pulled."""

    def __init__(self, root: Path, wait_sec: float = WAIT_SEC) -> None:
        """`wait_sec` is how long another process that pulls the same dataset is waited for."""
        self.root = root
        self._wait_sec = wait_sec

    def find(self, name: str) -> CachedDataset | None:
        """The dataset in the directory of this name; None where it is not there as a whole."""
        path = self.root / name
        try:
            found = CachedDataset.model_validate_json((path / RECORD).read_bytes())
        except (OSError, ValidationError):
            return None
        return found.model_copy(update={"path": path}) if found.format == _FORMAT else None

    def entries(self) -> Iterator[CachedDataset]:
        """All datasets, in the order of their names."""
        try:
            names = sorted(path.name for path in self.root.iterdir() if not path.name.startswith("."))
        except OSError:
            return
        yield from filter(None, map(self.find, names))

    def newest(self, known: KnownDataset) -> CachedDataset | None:
        """What was pulled last for the same name, version and revisions, whatever commits those were."""
        asked = [(without_login(piece.url), piece.revision, piece.folder, piece.listed) for piece in known.pieces]
        found = [
            entry
            for entry in self.entries()
            if (entry.name, entry.version) == (known.name, known.version)
            and asked == [(each.url, each.revision, each.folder, each.listed) for each in entry.pieces]
        ]
        return max(found, key=lambda entry: entry.pulled_at, default=None)

    @contextlib.contextmanager
    def locked(self, name: str, say: Callable[[str], None]) -> Iterator[int]:
        """Keep other processes from building the same directory; wait for one that does. Raises UsageError.

        Gives the descriptor that holds the lock: a child that has it, too, keeps the lock when this process is killed.
        """
        with writable(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / f"{_LOCK}{name}").open("ab")
        with file, contextlib.ExitStack() as stack:
            lock = self._lock(file, name, say)
            stack.callback(lock.release)
            yield file.fileno()

    def _lock(self, file: IO[bytes], name: str, say: Callable[[str], None]) -> FileLock:
        ends_at, pause, said = time.monotonic() + self._wait_sec, threading.Event(), False
        while True:
            try:
                with writable(self.root):
                    return FileLock(Path(file.name), file.fileno())
            except Held as held:
                if not said:
                    say(f"{name}: another process is pulling it; waiting for its end")
                said = True
                if time.monotonic() > ends_at:
                    words = f"another process is still pulling it after {self._wait_sec:g} s"
                    who = str(held) or f"it holds {file.name}"
                    raise UsageError(f"{name}: {words}; end it ({who}), or try again later") from None
            pause.wait(_BETWEEN_LOOKS_SEC)

    def staging(self, name: str) -> Path:
        """Where a directory of this name is built; an interrupted pull leaves there what it had. Raises UsageError."""
        path = self.root / f"{_STAGING}{name}"
        with writable(path):
            path.mkdir(exist_ok=True)
        return path

    def keep(self, name: str, built: Path, dataset: CachedDataset) -> CachedDataset:
        """Make the directory `built` the cache's own under this name, at once; the staging is gone then.

        Raises UsageError.
        """
        target, whole, replaced = (self.root / f"{prefix}{name}" for prefix in ("", _WHOLE, _REPLACED))
        with writable(target):
            _protect(built)
            write_json(built / RECORD, dataset.model_dump(mode="json"))
            # The last step makes it count: whoever is killed before leaves what the next pull throws away.
            _remove(whole)
            built.rename(whole)
            _remove(self.root / f"{_STAGING}{name}")
            _remove(replaced)
            if target.exists():
                target.rename(replaced)
            whole.rename(target)
            _remove(replaced)
        return dataset.model_copy(update={"path": target, "is_new": True})


def _protect(built: Path) -> None:
    for task in built.iterdir():
        for name in _NEVER_IN_A_CONTAINER:
            if (path := task / name).is_file() and not path.is_symlink():
                path.chmod(0o444)


def _remove(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)


@contextlib.contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a UsageError about `path`."""
    try:
        yield
    except Held:
        raise
    except OSError as error:
        advice = "make room there, or let TBENCH_CACHE name another directory"
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}; {advice}") from None


# The cache of converted tasks: what is given in the form of Terminal-Bench 1 runs in the current one.
#
# A directory per content of a task and version of the rules, whole or not there at all; an edit of it is noticed.

_CONVERTED_STAGING = ".converting-"


class _ConversionRecord(BaseModel):
    """What is known of a converted task: .tbench.json beside it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hash: str
    """The task's hash, as it was converted."""


class Conversions:
    """Reads tasks of either form; those of Terminal-Bench 1 as they are in the cache, converted where they are not."""

    def __init__(self) -> None:
        self.root = cache_directory().with_name("converted")
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
        staging = Path(tempfile.mkdtemp(prefix=_CONVERTED_STAGING, dir=self.root))
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

    with tempfile.TemporaryDirectory(prefix=_CONVERTED_STAGING, dir=path.parent) as staging:
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


# Copies of cached datasets that their owner may change.


def require_new(directory: Path) -> None:
    """Check that a copy can be made there. Raises UsageError."""
    if not is_unused(directory):
        raise UsageError(f"{directory}: is not empty; name a new directory (nothing is overwritten)")


def copy_tasks(entry: CachedDataset, directory: Path) -> None:
    """Copy the tasks into a new directory, with files that can be written. Raises UsageError."""
    require_new(directory)
    with writable(directory):
        for path in entry.paths:
            shutil.copytree(path, directory / path.name, symlinks=True)
            for file in (directory / path.name).iterdir():
                if file.is_file() and not file.is_symlink():
                    file.chmod(file.stat().st_mode | 0o200)
