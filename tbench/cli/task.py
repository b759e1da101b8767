"""`tbench task`: lists and checks task directories without starting anything."""

from __future__ import annotations

from typing import Annotated

import typer

Source = Annotated[str, typer.Argument(metavar="TASKS", help="A directory of tasks, one task, or 'bundled'.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List and check task directories.", no_args_is_help=True)
    group.command(name="list")(list_tasks)
    group.command()(check)
    app.add_typer(group, name="task")


def list_tasks(source: Source = "bundled") -> None:
    """List tasks with their limits and content hashes."""
    from tbench.tasks.sources import read_tasks

    for task in read_tasks(source).tasks:
        environment = task.file.environment
        limit = f"{task.file.agent.timeout_sec:.0f} s" if task.file.agent.timeout_sec else "no limit"
        typer.echo(
            f"{task.name:32} {environment.cpus:g} cpu {environment.memory_mb:5.0f} MB {limit:>9}  {task.hash[:12]}"
        )


def check(source: Source) -> None:
    """Report malformed tasks, unsupported features, and what has no effect; exit 2 when a task cannot run."""
    from tbench.tasks.sources import read_tasks

    tasks = read_tasks(source)
    problems = list(tasks.invalid.values())
    problems += [
        f"{task.name}: needs {feature}, which tbench does not have"
        for task in tasks.tasks
        for feature in task.unsupported
    ]
    for problem in problems:
        typer.echo(f"cannot run: {problem}")
    for task in tasks.tasks:
        for key in task.unknown_keys:
            typer.echo(f"ignored: {task.path / 'task.toml'}: {key}")
        if not task.has_oracle:
            typer.echo(f"no oracle: {task.path / 'solution' / 'solve.sh'} is missing")
    typer.echo(f"{len(tasks.names)} tasks, {len(problems)} problems")
    if problems:
        raise typer.Exit(2)
