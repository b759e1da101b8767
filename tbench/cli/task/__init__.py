"""`tbench task`: lists, checks, makes and converts task directories."""

from __future__ import annotations

import click

from tbench.cli.parsing.commands import Lazy, LazyGroup

COMMANDS = {
    "list": Lazy("tbench.cli.task.list", "list_tasks", "List tasks with their difficulty, limits and content hashes."),
    "check": Lazy(
        "tbench.cli.task.check",
        "check",
        "Report what keeps tasks from running or being judged, and what looks like a mistake; exit 2 for problems.",
    ),
    "new": Lazy("tbench.cli.task.new", "new", "Write a small task that works, to begin with."),
    "convert": Lazy(
        "tbench.cli.task.convert", "convert", "Write tasks of Terminal-Bench 1 as tasks of the current form."
    ),
}
CHOOSING = {
    *("tasks.source", "tasks.include", "tasks.exclude", "tasks.limit"),
    *("tasks.registry", "tasks.refresh", "tasks.offline"),
}
"""Settings that say which tasks there are."""


@click.group(cls=LazyGroup, table=COMMANDS)
def task() -> None:
    """List, check, begin and convert task directories."""
