"""Resolves names of datasets: in a registry, in tbench's own list, or in Harbor's cache."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from harness.endpoint.address import proxy_for
from tbench.datasets.digests import MANIFEST, ForeignRecord, Publication, is_digest, read_publication
from tbench.datasets.known_dataset import Access, KnownDataset, choose, known_versions, nearest_titles
from tbench.datasets.reference import DatasetName, GitSource, tag, usable_folder, usable_url, without_login
from tbench.errors import UsageError
from tbench.text import one_line
from tbench.web import Unanswered, WebRequest

# Registries: Harbor's registry.json, and rows of Terminal-Bench 1, which have a `github_url`

_HEAD = "HEAD"
_DEADLINE_SEC, _SILENCE_SEC = 60.0, 20.0


class _DatasetRow(ForeignRecord):
    """Common keys of rows."""

    name: Annotated[str, Field(min_length=1)]
    version: str | None = None
    description: str | None = None


class _ListedTask(ForeignRecord):
    name: str | None = None
    git_url: str | None = None
    """Repository; None if the path is on this machine."""
    git_commit_id: str | None = None
    path: Annotated[str, Field(min_length=1)]

    @property
    def task_name(self) -> str:
        return PurePosixPath(self.path).name or self.name or ""


class _HarborRow(_DatasetRow):
    tasks: tuple[_ListedTask, ...]


class _TerminalBench1Row(_DatasetRow):
    """A row of Terminal-Bench 1."""

    github_url: str
    dataset_path: str = ""
    branch: str | None = None
    commit_hash: str | None = None
    task_id_subset: tuple[str, ...] | None = None


def read_registry(place: str, *, offline: bool = False) -> tuple[KnownDataset, ...]:
    """Read the datasets of a registry, given as a file or URL. Raises UsageError."""
    shown = without_login(place)
    try:
        rows = json.loads(_content(place, offline=offline))
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError alike
        raise UsageError(f"{shown}: is not valid JSON ({one_line(str(error), 200)}); give a registry.json") from None
    except RecursionError:
        raise UsageError(f"{shown}: is nested too deeply; a registry is a list of datasets") from None
    if not isinstance(rows, list):
        raise UsageError(f"{shown}: is not a registry; a registry is a list of datasets in JSON")
    return tuple(_dataset(row, f"{shown}: row {number}", shown) for number, row in enumerate(rows, start=1))


def _content(place: str, *, offline: bool) -> bytes:
    if "://" in place:
        if offline and not place.startswith("file://"):
            raise UsageError(f"{without_login(place)}: is not contacted with --offline; give the registry as a file")
        if place.startswith(("http://", "https://")):
            return download(place)
        if not place.startswith("file://"):
            raise UsageError(f"{without_login(place)}: must be a file, or an http or https URL")
    path = Path(place.removeprefix("file://"))
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}; give a registry.json") from None


def download(url: str, deadline_sec: float = _DEADLINE_SEC) -> bytes:
    """Download an http or https URL. Raises UsageError, which names the URL and the proxy."""
    request = WebRequest(url, deadline_sec, silence_sec=_SILENCE_SEC)
    proxy, shown = proxy_for(url), without_login(url)
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
            return _from_terminal_bench_1(_TerminalBench1Row.model_validate(row), where, place)
        return _from_harbor(_HARBOR.validate_python(row), where, place)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, problem["loc"])) or "the row"
        raise UsageError(f"{where}: {key}: {problem['msg']}; it needs name, version and tasks") from None


_HARBOR = TypeAdapter(_HarborRow)


def _from_harbor(row: _HarborRow, where: str, place: str) -> KnownDataset:
    where = f"{where} ({row.name})"
    local = tuple(Path(task.path).absolute() for task in row.tasks if task.git_url is None)
    if local and len(local) < len(row.tasks):
        raise UsageError(f"{where}: only some tasks have a git_url; split them into two datasets")
    (name, times), *_ = Counter(task.task_name for task in row.tasks).most_common(1) or [("", 0)]
    if times > 1:
        raise UsageError(f"{where}: lists {name} {times} times; list each task once")
    return KnownDataset(
        name=row.name,
        version=row.version,
        source=place,
        pieces=tuple(_pieces(row, where)),
        directories=local,
        description=row.description or "",
        tasks=len(row.tasks),
    )


def _pieces(row: _HarborRow, where: str) -> Iterator[GitSource]:
    """Group a row's tasks by repository and commit, which every task repeats."""
    by_place: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for task in row.tasks:
        if task.git_url is not None:
            key = usable_url(task.git_url, where), _revision(task.git_commit_id, where)
            by_place.setdefault(key, []).append((task.task_name, usable_folder(task.path, where)))
    for (url, revision), listed in by_place.items():
        yield GitSource(url, revision, None, tuple(sorted(listed)))


def _from_terminal_bench_1(row: _TerminalBench1Row, where: str, place: str) -> KnownDataset:
    where = f"{where} ({row.name})"
    commit = row.commit_hash if row.commit_hash not in (None, "", "head") else None
    folder = usable_folder(row.dataset_path, where)
    subset = row.task_id_subset or ()
    listed = tuple(sorted((name, usable_folder(f"{folder}/{name}", where)) for name in subset))
    piece = GitSource(usable_url(row.github_url, where), _revision(commit or row.branch, where), folder, listed)
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
        raise UsageError(f"{where}: {revision}: not a commit, branch or tag")
    return revision


# tbench's own list of datasets, index.json

OWN = "tbench"
OWN_LIST = "tbench's own list"


@cache
def known_datasets() -> tuple[KnownDataset, ...]:
    """Return all datasets in tbench's own list, in the order of the file."""
    rows = json.loads((Path(__file__).parent / "index.json").read_text(encoding="utf-8"))
    return tuple(map(_listed_dataset, rows))


def _listed_dataset(row: dict[str, Any]) -> KnownDataset:
    revision = row.get("commit") or tag(row["tag"])
    return KnownDataset(
        name=row["name"],
        version=row["version"],
        source=OWN,
        pieces=(GitSource(row["url"], revision, row.get("folder")),),
        aliases=tuple(row["aliases"]),
        description=row["description"],
        tasks=row.get("tasks"),
        trials_per_task=row.get("trials_per_task"),
        listed_commit=row.get("commit"),
    )


@dataclass(frozen=True)
class HubNames:
    """Names of public datasets that are only on Harbor's hub."""

    made: str
    """Date of the list, as YYYY-MM-DD."""
    names: tuple[str, ...]

    def near(self, name: str) -> list[str]:
        """Return similar names; with the same last part, the organisation does not matter."""
        same = [each for each in self.names if each.rpartition("/")[2] == name.rpartition("/")[2]]
        return [*dict.fromkeys([*same, *get_close_matches(name, self.names, n=2, cutoff=0.75)])]


@cache
def hub_names() -> HubNames:
    """Return the list that comes with tbench; the hub is not asked."""
    content = json.loads((Path(__file__).parent / "hub.json").read_text(encoding="utf-8"))
    return HubNames(content["made"], tuple(content["names"]))


def hub_datasets() -> tuple[KnownDataset, ...]:
    """Return the datasets that tbench cannot fetch; the description is the command that fetches each."""
    return tuple(KnownDataset(name, None, "hub", description=f"harbor download {name}") for name in hub_names().names)


# Packages of Harbor's hub that Harbor has downloaded to this machine. The hub itself is not contacted.

HARBOR = "harbor"
_HEX = re.compile(r"[0-9a-f]{64}")


def harbor_cache() -> Path:
    """Return Harbor's cache directory."""
    return Path.home() / ".cache" / "harbor"


def find_package(wanted: DatasetName, root: Path) -> KnownDataset | None:
    """Find the dataset or task ORG/NAME in the cache at `root`; None if there is neither.

    Raises UsageError if there are several versions, or if tasks of the dataset are missing.
    """
    organisation, _, name = wanted.name.partition("/")
    if not name:
        return None
    reference = wanted.version if wanted.version and is_digest(wanted.version) else None
    if (found := _only_version(root / "datasets" / organisation / name, reference, wanted)) is not None:
        manifest = found / MANIFEST
        if manifest.is_file():
            return _hub_dataset(wanted, dict(_packages(read_publication(manifest), root, manifest)))
    if (found := _only_version(root / "tasks" / "packages" / organisation / name, reference, wanted)) is not None:
        return _hub_dataset(wanted, {name: found})
    return None


def _hub_dataset(wanted: DatasetName, packages: dict[str, Path]) -> KnownDataset:
    return KnownDataset(wanted.name, wanted.version, source=HARBOR, packages=packages, tasks=len(packages))


def _only_version(directory: Path, reference: str | None, wanted: DatasetName) -> Path | None:
    """Return the directory of a package's only version, or of the version that the reference names."""
    contents = sorted(path for path in directory.glob("*") if path.is_dir() and _HEX.fullmatch(path.name))
    if reference is not None:
        contents = [path for path in contents if f"sha256:{path.name}" == reference]
    if len(contents) > 1:
        known = ", ".join(f"sha256:{path.name}" for path in contents[:3])
        raise UsageError(f"{wanted}: {directory} has {len(contents)} versions; add @ and one of {known}")
    return contents[0] if contents else None


def _packages(publication: Publication, root: Path, manifest: Path) -> Iterator[tuple[str, Path]]:
    for task in publication.tasks:
        organisation, _, name = task.name.rpartition("/")
        path = root / "tasks" / "packages" / organisation / name / task.hex
        if not path.is_dir():
            raise UsageError(
                f"{manifest}: {task.name} is not in Harbor's cache; fetch it with: harbor download {task.name}"
            )
        yield name, path


def find_dataset(reference: DatasetName | GitSource, access: Access) -> KnownDataset:
    """Resolve a reference to a dataset. Raises UsageError, which suggests similar names for an unknown one."""
    return _git_dataset(reference) if isinstance(reference, GitSource) else _named_dataset(reference, access)


def all_datasets(access: Access) -> tuple[KnownDataset, ...]:
    """Return all datasets that can be given by name, a registry's first. Raises UsageError."""
    of_registry = read_registry(access.registry, offline=access.offline) if access.registry else ()
    return (*of_registry, *known_datasets())


def _git_dataset(piece: GitSource) -> KnownDataset:
    words = [PurePosixPath(re.split(r"[/:]", piece.url.rstrip("/"))[-1]).name.removesuffix(".git"), piece.folder or ""]
    name = re.sub(r"[^\w.-]+", "-", "-".join(filter(None, words))).strip("-.") or "repository"
    return KnownDataset(name, None, "git", pieces=(piece,))


def _named_dataset(wanted: DatasetName, access: Access) -> KnownDataset:
    own, others = known_datasets(), tuple[KnownDataset, ...]()
    if access.registry:
        others = read_registry(access.registry, offline=access.offline)
        if (found := choose(wanted, others, without_login(access.registry))) is not None:
            _say_version(wanted, found, others, access)
            return _with_listed_data(found, own, access)
    found = choose(wanted, own, OWN_LIST) or find_package(wanted, harbor_cache())
    if found is None:
        raise UsageError(f"{wanted}: {_why_unknown(wanted, (*others, *own), access)}")
    _say_version(wanted, found, own, access)
    return found


def _say_version(wanted: DatasetName, found: KnownDataset, datasets: tuple[KnownDataset, ...], access: Access) -> None:
    """Report which version was chosen for a name without version, and which others there are."""
    others = [version for version in known_versions(wanted.name, datasets) if version != found.version]
    if wanted.version is None and others:
        access.say(f"dataset {found.title}: the newest version; there are also {', '.join(others)}")


def _why_unknown(wanted: DatasetName, datasets: tuple[KnownDataset, ...], access: Access) -> str:
    """Return where the name was searched, and similar names."""
    where = f"{without_login(access.registry)} or {OWN_LIST}" if access.registry else OWN_LIST
    if versions := known_versions(wanted.name, datasets):
        return f"no such version in {where}; there are {', '.join(versions)}"
    near = list(dict.fromkeys([*nearest_titles(wanted, datasets), *hub_names().near(wanted.name)]))
    if wanted.name in hub_names().names:
        return f"it is only on Harbor's hub (list of {hub_names().made}); fetch it with: harbor download {wanted}"
    if "/" in wanted.name and not near:
        return (
            f"no such directory, and no dataset of this name in {where} or in Harbor's cache ({harbor_cache()}); "
            f"check the name, or fetch a package of Harbor's hub with: harbor download {wanted}"
        )
    advice = f"did you mean {' or '.join(near)}?" if near else "see tbench dataset list --all"
    return f"no such directory, and no dataset of this name in {where}; {advice}"


def _with_listed_data(found: KnownDataset, own: tuple[KnownDataset, ...], access: Access) -> KnownDataset:
    """Complete a registry's dataset with the data of the dataset of the same name in tbench's own list."""
    same = [each for each in own if each.has_name(found.name) and each.version == found.version]
    if not same:
        return found
    mine = same[0]
    commits = {piece.revision for piece in found.pieces}
    if mine.listed_commit and commits != {mine.listed_commit}:
        access.say(
            f"{found.title}: using {', '.join(sorted(commits))} from {found.source}; "
            f"{OWN_LIST} has commit {mine.listed_commit[:12]}"
        )
    return replace(found, trials_per_task=mine.trials_per_task, listed_commit=mine.listed_commit)
