"""All hints about a task."""

from __future__ import annotations

from collections.abc import Iterator

from tbench.tasks.lint import instruction, leaks, scripts
from tbench.tasks.lint.texts import Hint, texts_of
from tbench.tasks.task import Task


def hints_about(task: Task) -> Iterator[Hint]:
    """What looks like a mistake in a task. Raises OSError."""
    texts = texts_of(task)
    for room in (instruction, leaks, scripts):
        yield from room.hints(texts)
