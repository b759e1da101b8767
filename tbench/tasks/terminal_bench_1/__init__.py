"""Converts Terminal-Bench 1 tasks (task.yaml, docker-compose.yaml, run-tests.sh) to the current format.

The rules follow the handlers, parsers and harness modules of terminal-bench 0.2.18, its last version.
"""

from __future__ import annotations

from pathlib import Path

DESCRIPTION = "task.yaml"
_OTHER_PARTS = ("docker-compose.yaml", "run-tests.sh", "solution.sh", "solution.yaml")


def is_of_terminal_bench_1(path: Path) -> bool:
    """Whether a directory is a task in the old format, and not in the current one as well."""
    if not (path / DESCRIPTION).is_file() or (path / "task.toml").exists():
        return False
    return any((path / part).exists() for part in _OTHER_PARTS)
