"""All hints about a task."""

from __future__ import annotations

from collections.abc import Iterator

from tbench.tasks.lint import instruction, leaks, scripts
from tbench.tasks.lint.texts import Hint, texts_of
from tbench.tasks.task import Task


def hints_about(task: Task) -> Iterator[Hint]:
    """What looks like a mistake in a task, or in a step of it; each once. Raises OSError."""
    yield from dict.fromkeys(_hints_about_parts(task))


def _hints_about_parts(task: Task) -> Iterator[Hint]:
    for texts in map(texts_of, task.parts):
        for room in (instruction, leaks, scripts):
            yield from room.hints(texts)
