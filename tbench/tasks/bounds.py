"""How large the files of a task may be that are read into memory: a stranger's task must not fill it."""

from __future__ import annotations

from pathlib import Path

from tbench.errors import TaskInvalid

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
