"""`tbench task convert`: tasks of Terminal-Bench 1 in the current form."""

from __future__ import annotations

from pathlib import Path

import click

from tbench import exit_codes
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH
from tbench.cli.printing import print_line
from tbench.text import counted


@click.command(cls=TbenchCommand)
@click.argument(
    "tasks",
    cls=Argument,
    metavar="DIR",
    type=A_PATH,
    help="A task of Terminal-Bench 1 (a directory with a task.yaml), or a directory of such tasks.",
)
@click.option(
    "--output", "-o", metavar="DIR", type=A_PATH, help="A new directory for the tasks; default: DIR-converted."
)
def convert(tasks: Path, output: Path | None) -> None:
    """Write tasks of Terminal-Bench 1 as tasks of the current form."""
    from tbench.errors import TaskInvalid, UsageError
    from tbench.files import is_unused
    from tbench.tasks.sources import task_paths
    from tbench.tasks.task import Task
    from tbench.tasks.terminal_bench_1 import is_of_terminal_bench_1
    from tbench.tasks.terminal_bench_1.conversion import convert as convert_task

    if not tasks.is_dir():
        raise UsageError(f"{tasks}: no such directory; give a task of Terminal-Bench 1, or a directory of them")
    found = [path for path in task_paths(tasks) if is_of_terminal_bench_1(path)]
    if not found:
        raise UsageError(f"{tasks}: no task of Terminal-Bench 1 here (such a task has a task.yaml)")
    tasks = tasks.resolve()
    target = output or tasks.with_name(f"{tasks.name}-converted")
    if not is_unused(target):
        raise UsageError(f"{target}: is not empty; name a new directory with --output (nothing is overwritten)")
    problems = 0
    for path in found:
        try:
            made = convert_task(path, target / path.name)
            Task.read(made.path)
        except TaskInvalid as error:
            problems += 1
            print_line(f"not converted: {error}")
            continue
        for note in made.notes:
            print_line(f"{path.name}: {note}")
    print_line(f"{counted(len(found) - problems, 'task')} written to {target}, {counted(problems, 'problem')}")
    if problems:
        raise click.exceptions.Exit(exit_codes.USAGE)
