"""Sets of tasks: finds task directories, selects tasks by name, and locates the bundled tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

from tbench.errors import TaskInvalid, UsageError
from tbench.origin import DatasetOrigin
from tbench.tasks.task import Task
from tbench.tasks.terminal_bench_1 import is_of_terminal_bench_1
from tbench.text import one_line, visible_line

# Bundled data: inside an installed wheel, else at the root of the checkout


def tasks_dir() -> Path:
    """Return the directory of the bundled tasks."""
    return _data("tasks")


def images_dir() -> Path:
    """Return the directory of the recipes for base images and the tools volume."""
    return _data("images")


def _data(name: str) -> Path:
    inside = Path(__file__).parents[1] / "bundled" / name
    return inside if inside.is_dir() else Path(__file__).parents[2] / name


BUNDLED = "bundled"
FOLDERS_DOWN = 3
"""Number of levels of folders, such as domains and fields, that may be above the tasks of a set."""
ReadTask = Callable[[Path], Task]
"""Reads the task in a directory. Raises TaskInvalid."""


@dataclass(frozen=True)
class TaskSet:
    """Tasks of one source. `invalid` has the error of each unreadable task by name, so that the others can run."""

    tasks: tuple[Task, ...]
    invalid: dict[str, str]
    origin: DatasetOrigin | None = None
    """The dataset of the tasks; None for bundled tasks and for a directory of tasks."""

    @property
    def names(self) -> list[str]:
        """Sorted names of all tasks, including unreadable ones."""
        return sorted([task.name for task in self.tasks] + list(self.invalid))


@dataclass(frozen=True)
class TaskChoice:
    """Selection of tasks: the first `limit` that match a glob of `include`, if any, and none of `exclude`."""

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    limit: int | None = None

    def select(self, names: Sequence[str], where: str) -> list[str]:
        """Select from the names of tasks. Raises UsageError if none is left, or if a glob matches none."""
        for option, patterns in (("--task", self.include), ("--exclude", self.exclude)):
            for pattern in patterns:
                if not any(fnmatch(name, pattern) for name in names):
                    near = get_close_matches(pattern, names, n=1)
                    meant = f"; did you mean {near[0]}?" if near else ""
                    raise UsageError(f"{option} {pattern}: matches no task in {where}{meant}")
        included = [name for name in names if any(fnmatch(name, pattern) for pattern in self.include or ("*",))]
        chosen = [name for name in included if not any(fnmatch(name, pattern) for pattern in self.exclude)]
        if not chosen[: self.limit]:
            raise UsageError(f"{where}: --exclude leaves no task")
        return chosen[: self.limit]


ALL_TASKS = TaskChoice()


def read_tasks(source: str, choice: TaskChoice = ALL_TASKS, read: ReadTask = Task.read) -> TaskSet:
    """Read the chosen tasks of `bundled`, of a directory of tasks or of one task; see `tbench.datasets` for others.

    Raises UsageError if no readable task is left, or if a glob matches none.
    """
    directory = tasks_dir() if source == BUNDLED else Path(source)
    if not directory.is_dir():
        raise UsageError(f"{directory}: no such directory; give a task, a directory of tasks, or '{BUNDLED}'")
    paths = task_paths(directory)
    if not paths:
        raise UsageError(f"{directory}: contains no tasks (a task directory has a task.toml)")
    return _read_named(_named_by_path(paths), choice, str(directory), read)


def read_paths(paths: Sequence[Path], choice: TaskChoice, where: str, read: ReadTask = Task.read) -> TaskSet:
    """Read the chosen tasks in these directories, whose names differ. Raises UsageError if none can be read."""
    return _read_named({path.name: path for path in paths}, choice, where, read)


def _read_named(named: Mapping[str, Path], choice: TaskChoice, where: str, read: ReadTask) -> TaskSet:
    tasks, invalid = list[Task](), dict[str, str]()
    for name in choice.select([*named], where):
        try:
            task = read(named[name])
        except TaskInvalid as error:
            invalid[visible_line(name)] = one_line(str(error), 1000)
        else:
            task.name = name
            tasks.append(task)
    if not tasks:
        raise UsageError(next(iter(invalid.values())))
    return TaskSet(tuple(tasks), invalid)


def task_paths(directory: Path) -> list[Path]:
    """Return the sorted task directories in `directory`, or `directory` itself if it is one.

    Folders without tasks of their own may group tasks: those in their folders are returned, too.
    """
    directory = directory.resolve()
    return [directory] if is_task(directory) else list(_tasks_below(directory, FOLDERS_DOWN))


def _tasks_below(directory: Path, levels: int) -> Iterator[Path]:
    try:
        children = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return
    tasks = [path for path in children if is_task(path)]
    yield from tasks
    if not tasks and levels:
        for child in children:
            yield from _tasks_below(child, levels - 1)


def _named_by_path(paths: Sequence[Path]) -> Mapping[str, Path]:
    """Return task directories by name, which is the path below their common folder, as `physics.optics.lens`."""
    top = Path(os.path.commonpath([path.parent for path in paths]))
    return {".".join(path.relative_to(top).parts): path for path in paths}


def is_task(path: Path) -> bool:
    """Whether a directory is meant as a task; reading it reports missing parts."""
    return (path / "task.toml").exists() or (path / "instruction.md").exists() or is_of_terminal_bench_1(path)
