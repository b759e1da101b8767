"""Tasks of Terminal-Bench 1 (task.yaml, docker-compose.yaml, run-tests.sh), turned into tasks of the current form.

The rules follow terminal-bench 0.2.18, its last harness: handlers, parsers and harness modules.
"""

from __future__ import annotations

from pathlib import Path

DESCRIPTION = "task.yaml"
_OTHER_PARTS = ("docker-compose.yaml", "run-tests.sh", "solution.sh", "solution.yaml")


def is_of_terminal_bench_1(path: Path) -> bool:
    """Whether a directory is meant as a task of that form, and not of the current one as well."""
    if not (path / DESCRIPTION).is_file() or (path / "task.toml").exists():
        return False
    return any((path / part).exists() for part in _OTHER_PARTS)
