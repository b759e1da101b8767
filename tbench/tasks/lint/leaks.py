"""What of tests and solution lies where the agent sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from tbench.tasks.dockerfile import takes
from tbench.tasks.lint.texts import Hint, TaskTexts

_LEAST_BYTES = 40
"""Smaller files may be equal by chance."""
_MOST_BYTES = 16 << 20
_TELLING = ("solve.sh", "solution.sh", "run-tests.sh")


def hints(texts: TaskTexts) -> Iterator[Hint]:
    """Files of the environment that are a part of tests or solution."""
    root = texts.path
    secret = {_digest(path): path for folder in texts.folders for path in _files(folder / "solution")}
    secret |= {_digest(path): path for folder in texts.folders for path in _files(folder / "tests") if _judges(path)}
    dockerfile = texts.environment.get("Dockerfile")
    for path in _files(root / "environment"):
        if dockerfile is not None and not takes(dockerfile, path.relative_to(root / "environment").as_posix()):
            continue
        if (same := secret.get(_digest(path))) is not None:
            yield Hint(path, f"is {same.relative_to(root)}, and the agent can see what is in the image")
        elif path.name in _TELLING:
            yield Hint(path, "is called like a solution or tests, and the agent can see what is in the image")


def _judges(path: Path) -> bool:
    """Whether a file of the tests is a script of theirs: their data may well be that of the environment."""
    return path.name == "test.sh" or path.name.startswith("test_") or path.stem.endswith("_test")


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and _LEAST_BYTES <= path.stat().st_size <= _MOST_BYTES:
            yield path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
