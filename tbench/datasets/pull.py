"""Brings a dataset into the cache: fetched, checked out, checked, hashed, and only then counted as there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from tbench.datasets.cache import CachedDataset, DatasetCache, convert_in_place, entry_name, writable
from tbench.datasets.digests import MANIFEST, Publication, publication_beside
from tbench.datasets.git import GitFailed, Repository, find_commit, has_lfs, is_elsewhere, pointers_in
from tbench.datasets.known import TASKS_FOLDER, KnownDataset
from tbench.datasets.reference import Piece, without_login
from tbench.errors import TaskInvalid, UsageError
from tbench.tasks.task import Task
from tbench.tasks.terminal_bench_1 import DESCRIPTION, is_of_terminal_bench_1
from tbench.text import counted, names_shown, visible_line

_FORMS = (("task.toml", "instruction.md"), (DESCRIPTION,))
"""Files that make a folder a task: of the current form, and of Terminal-Bench 1."""
Say = Callable[[str], None]


def pull(
    known: KnownDataset, cache: DatasetCache, say: Say, *, refresh: bool = False, offline: bool = False
) -> CachedDataset:
    """The dataset in the cache, fetched where it is not there or `refresh` asks for it. Raises UsageError.

    What was there already is left as it is, and an interrupted pull goes on with what it had fetched.
    """
    if refresh and offline:
        raise UsageError(f"{known.title}: --refresh fetches it, and --offline asks no server; leave one of them out")
    if (entry := _there(known, cache, refresh=refresh, offline=offline)) is not None:
        return entry
    if offline and known.pieces:
        raise UsageError(
            f"{known.title}: is not in {cache.root}, and with --offline nothing is fetched; "
            f"fetch it once with: tbench dataset pull {_said(known)}"
        )
    known = replace(known, pieces=tuple(map(_with_commit, known.pieces)))
    name = entry_name(known)
    if not refresh and (entry := cache.find(name)) is not None:
        return entry
    with cache.locked(name, say) as lock:
        if not refresh and (entry := cache.find(name)) is not None:
            return entry  # another process was faster
        return _build(known, cache.staging(name), lock, cache, say)


def _there(known: KnownDataset, cache: DatasetCache, *, refresh: bool, offline: bool) -> CachedDataset | None:
    """What the cache has, as far as that can be told without asking a server."""
    if refresh:
        return None
    if known.packages or all(piece.is_commit for piece in known.pieces):
        return cache.find(entry_name(known))
    # A branch may have moved on since.
    return cache.newest(known) if offline or all(piece.is_fixed for piece in known.pieces) else None


def _with_commit(piece: Piece) -> Piece:
    return replace(piece, commit=piece.revision if piece.is_commit else find_commit(piece.url, piece.revision))


def _said(known: KnownDataset) -> str:
    """The dataset as the user would name it."""
    if known.source != "git" or len(known.pieces) != 1:
        return known.title
    piece = known.pieces[0]
    return f"git+{without_login(piece.url)}@{piece.revision}" + (f"#{piece.folder}" if piece.folder else "")


def _build(known: KnownDataset, staging: Path, lock: int, cache: DatasetCache, say: Say) -> CachedDataset:
    built = staging / "dataset"
    with writable(staging):
        shutil.rmtree(built, ignore_errors=True)
        built.mkdir()

    def tell(text: str) -> None:
        say(f"{known.title}: {text}")

    paths = [staging / f"repository-{number}" for number in range(len(known.pieces))]
    found = [_fetched(piece, path, lock, tell) for piece, path in zip(known.pieces, paths, strict=True)]
    pieces = tuple(piece for piece, _ in found)
    beside = [publication_beside(path / piece.tasks_in) for piece, path in zip(pieces, paths, strict=True)]
    with writable(staging):
        for _, tasks in found:
            _move(tasks, built, known.title)
        _convert(built, tell)
        _copy(known.packages, built)
    dataset = _described(replace(known, pieces=pieces), list(filter(None, beside)), built)
    entry = cache.keep(entry_name(known), built, dataset)
    tell(f"{counted(len(entry.hashes), 'task')} in {entry.path}")
    return entry


def _fetched(piece: Piece, path: Path, lock: int, say: Say) -> tuple[Piece, Mapping[str, Path]]:
    """The piece's tasks in a checkout at `path`, which may go on with one of an interrupted pull."""
    goes_on = path.exists()
    try:
        return _checked_out(piece, path, lock, say)
    except GitFailed as failure:
        if not goes_on or is_elsewhere(failure.output):
            raise
    # A process that was killed may have left anything: once more, from nothing.
    shutil.rmtree(path, ignore_errors=True)
    return _checked_out(piece, path, lock, say)


def _checked_out(piece: Piece, path: Path, lock: int, say: Say) -> tuple[Piece, Mapping[str, Path]]:
    repository, commit, shown = Repository(path, piece.url, lock), piece.commit, without_login(piece.url)
    with writable(path):
        repository.begin()
    if not repository.has(commit):
        say(f"fetching commit {commit[:12]} of {shown}")
        repository.fetch(commit)
    folder, names = _listed(piece) if piece.listed else _looked_up(repository, piece, shown)
    wanted = {name: _below(folder, where) for name, where in names.items()}
    # Git compares each file of the commit with each pattern: a whole folder is one.
    parts = (
        [f"{folder}/"] if folder and len(wanted) > 1 and not piece.listed else [f"{each}/" for each in wanted.values()]
    )
    repository.check_out(commit, [*parts, _below(folder, MANIFEST), ".gitattributes"])
    tasks = {name: path / where for name, where in wanted.items()}
    _require_tasks(tasks, f"{shown} at {commit[:12]}")
    _bring_lfs(repository, folder, list(tasks.values()), shown)
    return replace(piece, tasks_in=folder), tasks


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _listed(piece: Piece) -> tuple[str, dict[str, str]]:
    """The folder that all listed tasks are in, and where in it each is; without such a folder, the root."""
    parents = {str(PurePosixPath(where).parent) for _, where in piece.listed}
    if len(parents) == 1 and (parent := parents.pop()) != ".":
        return parent, {name: PurePosixPath(where).name for name, where in piece.listed}
    return "", dict(piece.listed)


def _looked_up(repository: Repository, piece: Piece, shown: str) -> tuple[str, dict[str, str]]:
    """The folder of the tasks in the commit, and the name of each."""
    commit = piece.commit
    candidates = [piece.folder] if piece.folder is not None else ["", TASKS_FOLDER]
    for folder in candidates:
        folders = repository.folders(commit, folder)
        if folders is None:
            continue
        files = repository.files_in(commit, folder)
        for form in _FORMS:
            if folder and files.intersection(form):  # the folder is one task
                parent, _, name = folder.rpartition("/")
                return parent, {name: name}
            names = [each for each in folders if any(f"{each}/{file}" in files for file in form)]
            if names := [name for name in names if not name.startswith(".")]:
                return folder, {name: name for name in names}
    where = f"{shown} at {commit[:12]}: {' and '.join(each or 'its root' for each in candidates)}"
    raise UsageError(f"{where}: no task there (a task directory has a task.toml); name the folder with #FOLDER")


def _require_tasks(tasks: Mapping[str, Path], where: str) -> None:
    for name, path in tasks.items():
        if visible_line(name) != name or name in ("", ".", ".."):
            raise UsageError(f"{where}: {visible_line(name)}: no name of a task")
        if not path.is_dir() or path.is_symlink():
            raise UsageError(f"{where}: has no task {name}; check commit and path")
        if not any((path / file).exists() for form in _FORMS for file in form):
            raise UsageError(f"{where}: {name} has no task.toml, which tbench does not read; choose another dataset")


def _bring_lfs(repository: Repository, folder: str, tasks: list[Path], shown: str) -> None:
    """Replace git-lfs's pointers by their files. Raises UsageError where that cannot be done."""
    if not pointers_in(tasks):
        return
    installed = has_lfs()
    if installed:
        repository.pull_lfs(folder)
    if left := pointers_in(tasks):
        names = names_shown(path.relative_to(repository.path).as_posix() for path in left)
        advice = "git-lfs did not bring them" if installed else "install git-lfs (apt install git-lfs), then pull again"
        raise UsageError(f"{shown}: only pointers of git-lfs are there for {names}; {advice}")


def _move(tasks: Mapping[str, Path], built: Path, title: str) -> None:
    for name, path in tasks.items():
        if (built / name).exists():
            raise UsageError(f"{title}: two of its tasks are called {name}; name each task once")
        path.rename(built / name)


def _convert(built: Path, say: Say) -> None:
    """Turn tasks of Terminal-Bench 1 into the current form; one that cannot be is left, and reading it says why."""
    earlier = [path for path in sorted(built.iterdir()) if is_of_terminal_bench_1(path)]
    left = 0
    for path in earlier:
        try:
            convert_in_place(path)
        except TaskInvalid:
            left += 1
    if earlier:
        more = f"; {left:,} cannot be" if left else ""
        say(f"{counted(len(earlier) - left, 'task')} of Terminal-Bench 1 converted to the current form{more}")


def _copy(packages: Mapping[str, Path], built: Path) -> None:
    """Copy tasks out of Harbor's cache, where an interrupted download looks like a whole one."""
    for name, path in packages.items():
        shutil.copytree(path, built / name, symlinks=True)
        try:
            digest = Task.read(built / name).hash
        except TaskInvalid as error:
            raise UsageError(f"{path}: cannot be read: {error}; let Harbor download it again") from None
        if digest != path.name:
            raise UsageError(f"{path}: has another content than its name says; let Harbor download it again")


def _described(known: KnownDataset, publications: Sequence[Publication], built: Path) -> CachedDataset:
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
