"""Where sets of tasks come from: a directory of task directories, a single task, or the bundled ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tbench.errors import TaskInvalid, UsageError
from tbench.tasks.bundled import tasks_dir
from tbench.tasks.task import Task
from tbench.text import one_line, visible_line

BUNDLED = "bundled"


@dataclass(frozen=True)
class TaskSet:
    """Tasks of one source. `invalid` says by name why others cannot be read: one bad task never costs the rest."""

    tasks: tuple[Task, ...]
    invalid: dict[str, str]

    @property
    def names(self) -> list[str]:
        """Names of all tasks, also of those that cannot be read, sorted."""
        return sorted([task.name for task in self.tasks] + list(self.invalid))


def read_tasks(
    source: str, include: Sequence[str] = (), exclude: Sequence[str] = (), limit: int | None = None
) -> TaskSet:
    """The tasks of `source` by name: those that match a glob of `include`, if there is any, and none of `exclude`.

    Of these the first `limit`. Raises UsageError when no readable task is left or a glob matches none.
    """
    directory = tasks_dir() if source == BUNDLED else Path(source)
    if not directory.is_dir():
        raise UsageError(f"{source}: no such directory; give a task, a directory of tasks, or '{BUNDLED}'")
    paths = _task_paths(directory)
    if not paths:
        raise UsageError(f"{directory}: no task here (a task directory has a task.toml)")
    for option, patterns in (("--task", include), ("--exclude", exclude)):
        for pattern in patterns:
            if not any(fnmatch(path.name, pattern) for path in paths):
                raise UsageError(f"{option} {pattern}: matches no task in {directory}")
    paths = [path for path in paths if _wanted(path.name, include, exclude)][:limit]
    if not paths:
        raise UsageError(f"{directory}: --exclude leaves no task")
    tasks, invalid = [], {}
    for path in paths:
        try:
            tasks.append(Task.read(path))
        except TaskInvalid as error:
            invalid[visible_line(path.name)] = one_line(str(error), 1000)
    if not tasks:
        raise UsageError(next(iter(invalid.values())))
    return TaskSet(tuple(tasks), invalid)


def _task_paths(directory: Path) -> list[Path]:
    directory = directory.resolve()
    if (directory / "task.toml").exists() or (directory / "instruction.md").exists():
        return [directory]
    children = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
    # A child with an instruction but no task.toml is a broken task, not some other folder: reading it says so.
    return [path for path in children if (path / "task.toml").exists() or (path / "instruction.md").exists()]


def _wanted(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    def is_in(patterns: Sequence[str]) -> bool:
        return any(fnmatch(name, pattern) for pattern in patterns)

    return (not include or is_in(include)) and not is_in(exclude)
