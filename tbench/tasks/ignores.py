"""Rules, as Harbor has them, for which files of a task do not count.

A .gitignore at the task's top replaces the usual ignores of its digest. Below tests/ and solution/, what .harborignore
files exclude (gitignore syntax) belongs neither to the digest nor into a container; they themselves never do.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec, PathSpec
from pathspec.patterns.gitignore import GitIgnorePatternError

from tbench.errors import TaskInvalid
from tbench.tasks.bounds import read_bounded

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
