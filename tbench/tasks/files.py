"""The files of a task directory: ignore rules, size limits, digests and contents."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec, PathSpec
from pathspec.patterns.gitignore import GitIgnorePatternError

from tbench.errors import TaskInvalid

# Size limits of files that are read into memory, so that a stranger's task cannot exhaust it.

TEXT_BYTES = 1 << 20
"""Maximum bytes of a text file: task.toml, instruction.md, Dockerfile, ignore files."""
FOLDER_BYTES = 256 << 20
"""Maximum bytes of all files in each of the folders tests/, solution/ and steps/."""
FOLDER_ENTRIES = 20_000
"""Maximum number of files and directories in each of these folders."""
LINKED_ENTRIES = 2_000
"""Maximum number of entries that are links or reached through links: links can multiply a few files."""


def read_bounded(path: Path) -> bytes:
    """Read a text file. Raises OSError, and TaskInvalid if it is too large."""
    require_bounded(path)
    with path.open("rb") as file:
        content = file.read(TEXT_BYTES + 1)  # the reported size may be wrong
    if len(content) > TEXT_BYTES:
        raise TaskInvalid(_too_large(path, f"more than {in_mb(TEXT_BYTES)}"))
    return content


def require_bounded(path: Path) -> None:
    """Check the size of a text file. Raises OSError, and TaskInvalid if it is too large."""
    if (size := path.stat().st_size) > TEXT_BYTES:
        raise TaskInvalid(_too_large(path, in_mb(size)))


def in_mb(size: int) -> str:
    """Format a number of bytes in MB."""
    return f"{size / (1 << 20):,.1f} MB"


def _too_large(path: Path, held: str) -> str:
    return f"{path}: has {held}, but at most {in_mb(TEXT_BYTES)} are allowed; make it shorter"


# Ignore rules, the same as Harbor's.
#
# A .gitignore at the task's root replaces the default ignores of the digest. Files that a .harborignore below tests/ or
# solution/ excludes (gitignore syntax) are in neither the digest nor containers, and neither are .harborignore files.

_DEFAULT_IGNORES = ("__pycache__/", "*.pyc", ".DS_Store", "*.swp", "*.swo", "*~")
DEFAULT_IGNORES = PathSpec.from_lines("gitignore", _DEFAULT_IGNORES)
_HARBORIGNORE = ".harborignore"
_SCOPES = ("tests", "solution")


def digest_ignores(root: Path) -> PathSpec[Any]:
    """Return a matcher of the relative paths that the digest of the task at `root` ignores. Raises TaskInvalid."""
    path = root / ".gitignore"
    try:
        return PathSpec.from_lines("gitignore", _lines(path) if path.exists() else _DEFAULT_IGNORES)
    except GitIgnorePatternError as error:
        raise TaskInvalid(f"{path}: {error}") from None


class HarborIgnore:
    """The .harborignore files of the task at `root`, an absolute path without links.

    Each file is read once. Raises TaskInvalid for an invalid file.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._by_folder: dict[Path, GitIgnoreSpec | None] = {}

    def excludes(self, path: Path, *, is_linked: bool = True) -> bool:
        """Whether `path` is excluded or, with `is_linked` (slower), the file behind its links."""
        if self._matches(path):
            return True
        target = resolve_links(path) if is_linked else path
        return target != path and target.is_relative_to(self._root) and self._matches(target)

    def _matches(self, path: Path) -> bool:
        parts = path.parts[len(self._root.parts) :]
        if parts[-1:] == (_HARBORIGNORE,):
            return True
        scope = _scope(parts)
        # Everything in an excluded directory is excluded: ignore files inside it have no effect.
        return scope is not None and any(
            self._decides(parts, scope, length, path) for length in range(scope + 1, len(parts) + 1)
        )

    def _decides(self, parts: tuple[str, ...], scope: int, length: int, path: Path) -> bool:
        """Whether the entry at the first `length` parts is excluded; the innermost ignore file decides."""
        slash = "/" if length < len(parts) or path.is_dir() else ""
        is_excluded = False
        for depth in range(scope, length):
            patterns = self._patterns_in(self._root.joinpath(*parts[:depth]))
            answer = patterns.check_file("/".join(parts[depth:length]) + slash).include if patterns else None
            is_excluded = is_excluded if answer is None else answer
        return is_excluded

    def _patterns_in(self, folder: Path) -> GitIgnoreSpec | None:
        if folder not in self._by_folder:
            path = folder / _HARBORIGNORE
            if not resolve_links(path).is_relative_to(self._root):
                raise TaskInvalid(f"{path}: symlink leaves the task directory; copy the file into the task")
            try:
                self._by_folder[folder] = GitIgnoreSpec.from_lines(_lines(path)) if path.exists() else None
            except GitIgnorePatternError as error:
                raise TaskInvalid(f"{path}: {error}") from None
        return self._by_folder[folder]


def resolve_links(path: Path) -> Path:
    """Resolve the links of `path`; circular links stay."""
    return Path(os.path.realpath(path))  # Path.resolve raises for circular links


def _scope(parts: tuple[str, ...]) -> int | None:
    """Return the number of parts of the outermost directory whose .harborignore counts; None if none counts."""
    if parts and parts[0] in _SCOPES:
        return 1
    return 3 if len(parts) > 2 and parts[0] == "steps" and parts[2] in _SCOPES else None


def _lines(path: Path) -> list[str]:
    try:
        return read_bounded(path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskInvalid(f"{path}: cannot be read: {error}") from None


_SINGLE = ("task.toml", "instruction.md", "README.md", "trajectory.json")
_FOLDERS = ("environment", "tests", "solution", "steps")
_FOLLOWED = ("tests", "solution", "steps")
"""Folders that are copied into containers with their links followed; build contexts keep the links."""


@dataclass(frozen=True)
class TreeEntry:
    """A file or directory (data is None) of a folder."""

    data: bytes | None
    mode: int


class TaskFiles:
    """The files of the task at `root`, an absolute path without links.

    Ignore files are read once. Raises TaskInvalid for an invalid ignore file, OSError for an unreadable file.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ignored = HarborIgnore(root)
        self._not_hashed = digest_ignores(root)

    def digests(self, folder: str | None = None) -> dict[str, str]:
        """Return sha256 by sorted relative path, for all files in the task's digest or only those in `folder`."""
        names = sorted(path.relative_to(self._root).as_posix() for path in self._candidates(folder))
        return {name: sha256_of(self._root / name) for name in names if self.counts(name)}

    def tree(self, folder: str) -> dict[str, TreeEntry]:
        """Read the entries of `folder` for a container, by path below it, with links followed. Empty if it is missing.

        The files are those in the digest, by their own path or, in a linked folder, by their real path.
        """
        root = self._root / folder
        paths = (path for path in self._paths_in_container(root) if path.is_dir() or path.is_file())
        return {path.relative_to(root).as_posix(): _entry(path) for path in paths}

    def context(self, folder: str) -> list[Path]:
        """Return the sorted paths of the build context `folder`: files in the digest, folders, and unresolved links."""
        tops = {*_SINGLE, *_FOLDERS}
        below = (path for path in self._below(self._root / folder) if path.relative_to(self._root).parts[0] in tops)
        paths = sorted(filter(self._is_named, below))
        return [path for path in paths if path.is_symlink() or path.is_dir() or path.is_file()]

    def excess(self, folder: str) -> str | None:
        """Describe what `tree` would read from `folder`, if it is too much; else None. Reads no file."""
        size, linked = 0, set[Path]()
        for number, path in enumerate(self._paths_in_container(self._root / folder), start=1):
            if path.is_symlink() or path.parent in linked:
                linked.add(path)
            if len(linked) > LINKED_ENTRIES:
                return f"more than the maximum of {LINKED_ENTRIES:,} files and folders behind links"
            if number > FOLDER_ENTRIES:
                return f"more than the maximum of {FOLDER_ENTRIES:,} files and folders"
            size += path.stat().st_size if path.is_file() else 0
        return (
            f"{in_mb(size)} of files, more than the maximum of {in_mb(FOLDER_BYTES)}" if size > FOLDER_BYTES else None
        )

    def counts(self, name: str) -> bool:
        """Whether the file at this relative path exists and is not ignored by the digest."""
        return not self._not_hashed.match_file(name) and (self._root / name).is_file()

    def is_hashed(self, name: str) -> bool:
        """Whether the file at this relative path is in the digest, which does not follow linked folders."""
        return self.counts(name) and self.real_name(name) == name

    def real_name(self, name: str) -> str:
        """Return the relative path without linked folders, which is the file's name in the digest."""
        path = self._root / name
        return (resolve_links(path.parent) / path.name).relative_to(self._root).as_posix()

    def is_ignored(self, path: Path) -> bool:
        """Whether a .harborignore excludes a file."""
        return self._ignored.excludes(path)

    def left_out(self) -> Iterator[str]:
        """Iterate over files that the task's .gitignore, but not the default ignores, excludes from the digest."""
        for name in _FOLDERS if (self._root / ".gitignore").exists() else ():
            for path in self._below(self._root / name) if (self._root / name).is_dir() else ():
                file = path.relative_to(self._root).as_posix()
                if path.is_file() and not self.counts(file) and not DEFAULT_IGNORES.match_file(file):
                    yield file

    def links_outside(self) -> Iterator[Path]:
        """Iterate over links that lead out of the task."""
        for path in self._below(self._root):
            if path.is_symlink() and not resolve_links(path).is_relative_to(self._root):
                yield path

    def links_to_unhashed(self) -> Iterator[Path]:
        """Iterate over links to folders that would go into a container without being in the digest."""
        hashed = [self._root / name for name in _FOLDERS]
        for folder in filter(Path.is_dir, (self._root / name for name in _FOLLOWED)):
            for path in self._below(folder):
                if path.is_symlink() and path.is_dir() and not any(map(resolve_links(path).is_relative_to, hashed)):
                    yield path

    def _is_named(self, path: Path) -> bool:
        """Whether the digest does not ignore a path; a folder whose whole content is ignored counts as ignored."""
        slash = "/" if path.is_dir() and not path.is_symlink() else ""
        return not self._not_hashed.match_file(path.relative_to(self._root).as_posix() + slash)

    def _paths_in_container(self, folder: Path) -> Iterator[Path]:
        """Iterate over all paths of `folder` that go into a container, including those behind links."""
        for path in self._walk(folder):
            real = resolve_links(path.parent) / path.name
            if self._is_named(path) and (real == path or self._is_named(real)):
                yield path

    def _candidates(self, folder: str | None) -> Iterator[Path]:
        if folder is None:
            yield from (self._root / name for name in _SINGLE)
        for each in _FOLDERS if folder is None else (folder,):
            if (self._root / each).is_dir():
                yield from self._below(self._root / each)

    def _below(self, folder: Path) -> Iterator[Path]:
        """Iterate over all paths below `folder` that are not ignored, without following linked folders."""
        with os.scandir(folder) as entries:
            for entry in entries:
                path, is_link = folder / entry.name, entry.is_symlink()
                if not self._ignored.excludes(path, is_linked=is_link):
                    yield path
                    if entry.is_dir(follow_symlinks=False):
                        yield from self._below(path)

    def _walk(self, folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
        """Iterate over all paths below `folder` that are not ignored, following linked folders but not cycles."""
        here = resolve_links(folder)
        if here in above or not folder.is_dir():
            return
        for path in sorted(folder.iterdir()):
            if not self._ignored.excludes(path):
                yield path
                yield from self._walk(path, above | {here})


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry(path: Path) -> TreeEntry:
    return TreeEntry(None, 0o755) if path.is_dir() else TreeEntry(path.read_bytes(), mode_of(path))


def mode_of(path: Path) -> int:
    """Return a file's mode in containers: as in git, only executable or not, whatever the umask of a checkout."""
    return 0o755 if path.stat().st_mode & 0o100 else 0o644
