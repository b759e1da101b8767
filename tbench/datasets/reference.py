"""References to tasks: `bundled`, a path, `git+URL@REV#FOLDER`, NAME[@VERSION], ORG/NAME[@REF]."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from harness.endpoint.address import without_password
from tbench.errors import UsageError
from tbench.tasks.sources import BUNDLED

_GIT = "git+"
_SCHEMES = ("https", "http", "ssh", "git", "file")
_SCP = re.compile(r"[\w.-]+@[\w.-]+:[^\s-]\S*")
_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TAGS = "refs/tags/"
_NAMED = re.compile(rf"({_WORD}(?:/{_WORD})?)(?:@([A-Za-z0-9][\w.:+-]*))?")


@dataclass(frozen=True)
class GitSource:
    """Tasks in a git repository at a revision."""

    url: str
    revision: str
    """A commit, a branch, a tag, or HEAD."""
    folder: str | None = None
    """Folder whose subfolders with a task.toml are the tasks; None: the root, or else `tasks/`."""
    listed: tuple[tuple[str, str], ...] = ()
    """Name and folder of each task, if tasks are listed individually."""
    commit: str = ""
    """Commit of the revision; empty until resolved."""
    tasks_in: str = ""
    """Folder in which the tasks were found; empty before the fetch, and for the root."""

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a full commit id, which always identifies the same content."""
        return is_commit(self.revision)

    @property
    def is_fixed(self) -> bool:
        """Whether the revision should always identify the same content: a commit or a tag."""
        return self.is_commit or self.revision.startswith(_TAGS)


@dataclass(frozen=True)
class DatasetName:
    """Name of a dataset, optionally with a version."""

    name: str
    version: str | None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


Reference = Path | GitSource | DatasetName
"""A path (directory of tasks, single task or `bundled`), a git source, or the name of a dataset."""


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


def tag(name: str) -> str:
    """Return the revision of a tag."""
    return f"{_TAGS}{name}"


def parse_reference(source: str) -> Reference:
    """Parse `source`; an existing directory always takes precedence over a name.

    Raises UsageError for an invalid git source.
    """
    if source.startswith(_GIT):
        return _parse_git(source)
    found = _NAMED.fullmatch(source)
    if found is None or source == BUNDLED or Path(source).is_dir():
        return Path(source)
    return DatasetName(found[1], found[2])


def stored_source(source: str) -> str:
    """Return `source` for storage: paths become absolute, URLs lose user name and password."""
    if source == BUNDLED:
        return source
    reference = parse_reference(source)
    if isinstance(reference, Path):
        return str(reference.resolve())
    return _GIT + without_login(source.removeprefix(_GIT)) if isinstance(reference, GitSource) else source


def stored_registry(registry: str) -> str:
    """Return a registry's file or URL for storage: absolute, or without user name and password."""
    return without_login(registry) if "://" in registry else str(Path(registry).resolve())


def looks_like_a_name(source: str) -> bool:
    """Whether `source` could be the name of a dataset."""
    return source != BUNDLED and "/" not in source and _NAMED.fullmatch(source) is not None


def usable_url(url: str, where: str) -> str:
    """Check a repository's URL and return it for git. Raises UsageError, with a message that starts with `where`."""
    # Other URLs would allow authors of registries to run commands here (ext::, --upload-pack).
    scheme, colon, rest = url.partition("://")
    if (colon and scheme in _SCHEMES and rest and not rest.startswith("-")) or _SCP.fullmatch(url):
        return url
    if Path(url).is_absolute():
        return f"file://{url}"
    known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
    raise UsageError(f"{where}: {without_login(url)}: not the URL of a git repository; it must begin with {known}")


def without_login(url: str) -> str:
    """Return `url` without user and password. An ssh user without password stays: it is needed and not secret."""
    parts = urlsplit(url)
    if parts.scheme == "ssh" and parts.password is None:
        return url
    return without_password(url) if parts.scheme else url


def usable_folder(folder: str, where: str) -> str:
    """Return a folder in a repository without leading and trailing slashes; empty for the root. Raises UsageError."""
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    if ".." in parts or any(not part.isprintable() for part in parts):
        raise UsageError(f"{where}: {folder}: not a folder in the repository; leave out '..'")
    return "/".join(parts)


def _parse_git(source: str) -> GitSource:
    located, hash_, folder = source.removeprefix(_GIT).partition("#")
    url, revision = _split_revision(located)
    if revision.startswith("-") or not revision.isprintable() or " " in revision:
        raise UsageError(f"{source}: {revision}: not a commit, branch or tag")
    return GitSource(usable_url(url, source), revision, usable_folder(folder, source) if hash_ else None)


def _split_revision(located: str) -> tuple[str, str]:
    """Split URL and revision, by default HEAD."""
    # The @ of ssh://git@host/… and git@host:… comes before the host; a local path may contain an @, too.
    start = located.find("://") + 3 if "://" in located else 0
    separator = next((at for char in "/:" if (at := located.find(char, start)) >= 0), -1)
    at = located.rfind("@")
    if separator < 0 or at < separator or Path(located.removeprefix("file://")).exists():
        return located, "HEAD"
    return located[:at], located[at + 1 :] or "HEAD"
