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
_NAMED = re.compile(rf"({_WORD}(?:/{_WORD})?)(?:@([A-Za-z0-9][\w.:+-]*))?")


@dataclass(frozen=True)
class AtPath:
    """A directory of tasks, one task, or `bundled`."""

    path: Path


@dataclass(frozen=True)
class AtGit:
    """Tasks of a git repository. Without a folder they are at its root or in `tasks/`."""

    url: str
    revision: str
    folder: str | None


@dataclass(frozen=True)
class Named:
    """A dataset's name, with or without a version."""

    name: str
    version: str | None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


Reference = AtPath | AtGit | Named


def parse_reference(source: str) -> Reference:
    """What `source` refers to; a directory that exists is always that directory.

    Raises UsageError for a git source that cannot be one.
    """
    if source.startswith(_GIT):
        return _at_git(source)
    found = _NAMED.fullmatch(source)
    if found is None or source == BUNDLED or Path(source).is_dir():
        return AtPath(Path(source))
    return Named(found[1], found[2])


def stored_source(source: str) -> str:
    """`source` as it can be stored: a path is absolute, a URL has no user name and password."""
    if source == BUNDLED:
        return source
    reference = parse_reference(source)
    if isinstance(reference, AtPath):
        return str(reference.path.resolve())
    return _GIT + without_login(source.removeprefix(_GIT)) if isinstance(reference, AtGit) else source


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


def _at_git(source: str) -> AtGit:
    located, hash_, folder = source.removeprefix(_GIT).partition("#")
    url, revision = _split_revision(located)
    if revision.startswith("-") or not revision.isprintable() or " " in revision:
        raise UsageError(f"{source}: {revision}: no commit, branch or tag")
    return AtGit(usable_url(url, source), revision, usable_folder(folder, source) if hash_ else None)


def _split_revision(located: str) -> tuple[str, str]:
    """URL and revision, HEAD where none is given."""
    # The user of ssh://git@host/… and git@host:… is not behind the host; a local path may have an @ of its own.
    start = located.find("://") + 3 if "://" in located else 0
    separator = next((at for char in "/:" if (at := located.find(char, start)) >= 0), -1)
    at = located.rfind("@")
    if separator < 0 or at < separator or Path(located.removeprefix("file://")).exists():
        return located, "HEAD"
    return located[:at], located[at + 1 :] or "HEAD"
