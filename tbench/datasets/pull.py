"""Pulls a dataset into the cache: fetches, checks out, verifies and hashes it before it becomes visible."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from tbench.datasets.cache import CachedDataset, DatasetCache, convert_in_place, entry_name, writable
from tbench.datasets.digests import MANIFEST, Publication, read_publication_in
from tbench.datasets.git import GitFailed, Repository, find_commit, find_lfs_pointers, has_lfs, is_external
from tbench.datasets.known_dataset import TASKS_FOLDER, KnownDataset
from tbench.datasets.reference import GitSource, without_login
from tbench.errors import TaskInvalid, UsageError
from tbench.tasks.sources import FOLDERS_DOWN
from tbench.tasks.task import Task
from tbench.tasks.terminal_bench_1 import DESCRIPTION, is_of_terminal_bench_1
from tbench.text import counted, names_text, visible_line

_FORMS = (("task.toml", "instruction.md"), (DESCRIPTION,))
"""Files that identify a folder as a task, in the current format and in Terminal-Bench 1's."""
Say = Callable[[str], None]


def pull(
    known: KnownDataset, cache: DatasetCache, say: Say, *, refresh: bool = False, offline: bool = False
) -> CachedDataset:
    """Return the cached dataset; fetch it if it is missing or with `refresh`. Raises UsageError.

    Existing entries stay unchanged, and an interrupted pull is resumed.
    """
    if refresh and offline:
        raise UsageError(f"{known.title}: --refresh and --offline exclude each other; give only one of them")
    if (entry := _find_cached(known, cache, refresh=refresh, offline=offline)) is not None:
        return entry
    if offline and known.pieces:
        raise UsageError(
            f"{known.title}: is not in {cache.root}, and --offline fetches nothing; "
            f"fetch it with: tbench dataset pull {_reference_to(known)}"
        )
    known = replace(known, pieces=tuple(map(_with_commit, known.pieces)))
    name = entry_name(known)
    if not refresh and (entry := cache.find(name)) is not None:
        return entry
    with cache.lock(name, say) as lock:
        if not refresh and (entry := cache.find(name)) is not None:
            return entry  # another process was faster
        return _build(known, cache.staging(name), lock, cache, say)


def _find_cached(known: KnownDataset, cache: DatasetCache, *, refresh: bool, offline: bool) -> CachedDataset | None:
    """Return the dataset from the cache if no server has to be asked for its commit; None otherwise."""
    if refresh:
        return None
    if known.packages or all(piece.is_commit for piece in known.pieces):
        return cache.find(entry_name(known))
    # A branch may have moved.
    return cache.newest(known) if offline or all(piece.is_fixed for piece in known.pieces) else None


def _with_commit(piece: GitSource) -> GitSource:
    return replace(piece, commit=piece.revision if piece.is_commit else find_commit(piece.url, piece.revision))


def _reference_to(known: KnownDataset) -> str:
    """Return the dataset's reference for the command line."""
    if known.source != "git" or len(known.pieces) != 1:
        return known.title
    piece = known.pieces[0]
    return f"git+{without_login(piece.url)}@{piece.revision}" + (f"#{piece.folder}" if piece.folder else "")


def _build(known: KnownDataset, staging: Path, lock: int, cache: DatasetCache, say: Say) -> CachedDataset:
    built = staging / "dataset"
    with writable(staging):
        shutil.rmtree(built, ignore_errors=True)
        built.mkdir()

    def report(text: str) -> None:
        say(f"{known.title}: {text}")

    paths = [staging / f"repository-{number}" for number in range(len(known.pieces))]
    found = [_fetch(piece, path, lock, report) for piece, path in zip(known.pieces, paths, strict=True)]
    pieces = tuple(piece for piece, _ in found)
    publications = [read_publication_in(path / piece.tasks_in) for piece, path in zip(pieces, paths, strict=True)]
    with writable(staging):
        for _, tasks in found:
            _move(tasks, built, known.title)
        _convert(built, report)
        _copy(known.packages, built)
    dataset = _make_cache_entry(replace(known, pieces=pieces), list(filter(None, publications)), built)
    entry = cache.keep(entry_name(known), built, dataset)
    report(f"{counted(len(entry.hashes), 'task')} in {entry.path}")
    return entry


def _fetch(piece: GitSource, path: Path, lock: int, say: Say) -> tuple[GitSource, Mapping[str, Path]]:
    """Check out a source's tasks at `path`, continuing an interrupted pull if there is one."""
    goes_on = path.exists()
    try:
        return _check_out(piece, path, lock, say)
    except GitFailed as failure:
        if not goes_on or is_external(failure.output):
            raise
    # A killed process may have left a bad state, so start from scratch once.
    shutil.rmtree(path, ignore_errors=True)
    return _check_out(piece, path, lock, say)


def _check_out(piece: GitSource, path: Path, lock: int, say: Say) -> tuple[GitSource, Mapping[str, Path]]:
    repository, commit, shown = Repository(path, piece.url, lock), piece.commit, without_login(piece.url)
    with writable(path):
        repository.begin()
    if not repository.has(commit):
        say(f"fetching commit {commit[:12]} of {shown}")
        repository.fetch(commit)
    folder, names = _listed_tasks(piece) if piece.listed else _look_up(repository, piece, shown)
    wanted = {name: _join(folder, where) for name, where in names.items()}
    # One pattern for a whole folder, because git compares every file of the commit with every pattern.
    parts = (
        [f"{folder}/"] if folder and len(wanted) > 1 and not piece.listed else [f"{each}/" for each in wanted.values()]
    )
    repository.check_out(commit, [*parts, _join(folder, MANIFEST), ".gitattributes"])
    tasks = {name: path / where for name, where in wanted.items()}
    _require_tasks(tasks, f"{shown} at {commit[:12]}")
    _bring_lfs(repository, folder, list(tasks.values()), shown)
    return replace(piece, tasks_in=folder), tasks


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _listed_tasks(piece: GitSource) -> tuple[str, dict[str, str]]:
    """Return the common folder of all listed tasks, by default the root, and the path of each task in it."""
    parents = {str(PurePosixPath(where).parent) for _, where in piece.listed}
    if len(parents) == 1 and (parent := parents.pop()) != ".":
        return parent, {name: PurePosixPath(where).name for name, where in piece.listed}
    return "", dict(piece.listed)


def _look_up(repository: Repository, piece: GitSource, shown: str) -> tuple[str, dict[str, str]]:
    """Find the tasks in the commit; return their folder and the path of each task in it."""
    commit = piece.commit
    candidates = [piece.folder] if piece.folder is not None else ["", TASKS_FOLDER]
    # Folders of folders only if no candidate has tasks itself; the usual folder comes first then.
    for levels, folder in [*((0, each) for each in candidates), *((FOLDERS_DOWN, each) for each in candidates[::-1])]:
        if repository.folders(commit, folder) is None:
            continue
        files = repository.list_files(commit, folder, 1 + levels)
        for form in _FORMS:
            if folder and files.intersection(form):  # the folder is one task
                parent, _, name = folder.rpartition("/")
                return parent, {name: name}
            if found := _uppermost({file.rpartition("/")[0] for file in files if file.rpartition("/")[2] in form}):
                return folder, {place.replace("/", "."): place for place in found}
    where = f"{shown} at {commit[:12]}: {' and '.join(each or 'its root' for each in candidates)}"
    raise UsageError(f"{where}: no tasks found (a task directory has a task.toml); add the folder as #FOLDER")


def _uppermost(places: Collection[str]) -> list[str]:
    """Return the folders of tasks, without hidden ones and without folders inside a task."""
    shown = [PurePosixPath(place) for place in places if place and not re.search(r"(?:^|/)\.", place)]
    parents = {place.parent for place in shown}
    return sorted(str(place) for place in shown if parents.isdisjoint(place.parent.parents))


def _require_tasks(tasks: Mapping[str, Path], where: str) -> None:
    for name, path in tasks.items():
        if visible_line(name) != name or name in ("", ".", ".."):
            raise UsageError(f"{where}: {visible_line(name)}: is not a valid name of a task")
        if not path.is_dir() or path.is_symlink():
            raise UsageError(f"{where}: has no task {name}; check commit and path")
        if not any((path / file).exists() for form in _FORMS for file in form):
            raise UsageError(f"{where}: {name} has no task.toml, so tbench cannot read it; choose another dataset")


def _bring_lfs(repository: Repository, folder: str, tasks: list[Path], shown: str) -> None:
    """Replace git-lfs pointers by their files. Raises UsageError if that fails."""
    if not find_lfs_pointers(tasks):
        return
    installed = has_lfs()
    if installed:
        repository.pull_lfs(folder)
    if left := find_lfs_pointers(tasks):
        names = names_text(path.relative_to(repository.path).as_posix() for path in left)
        advice = "git-lfs did not fetch them" if installed else "install git-lfs (apt install git-lfs) and pull again"
        raise UsageError(f"{shown}: only git-lfs pointers instead of {names}; {advice}")


def _move(tasks: Mapping[str, Path], built: Path, title: str) -> None:
    for name, path in tasks.items():
        if (built / name).exists():
            raise UsageError(f"{title}: has two tasks named {name}; list each task once")
        path.rename(built / name)


def _convert(built: Path, say: Say) -> None:
    """Convert Terminal-Bench 1 tasks. Those that cannot be converted stay, and reading them reports the reason."""
    earlier = [path for path in sorted(built.iterdir()) if is_of_terminal_bench_1(path)]
    left = 0
    for path in earlier:
        try:
            convert_in_place(path)
        except TaskInvalid:
            left += 1
    if earlier:
        more = f"; {left:,} cannot be converted" if left else ""
        say(f"{counted(len(earlier) - left, 'Terminal-Bench 1 task')} converted to the current format{more}")


def _copy(packages: Mapping[str, Path], built: Path) -> None:
    """Copy tasks from Harbor's cache and check them, because an interrupted download looks like a complete one."""
    for name, path in packages.items():
        shutil.copytree(path, built / name, symlinks=True)
        try:
            digest = Task.read(built / name).hash
        except TaskInvalid as error:
            raise UsageError(f"{path}: cannot be read: {error}; let Harbor download it again") from None
        if digest != path.name:
            raise UsageError(f"{path}: its content does not match its digest; let Harbor download it again")


def _make_cache_entry(known: KnownDataset, publications: Sequence[Publication], built: Path) -> CachedDataset:
    published = {name: digest for each in publications for name, digest in each.digests.items()}
    published |= {name: path.name for name, path in known.packages.items()}
    return CachedDataset(
        name=known.name,
        version=known.version,
        pieces=tuple(replace(piece, url=without_login(piece.url)) for piece in known.pieces),
        hashes=dict(_hashes(built)),
        published=published,
        digest=publications[0].digest if len(publications) == 1 else None,
        pulled_at=datetime.now(UTC).isoformat(),
    )


def _hashes(built: Path) -> Iterator[tuple[str, str | None]]:
    for path in sorted(built.iterdir()):
        try:
            yield path.name, Task.read(path).hash
        except TaskInvalid:
            yield path.name, None
