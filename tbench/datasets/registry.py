"""A registry: Harbor's registry.json as it is, and the rows of Terminal-Bench 1, which have a `github_url`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from harness.endpoint.address import proxy_of
from tbench.datasets.known import KnownDataset, Piece
from tbench.datasets.reference import usable_folder, usable_url, without_login
from tbench.errors import UsageError
from tbench.text import one_line
from tbench.web import Unanswered, WebRequest

_HEAD = "HEAD"
_DEADLINE_SEC, _SILENCE_SEC = 60.0, 20.0


class _DatasetRow(BaseModel):
    """What rows have in common. Other keys are others' business."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    version: str | None = None
    description: str | None = None


class _ListedTask(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str | None = None
    git_url: str | None = None
    """The repository; without it the path is one of this machine."""
    git_commit_id: str | None = None
    path: Annotated[str, Field(min_length=1)]

    @property
    def task_name(self) -> str:
        return PurePosixPath(self.path).name or self.name or ""


class _HarborRow(_DatasetRow):
    tasks: tuple[_ListedTask, ...]


class _EarlierRow(_DatasetRow):
    """A row of Terminal-Bench 1."""

    github_url: str
    dataset_path: str = ""
    branch: str | None = None
    commit_hash: str | None = None
    task_id_subset: tuple[str, ...] | None = None


def read_registry(place: str, *, offline: bool = False) -> tuple[KnownDataset, ...]:
    """The datasets of the registry in a file or at a URL. Raises UsageError."""
    shown = without_login(place)
    try:
        rows = json.loads(_content(place, offline=offline))
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError alike
        raise UsageError(f"{shown}: is no JSON ({one_line(str(error), 200)}); give a registry.json") from None
    except RecursionError:
        raise UsageError(f"{shown}: is nested too deeply; a registry is a list of datasets") from None
    if not isinstance(rows, list):
        raise UsageError(f"{shown}: is no registry; a registry is a list of datasets in JSON")
    return tuple(_dataset(row, f"{shown}: row {number}", shown) for number, row in enumerate(rows, start=1))


def _content(place: str, *, offline: bool) -> bytes:
    if "://" in place:
        if offline and not place.startswith("file://"):
            raise UsageError(f"{without_login(place)}: is not asked with --offline; give the registry as a file")
        if place.startswith(("http://", "https://")):
            return downloaded(place)
        if not place.startswith("file://"):
            raise UsageError(f"{without_login(place)}: a registry is a file, or at an http or https URL")
    path = Path(place.removeprefix("file://"))
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}; give a registry.json") from None


def downloaded(url: str, deadline_sec: float = _DEADLINE_SEC) -> bytes:
    """The content at an http or https URL. Raises UsageError, naming the URL and the proxy that was used."""
    request = WebRequest(url, deadline_sec, silence_sec=_SILENCE_SEC)
    proxy, shown = proxy_of(url), without_login(url)
    where = f"{shown} through {proxy}" if proxy else shown
    try:
        answer = request.answer()
    except Unanswered as why:
        raise UsageError(f"{where}: {why}; check the URL and the network, or give a file") from None
    if not 200 <= answer.status < 300:
        raise UsageError(f"{where}: HTTP {answer.status} ({answer.reason}); check the URL")
    return answer.body


def _dataset(row: Any, where: str, place: str) -> KnownDataset:
    try:
        if isinstance(row, dict) and "github_url" in row:
            return _of_earlier(_EarlierRow.model_validate(row), where, place)
        return _of_harbor(_HARBOR.validate_python(row), where, place)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, problem["loc"])) or "the row"
        raise UsageError(f"{where}: {key}: {problem['msg']}; it needs name, version and tasks") from None


_HARBOR = TypeAdapter(_HarborRow)


def _of_harbor(row: _HarborRow, where: str, place: str) -> KnownDataset:
    where = f"{where} ({row.name})"
    local = tuple(Path(task.path).absolute() for task in row.tasks if task.git_url is None)
    if local and len(local) < len(row.tasks):
        raise UsageError(f"{where}: some tasks have a git_url and some have none; make two datasets of them")
    (name, times), *_ = Counter(task.task_name for task in row.tasks).most_common(1) or [("", 0)]
    if times > 1:
        raise UsageError(f"{where}: lists {name} {times} times; name each task once")
    return KnownDataset(
        name=row.name,
        version=row.version,
        source=place,
        pieces=tuple(_pieces(row, where)),
        directories=local,
        description=row.description or "",
        tasks=len(row.tasks),
    )


def _pieces(row: _HarborRow, where: str) -> Iterator[Piece]:
    """Its tasks by repository and commit, which are repeated in every task."""
    by_place: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for task in row.tasks:
        if task.git_url is not None:
            key = usable_url(task.git_url, where), _revision(task.git_commit_id, where)
            by_place.setdefault(key, []).append((task.task_name, usable_folder(task.path, where)))
    for (url, revision), listed in by_place.items():
        yield Piece(url, revision, None, tuple(sorted(listed)))


def _of_earlier(row: _EarlierRow, where: str, place: str) -> KnownDataset:
    where = f"{where} ({row.name})"
    commit = row.commit_hash if row.commit_hash not in (None, "", "head") else None
    folder = usable_folder(row.dataset_path, where)
    subset = row.task_id_subset or ()
    listed = tuple(sorted((name, usable_folder(f"{folder}/{name}", where)) for name in subset))
    piece = Piece(usable_url(row.github_url, where), _revision(commit or row.branch, where), folder, listed)
    return KnownDataset(
        name=row.name,
        version=row.version,
        source=place,
        pieces=(piece,),
        description=row.description or "",
        tasks=len(subset) or None,
    )


def _revision(revision: str | None, where: str) -> str:
    revision = revision or _HEAD
    if revision.startswith("-") or not revision.isprintable() or " " in revision:
        raise UsageError(f"{where}: {revision}: no commit, branch or tag")
    return revision
