"""Caches of datasets and of converted tasks, with one complete directory for each, and copies of them.

Cached directories are never modified. Files that never go into a container are read-only; the others keep their modes
from git, which containers see. A change of any file is detected by the task's hash.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tbench import files
from tbench.datasets.known_dataset import KnownDataset
from tbench.datasets.reference import GitSource, without_login
from tbench.errors import TaskInvalid, UsageError
from tbench.files import cache_home, is_unused, write_json
from tbench.locks import Held, hold_lock
from tbench.tasks.task import Task
from tbench.tasks.terminal_bench_1 import is_of_terminal_bench_1
from tbench.text import counted

RECORD = ".tbench.json"
_STAGING, _WHOLE, _REPLACED, _LOCK = ".pulling-", ".pulled-", ".replaced-", ".lock-"
_NEVER_IN_A_CONTAINER = ("task.toml", "instruction.md", "README.md")
_FORMAT = 1
WAIT_SEC = 4 * 3600.0
"""Seconds to wait for another process; longer than a pull, whose three long steps time out after an hour each."""


writable = partial(files.writable, advice="free some space, or set TBENCH_CACHE to another directory")
"""Converts an OSError in a block to a UsageError about a path."""


class CachedDataset(BaseModel):
    """A dataset in the cache, as recorded by .tbench.json in its directory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = _FORMAT
    name: str
    version: str | None
    pieces: tuple[GitSource, ...]
    hashes: Mapping[str, str | None]
    """Hash by task at the time of the pull; None for an unreadable task."""
    published: Mapping[str, str]
    """Published digest by task."""
    digest: str | None
    """Published digest of the whole dataset."""
    pulled_at: str
    path: Path = Field(default=Path(), exclude=True)
    """Directory in the cache."""
    is_new: bool = Field(default=False, exclude=True)
    """Whether this process has just pulled it."""

    @property
    def paths(self) -> list[Path]:
        """Task directories, sorted by name."""
        return [self.path / name for name in sorted(self.hashes)]


def cache_directory() -> Path:
    """Return the directory of cached datasets: in TBENCH_CACHE, else below XDG_CACHE_HOME, else below ~/.cache."""
    return cache_home() / "datasets"


def entry_name(known: KnownDataset) -> str:
    """Return the name of a dataset's directory in the cache. All commits have to be known."""
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
    """Cached datasets in a directory, which is created by the first pull."""

    def __init__(self, root: Path, wait_sec: float = WAIT_SEC) -> None:
        """`wait_sec`: how long to wait for another process that pulls the same dataset."""
        self.root = root
        self._wait_sec = wait_sec

    def find(self, name: str) -> CachedDataset | None:
        """Return the dataset in the directory of this name; None if it is missing or incomplete."""
        path = self.root / name
        try:
            found = CachedDataset.model_validate_json((path / RECORD).read_bytes())
        except (OSError, ValidationError):
            return None
        return found.model_copy(update={"path": path}) if found.format == _FORMAT else None

    def entries(self) -> Iterator[CachedDataset]:
        """Iterate over all datasets, sorted by name."""
        try:
            names = sorted(path.name for path in self.root.iterdir() if not path.name.startswith("."))
        except OSError:
            return
        yield from filter(None, map(self.find, names))

    def newest(self, known: KnownDataset) -> CachedDataset | None:
        """Return the most recent pull of the same name, version and revisions, at any commit."""
        asked = [(without_login(piece.url), piece.revision, piece.folder, piece.listed) for piece in known.pieces]
        found = [
            entry
            for entry in self.entries()
            if (entry.name, entry.version) == (known.name, known.version)
            and asked == [(each.url, each.revision, each.folder, each.listed) for each in entry.pieces]
        ]
        return max(found, key=lambda entry: entry.pulled_at, default=None)

    @contextlib.contextmanager
    def lock(self, name: str, say: Callable[[str], None]) -> Iterator[int]:
        """Lock a directory against other processes that build it, waiting for them first. Raises UsageError.

        Yields the descriptor of the lock: child processes that inherit it keep the lock if this process is killed.
        """
        with writable(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / f"{_LOCK}{name}").open("ab")
        waiting = partial(say, f"{name}: waiting for another process that is pulling it")
        with file, contextlib.ExitStack() as stack:
            try:
                with writable(self.root):
                    stack.enter_context(hold_lock(Path(file.name), file.fileno(), self._wait_sec, waiting))
            except Held as held:
                holder = str(held) or f"it holds {file.name}"
                reason = f"another process is still pulling it after {self._wait_sec:g} s ({holder})"
                raise UsageError(f"{name}: {reason}; end that process, or try again later") from None
            yield file.fileno()

    def staging(self, name: str) -> Path:
        """Create the directory in which a dataset is built; it may contain an interrupted pull. Raises UsageError."""
        path = self.root / f"{_STAGING}{name}"
        with writable(path):
            path.mkdir(exist_ok=True)
        return path

    def keep(self, name: str, built: Path, dataset: CachedDataset) -> CachedDataset:
        """Move the directory `built` into the cache atomically and remove the staging directory. Raises UsageError."""
        target, whole, replaced = (self.root / f"{prefix}{name}" for prefix in ("", _WHOLE, _REPLACED))
        with writable(target):
            _protect(built)
            write_json(built / RECORD, dataset.model_dump(mode="json"))
            # Only the last rename makes it valid: the next pull discards the leftovers of a process killed before.
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


# Cache of Terminal-Bench 1 tasks that were converted to the current format
# There is one complete directory for each content of a task and version of the rules. A changed directory is refused.

_CONVERTED_STAGING = ".converting-"


class _ConversionRecord(BaseModel):
    """Content of .tbench.json next to a converted task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hash: str
    """Hash of the converted task."""


class Conversions:
    """Reads tasks in either format. Terminal-Bench 1 tasks are converted unless they are in the cache."""

    def __init__(self) -> None:
        self.root = cache_directory().with_name("converted")
        self.count = 0
        """Number of converted tasks that were read."""

    def read(self, path: Path) -> Task:
        """Read the task at `path`. Raises TaskInvalid, also if it cannot be converted."""
        if not is_of_terminal_bench_1(path):
            return Task.read(path)
        path = path.resolve()
        try:
            task = self._read_or_convert(path)
        except OSError as error:
            raise TaskInvalid(f"{error.filename or path}: {error.strerror or error}") from None
        self.count += 1
        return task

    @property
    def words(self) -> str | None:
        """A line about the converted tasks; None without any."""
        if not self.count:
            return None
        return f"{counted(self.count, 'Terminal-Bench 1 task')} converted to the current format in {self.root}"

    def _read_or_convert(self, path: Path) -> Task:
        from tbench.tasks.terminal_bench_1.conversion import RULES  # imported late, because it imports YAML

        target = self.root / f"{RULES}-{_digest(path)[:20]}"
        if not (target / RECORD).is_file():
            self._convert(path, target)
        task = Task.read(target / path.name)
        try:
            record = _ConversionRecord.model_validate_json((target / RECORD).read_bytes())
        except ValidationError:
            record = None
        if record is None or record.hash != task.hash:
            raise TaskInvalid(f"{target}: changed after conversion from {path}; remove it (or run a copy of it)")
        return task

    def _convert(self, path: Path, target: Path) -> None:
        """Convert the task into a temporary directory and rename it to `target`: other processes may do the same."""
        from tbench.tasks.terminal_bench_1.conversion import convert

        self.root.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=_CONVERTED_STAGING, dir=self.root))
        try:
            task = Task.read(convert(path, staging / path.name).path)
            write_json(staging / RECORD, _ConversionRecord(hash=task.hash).model_dump())
            if not (target / RECORD).is_file():
                shutil.rmtree(target, ignore_errors=True)  # incomplete
            try:
                staging.rename(target)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise  # otherwise another process was faster
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def convert_in_place(path: Path) -> None:
    """Replace the task at `path` by the converted one. Raises TaskInvalid and leaves the task unchanged."""
    from tbench.tasks.terminal_bench_1.conversion import convert

    with tempfile.TemporaryDirectory(prefix=_CONVERTED_STAGING, dir=path.parent) as staging:
        made = convert(path, Path(staging) / path.name).path
        path.rename(Path(staging) / "before")
        made.rename(path)


def _digest(path: Path) -> str:
    """Return sha256 over a directory's name and the names and contents of everything in it."""
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


# Copies of cached datasets that the user can change


def require_new(directory: Path) -> None:
    """Check that the directory is new or empty. Raises UsageError."""
    if not is_unused(directory):
        raise UsageError(f"{directory}: not empty; name a new directory (nothing is overwritten)")


def copy_tasks(entry: CachedDataset, directory: Path) -> None:
    """Copy the tasks to a new directory and make their files writable. Raises UsageError."""
    require_new(directory)
    with writable(directory):
        for path in entry.paths:
            shutil.copytree(path, directory / path.name, symlinks=True)
            for file in (directory / path.name).iterdir():
                if file.is_file() and not file.is_symlink():
                    file.chmod(file.stat().st_mode | 0o200)
