"""What a user may say to name tasks: `bundled`, a path, `git+URL@REV#FOLDER`, NAME[@VERSION], ORG/NAME[@REF]."""

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
class Piece:
    """Tasks of one git repository at one revision."""

    url: str
    revision: str
    """A commit, a branch, a tag, or HEAD."""
    folder: str | None = None
    """The folder whose children with a task.toml are the tasks; None: the root, or else `tasks/`."""
    listed: tuple[tuple[str, str], ...] = ()
    """Name and folder of each task, where those are listed one by one."""
    commit: str = ""
    """The commit that the revision stands for; empty until the repository is asked."""
    tasks_in: str = ""
    """The folder in which the tasks were found; empty until they are fetched, and where that is the root."""

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a whole commit id, which always means the same content."""
        return is_commit(self.revision)

    @property
    def is_fixed(self) -> bool:
        """Whether what the revision means is not supposed to change."""
        return self.is_commit or self.revision.startswith(_TAGS)


@dataclass(frozen=True)
class Named:
    """A dataset's name, with or without a version."""

    name: str
    version: str | None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


Reference = Path | Piece | Named
"""A directory of tasks, one task or `bundled`; tasks of a repository; or a dataset's name."""


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


def tag(name: str) -> str:
    """The revision that a tag is."""
    return f"{_TAGS}{name}"


def parse_reference(source: str) -> Reference:
    """What `source` refers to; a directory that exists is always that directory.

    Raises UsageError for a git source that cannot be one.
    """
    if source.startswith(_GIT):
        return _at_git(source)
    found = _NAMED.fullmatch(source)
    if found is None or source == BUNDLED or Path(source).is_dir():
        return Path(source)
    return Named(found[1], found[2])


def stored_source(source: str) -> str:
    """`source` as it can be stored: a path is absolute, a URL has no user name and password."""
    if source == BUNDLED:
        return source
    reference = parse_reference(source)
    if isinstance(reference, Path):
        return str(reference.resolve())
    return _GIT + without_login(source.removeprefix(_GIT)) if isinstance(reference, Piece) else source


def stored_place(registry: str) -> str:
    """A registry's file or URL as it can be stored."""
    return without_login(registry) if "://" in registry else str(Path(registry).resolve())


def looks_like_a_name(source: str) -> bool:
    """Whether `source` would be a dataset's name if no directory were called so."""
    return source != BUNDLED and "/" not in source and _NAMED.fullmatch(source) is not None


def usable_url(url: str, where: str) -> str:
    """A repository's URL that git may be given; `where` begins the message. Raises UsageError."""
    # Others would let whoever writes a registry run commands here (ext::, --upload-pack).
    scheme, colon, rest = url.partition("://")
    if (colon and scheme in _SCHEMES and rest and not rest.startswith("-")) or _SCP.fullmatch(url):
        return url
    if Path(url).is_absolute():
        return f"file://{url}"
    known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
    raise UsageError(f"{where}: {without_login(url)}: no URL of a git repository; it begins with one of {known}")


def without_login(url: str) -> str:
    """`url` as it may be stored and shown. The user of ssh stays: it is no secret, and without it nothing is found."""
    parts = urlsplit(url)
    if parts.scheme == "ssh" and parts.password is None:
        return url
    return without_password(url) if parts.scheme else url


def usable_folder(folder: str, where: str) -> str:
    """A folder within a repository, without slashes around it; empty for its root. Raises UsageError."""
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    if ".." in parts or any(not part.isprintable() for part in parts):
        raise UsageError(f"{where}: {folder}: no folder within the repository; leave out '..'")
    return "/".join(parts)


def _at_git(source: str) -> Piece:
    located, hash_, folder = source.removeprefix(_GIT).partition("#")
    url, revision = _split_revision(located)
    if revision.startswith("-") or not revision.isprintable() or " " in revision:
        raise UsageError(f"{source}: {revision}: no commit, branch or tag")
    return Piece(usable_url(url, source), revision, usable_folder(folder, source) if hash_ else None)


def _split_revision(located: str) -> tuple[str, str]:
    """URL and revision, HEAD where none is given."""
    # The user of ssh://git@host/… and git@host:… is not behind the host; a local path may have an @ of its own.
    start = located.find("://") + 3 if "://" in located else 0
    separator = next((at for char in "/:" if (at := located.find(char, start)) >= 0), -1)
    at = located.rfind("@")
    if separator < 0 or at < separator or Path(located.removeprefix("file://")).exists():
        return located, "HEAD"
    return located[:at], located[at + 1 :] or "HEAD"
