"""`tbench task`: lists and checks task directories without starting anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tbench.cli.parsing.commands import Lazy, LazyGroup
from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.cli.printing import print_line
from tbench.config.settings import RunConfig
from tbench.text import plain

if TYPE_CHECKING:
    from tbench.tasks.task import Task

COMMANDS = {
    "list": Lazy("tbench.cli.task", "list_tasks", "List tasks with their difficulty, limits and content hashes."),
    "check": Lazy(
        "tbench.cli.task",
        "check",
        "Report malformed tasks, unsupported features, and what has no effect; exit 2 when a task cannot run.",
    ),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def task() -> None:
    """List and check task directories."""


_CHOOSING = {
    *("tasks.source", "tasks.include", "tasks.exclude", "tasks.limit"),
    *("tasks.registry", "tasks.refresh", "tasks.offline"),
}
"""Settings that say which tasks there are."""


@click.command("list", cls=ConfiguredCommand, configuration=RunConfig, only=_CHOOSING)
def list_tasks(given: Given[RunConfig]) -> None:
    """List tasks with their difficulty, limits and content hashes."""
    from tbench.cli.tasks import chosen_tasks

    for task in chosen_tasks(given.resolve().config.tasks).tasks:
        environment = task.file.environment
        limit = f"{task.file.agent.timeout_sec:.0f} s" if task.file.agent.timeout_sec else "no limit"
        difficulty = plain(str(task.file.metadata.get("difficulty", "-")), 10)
        print_line(
            f"{task.name:32} {difficulty:10} {environment.cpus:g} cpu {environment.memory_mb:5.0f} MB {limit:>9}"
            f"  {task.hash[:12]}"
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


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=_CHOOSING)
def check(given: Given[RunConfig]) -> None:
    """Report malformed tasks, unsupported features, and what has no effect; exit 2 when a task cannot run."""
    from tbench.cli.tasks import chosen_tasks
    from tbench.tasks.consent import wishes

    tasks = chosen_tasks(given.resolve().config.tasks)
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
