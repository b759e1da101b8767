"""`tbench task`: lists and checks task directories without starting anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tbench.cli.common import tasks_argument
from tbench.cli.parsing.commands import Argument, Lazy, LazyGroup, TbenchCommand
from tbench.cli.parsing.values import A_NAME
from tbench.cli.printing import print_line

if TYPE_CHECKING:
    from tbench.tasks.task import Task

COMMANDS = {
    "list": Lazy("tbench.cli.task", "list_tasks", "List tasks with their limits and content hashes."),
    "check": Lazy(
        "tbench.cli.task",
        "check",
        "Report malformed tasks, unsupported features, and what has no effect; exit 2 when a task cannot run.",
    ),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def task() -> None:
    """List and check task directories."""


@click.command("list", cls=TbenchCommand)
@tasks_argument
def list_tasks(source: str) -> None:
    """List tasks with their limits and content hashes."""
    from tbench.tasks.sources import read_tasks

    for task in read_tasks(source).tasks:
        environment = task.file.environment
        limit = f"{task.file.agent.timeout_sec:.0f} s" if task.file.agent.timeout_sec else "no limit"
        print_line(
            f"{task.name:32} {environment.cpus:g} cpu {environment.memory_mb:5.0f} MB {limit:>9}  {task.hash[:12]}"
        )


def _say_of_builds(tasks: Sequence[Task]) -> None:
    """Print what networks mean to builds where it is not what they mean to trials."""
    from tbench.sandbox.docker.dockerfile import read_dockerfile, why_not_closed

    built = [task for task in tasks if task.dockerfile.is_file()]
    for task in built:
        if (why := why_not_closed(read_dockerfile(task))) is not None:
            print_line(f"not built with --block-host: {task.dockerfile}: {why}")
    if not all(task.file.environment.has_internet for task in built):
        print_line("builds have a network, also those of tasks whose trials have none: packages come over it")


@click.command(cls=TbenchCommand)
@click.argument(
    "source", cls=Argument, metavar="TASKS", type=A_NAME, help="A directory of tasks, one task, or 'bundled'."
)
def check(source: str) -> None:
    """Report malformed tasks, unsupported features, and what has no effect; exit 2 when a task cannot run."""
    from tbench.tasks.consent import wishes
    from tbench.tasks.sources import read_tasks

    tasks = read_tasks(source)
    problems = list(tasks.invalid.values())
    problems += [
        f"{task.name}: needs {feature}, which tbench does not have"
        for task in tasks.tasks
        for feature in task.unsupported
    ]
    for problem in problems:
        print_line(f"cannot run: {problem}")
    for task in tasks.tasks:
        for wish in wishes(task.file):
            known = "" if wish.variable in os.environ else " (not set here)"
            where = f"{task.path / 'task.toml'}: {wish.key}"
            print_line(f"asks for {wish.variable}{known}: {where}; {wish.without_consent}")
        for key in task.unknown_keys:
            print_line(f"ignored: {task.path / 'task.toml'}: {key}")
        if not task.has_oracle:
            print_line(f"no oracle: {task.path / 'solution' / 'solve.sh'} is missing")
    _say_of_builds(tasks.tasks)
    print_line(f"{len(tasks.names)} tasks, {len(problems)} problems")
    if problems:
        raise click.exceptions.Exit(2)
