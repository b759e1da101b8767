"""The files of a task directory: which count, how large they may be, their digests and their bytes."""

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

# How large the files of a task may be that are read into memory: a stranger's task must not fill it.

TEXT_BYTES = 1 << 20
"""Most bytes of a text: task.toml, instruction.md, the Dockerfile, and each file of ignores."""
FOLDER_BYTES = 256 << 20
"""Most bytes of tests/ and of solution/, all files together."""
FOLDER_ENTRIES = 20_000
"""Most files and folders in each of them."""
LINKED_ENTRIES = 2_000
"""Most of these that are links, or behind links: links within a task can make a few files into very many."""


def read_bounded(path: Path) -> bytes:
    """Content of a text. Raises OSError, and TaskInvalid for one that is too large, of which nothing is kept."""
    require_bounded(path)
    with path.open("rb") as file:
        content = file.read(TEXT_BYTES + 1)  # its size may be no more than a claim
    if len(content) > TEXT_BYTES:
        raise TaskInvalid(_too_large(path, f"more than {in_mb(TEXT_BYTES)}"))
    return content


def require_bounded(path: Path) -> None:
    """Check the size of a text. Raises OSError, and TaskInvalid for one that is too large."""
    if (size := path.stat().st_size) > TEXT_BYTES:
        raise TaskInvalid(_too_large(path, in_mb(size)))


def in_mb(size: int) -> str:
    """A number of bytes in words."""
    return f"{size / (1 << 20):,.1f} MB"


def _too_large(path: Path, held: str) -> str:
    return f"{path}: holds {held}; at most {in_mb(TEXT_BYTES)} of such a file is read; make it shorter"


# Rules, as Harbor has them, for which files of a task do not count.
#
# A .gitignore at the task's top replaces the usual ignores of its digest. Below tests/ and solution/, what
# .harborignore files exclude (gitignore syntax) belongs neither to the digest nor into a container; they themselves
# never do.

_USUAL_IGNORES = ("__pycache__/", "*.pyc", ".DS_Store", "*.swp", "*.swo", "*~")
USUAL = PathSpec.from_lines("gitignore", _USUAL_IGNORES)
_HARBORIGNORE = ".harborignore"
_SCOPES = ("tests", "solution")


def digest_ignores(root: Path) -> PathSpec[Any]:
    """A matcher of the relative paths that the digest of the task at `root` leaves out. Raises TaskInvalid."""
    path = root / ".gitignore"
    try:
        return PathSpec.from_lines("gitignore", _lines(path) if path.exists() else _USUAL_IGNORES)
    except GitIgnorePatternError as error:
        raise TaskInvalid(f"{path}: {error}") from None


class HarborIgnore:
    """Tells what the .harborignore files of the task at `root`, an absolute path without links, exclude.

    Each file is read once. Raises TaskInvalid for one that cannot be used.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._by_folder: dict[Path, GitIgnoreSpec | None] = {}

    def excludes(self, path: Path, *, is_linked: bool = True) -> bool:
        """Whether `path` is excluded, or, with `is_linked` (which costs time), the file that its links lead to."""
        if self._matches(path):
            return True
        target = resolved(path) if is_linked else path
        return target != path and target.is_relative_to(self._root) and self._matches(target)

    def _matches(self, path: Path) -> bool:
        parts = path.parts[len(self._root.parts) :]
        if parts[-1:] == (_HARBORIGNORE,):
            return True
        scope = _scope(parts)
        # What lies in an excluded folder is excluded, whatever is said about it further in.
        return scope is not None and any(
            self._decides(parts, scope, length, path) for length in range(scope + 1, len(parts) + 1)
        )

    def _decides(self, parts: tuple[str, ...], scope: int, length: int, path: Path) -> bool:
        """Whether the entry at the first `length` parts is excluded; the innermost ignore file has the last word."""
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
            if not resolved(path).is_relative_to(self._root):
                raise TaskInvalid(f"{path}: symlink leaves the task directory; copy the file in")
            try:
                self._by_folder[folder] = GitIgnoreSpec.from_lines(_lines(path)) if path.exists() else None
            except GitIgnorePatternError as error:
                raise TaskInvalid(f"{path}: {error}") from None
        return self._by_folder[folder]


def resolved(path: Path) -> Path:
    """`path` without links; links that go round in circles stay."""
    return Path(os.path.realpath(path))  # Path.resolve raises for those


def _scope(parts: tuple[str, ...]) -> int | None:
    """How many parts lead to the outermost folder in which a .harborignore counts; None outside of such folders."""
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
"""Folders that go into containers with what their links lead to; a build context has the links themselves."""


@dataclass(frozen=True)
class TreeEntry:
    """One file of a folder, or a directory (data is None)."""

    data: bytes | None
    mode: int


class TaskFiles:
    """The files of the task at `root`, an absolute path without links.

    Ignore files are read once. Raises TaskInvalid for one that cannot be used, OSError for a file that cannot be read.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ignored = HarborIgnore(root)
        self._not_hashed = digest_ignores(root)

    def digests(self, folder: str | None = None) -> dict[str, str]:
        """sha256 of each file that counts for the task's digest, or of those in `folder`, by relative path in order."""
        names = sorted(path.relative_to(self._root).as_posix() for path in self._candidates(folder))
        return {name: _sha256(self._root / name) for name in names if self.counts(name)}

    def tree(self, folder: str) -> dict[str, TreeEntry]:
        """Entries of `folder` for a container, by path below it, links followed. Empty if it is missing.

        Its files are those that count for the digest, by their own path or, behind a linked folder, by the real one.
        """
        root = self._root / folder
        paths = (path for path in self._sent(root) if path.is_dir() or path.is_file())
        return {path.relative_to(root).as_posix(): _entry(path) for path in paths}

    def context(self, folder: str) -> list[Path]:
        """What a build of `folder` gets, in order: the files that count for the digest, folders, and links as such."""
        paths = sorted(filter(self._is_named, self._below(self._root / folder)))
        return [path for path in paths if path.is_symlink() or path.is_dir() or path.is_file()]

    def excess(self, folder: str) -> str | None:
        """What `tree` would find in `folder`, in words, where that is too much to be read; found without reading."""
        size, linked = 0, set[Path]()
        for number, path in enumerate(self._sent(self._root / folder), start=1):
            if path.is_symlink() or path.parent in linked:
                linked.add(path)
            if len(linked) > LINKED_ENTRIES:
                return f"more than {LINKED_ENTRIES:,} files and folders by way of links, which is the most that is read"
            if number > FOLDER_ENTRIES:
                return f"more than {FOLDER_ENTRIES:,} files and folders, which is the most that is read"
            size += path.stat().st_size if path.is_file() else 0
        return f"{in_mb(size)} of files, and at most {in_mb(FOLDER_BYTES)} are read" if size > FOLDER_BYTES else None

    def counts(self, name: str) -> bool:
        """Whether the file at this relative path is there and no ignore of the digest takes it out."""
        return not self._not_hashed.match_file(name) and (self._root / name).is_file()

    def is_hashed(self, name: str) -> bool:
        """Whether the file at this relative path is part of the digest, which does not follow linked folders."""
        return self.counts(name) and self.real_name(name) == name

    def real_name(self, name: str) -> str:
        """The relative path without linked folders, under which the digest has a file."""
        path = self._root / name
        return (resolved(path.parent) / path.name).relative_to(self._root).as_posix()

    def is_ignored(self, path: Path) -> bool:
        """Whether a .harborignore takes a file out of the task."""
        return self._ignored.excludes(path)

    def left_out(self) -> Iterator[str]:
        """Files that the task's own .gitignore takes out of the digest, but for what usually is no part of a task."""
        for name in _FOLDERS if (self._root / ".gitignore").exists() else ():
            for path in self._below(self._root / name) if (self._root / name).is_dir() else ():
                file = path.relative_to(self._root).as_posix()
                if path.is_file() and not self.counts(file) and not USUAL.match_file(file):
                    yield file

    def links_outside(self) -> Iterator[Path]:
        """Links that lead out of the task."""
        for path in self._below(self._root):
            if path.is_symlink() and not resolved(path).is_relative_to(self._root):
                yield path

    def links_to_unhashed(self) -> Iterator[Path]:
        """Links that would bring a folder into a container whose files the digest does not have."""
        hashed = [self._root / name for name in _FOLDERS]
        for folder in filter(Path.is_dir, (self._root / name for name in _FOLLOWED)):
            for path in self._below(folder):
                if path.is_symlink() and path.is_dir() and not any(map(resolved(path).is_relative_to, hashed)):
                    yield path

    def _is_named(self, path: Path) -> bool:
        """Whether the digest's ignores leave a path in; a folder of which they take all out is not left in either."""
        slash = "/" if path.is_dir() and not path.is_symlink() else ""
        return not self._not_hashed.match_file(path.relative_to(self._root).as_posix() + slash)

    def _sent(self, folder: Path) -> Iterator[Path]:
        """All paths of `folder` that go into a container, by way of links as well."""
        for path in self._followed(folder):
            real = resolved(path.parent) / path.name
            if self._is_named(path) and (real == path or self._is_named(real)):
                yield path

    def _candidates(self, folder: str | None) -> Iterator[Path]:
        if folder is None:
            yield from (self._root / name for name in _SINGLE)
        for each in _FOLDERS if folder is None else (folder,):
            if (self._root / each).is_dir():
                yield from self._below(self._root / each)

    def _below(self, folder: Path) -> Iterator[Path]:
        """All paths below `folder` that are not ignored; a linked folder is one entry."""
        with os.scandir(folder) as entries:
            for entry in entries:
                path, is_link = folder / entry.name, entry.is_symlink()
                if not self._ignored.excludes(path, is_linked=is_link):
                    yield path
                    if entry.is_dir(follow_symlinks=False):
                        yield from self._below(path)

    def _followed(self, folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
        """All paths below `folder` that are not ignored, also through linked folders, but not round in circles."""
        here = resolved(folder)
        if here in above or not folder.is_dir():
            return
        for path in sorted(folder.iterdir()):
            if not self._ignored.excludes(path):
                yield path
                yield from self._followed(path, above | {here})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry(path: Path) -> TreeEntry:
    return TreeEntry(None, 0o755) if path.is_dir() else TreeEntry(path.read_bytes(), mode_of(path))


def mode_of(path: Path) -> int:
    """The mode that a file has in containers: as in git, it is executable or not, whatever the umask of a checkout."""
    return 0o755 if path.stat().st_mode & 0o100 else 0o644
