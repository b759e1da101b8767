"""A small working task, the template of `tbench task new`."""

from __future__ import annotations

import shutil
from pathlib import Path

from tbench.errors import UsageError

_FILES = Path(__file__).parent
_NAME = "@NAME@"


def write_template(name: str, path: Path) -> None:
    """Write the task into the new directory `path`. Raises UsageError if it exists or cannot be written."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path}: already exists; choose another name, or another directory with --dir")
    try:
        shutil.copytree(_FILES, path, ignore=shutil.ignore_patterns("__init__.py", "__pycache__"))
        toml = path / "task.toml"
        toml.write_text(toml.read_text(encoding="utf-8").replace(_NAME, name), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{error.filename or path}: cannot be written: {error.strerror or error}") from None
