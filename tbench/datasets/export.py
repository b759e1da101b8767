"""Copies of cached datasets that their owner may change."""

from __future__ import annotations

import shutil
from pathlib import Path

from tbench.datasets.cache import Entry, writable
from tbench.errors import UsageError
from tbench.files import is_unused


def require_new(directory: Path) -> None:
    """Check that a copy can be made there. Raises UsageError."""
    if not is_unused(directory):
        raise UsageError(f"{directory}: is not empty; name a new directory (nothing is overwritten)")


def copy_tasks(entry: Entry, directory: Path) -> None:
    """Copy the tasks into a new directory, with files that can be written. Raises UsageError."""
    require_new(directory)
    with writable(directory):
        for path in entry.paths:
            shutil.copytree(path, directory / path.name, symlinks=True)
            for file in (directory / path.name).iterdir():
                if file.is_file() and not file.is_symlink():
                    file.chmod(file.stat().st_mode | 0o200)
