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
    "shell": Lazy(
        "tbench.cli.task.hand",
        "shell",
        "Open a shell as the task's agent has it; when you leave it, the verifier judges, and you may go back.",
    ),
    "solve": Lazy(
        "tbench.cli.task.hand",
        "solve",
        "Run a task's solution, with its output as it comes, and the verifier; exit with 2 where that is no pass.",
    ),
    "verify": Lazy(
        "tbench.cli.task.hand",
        "verify",
        "Judge what was done in a shell of the task that is open elsewhere, in a copy, which leaves the shell alone.",
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
USED_TO_TRY = {"sandbox.allow_env", "sandbox.container_proxy", "sandbox.pull_timeout_sec", "schedule.concurrency"}
"""Settings that say how oracle and nop are run."""


@click.group(cls=LazyGroup, table=COMMANDS)
def task() -> None:
    """List, check, try, begin and convert task directories."""
