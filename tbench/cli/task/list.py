"""`tbench task list`: tasks, a line each."""

from __future__ import annotations

import click

from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.cli.printing import print_line
from tbench.cli.task import CHOOSING
from tbench.config.settings import RunConfig
from tbench.text import counted, plain


@click.command("list", cls=ConfiguredCommand, configuration=RunConfig, only=CHOOSING)
def list_tasks(given: Given[RunConfig]) -> None:
    """List tasks with their difficulty, limits and content hashes."""
    from tbench.cli.tasks import chosen_tasks

    for task in chosen_tasks(given.resolve().config.tasks).tasks:
        environment = task.file.environment
        limits = [part.file.agent.timeout_sec for part in task.parts]
        limit = f"{sum(filter(None, limits)):.0f} s" if all(limits) else "no limit"
        steps = f"  {counted(len(task.steps), 'step')}" if task.steps else ""
        difficulty = plain(str(task.file.metadata.get("difficulty", "-")), 10)
        print_line(
            f"{task.name:32} {difficulty:10} {environment.cpus:g} cpu {environment.memory_mb:5.0f} MB {limit:>9}"
            f"  {task.hash[:12]}{steps}"
        )
