"""`tbench task` and `tbench shell`: makes and converts task directories, and tries tasks by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tbench import exit_codes
from tbench.cli.common import sandbox_of
from tbench.cli.parsing.commands import Argument, Lazy, LazyGroup, TbenchCommand
from tbench.cli.parsing.values import A_NAME, A_PATH
from tbench.cli.printing import print_line
from tbench.text import counted

COMMANDS = {
    "list": Lazy("tbench.cli.task_check", "list_tasks", "List tasks with their difficulty, limits and content hashes."),
    "check": Lazy(
        "tbench.cli.task_check",
        "check",
        "Report what keeps tasks from running or being judged, and what looks like a mistake; exit 2 for problems.",
    ),
    "shell": Lazy(
        "tbench.cli.task",
        "task_shell",
        "Open a shell as the task's agent has it; when you leave it, the verifier judges, and you may go back.",
    ),
    "solve": Lazy(
        "tbench.cli.task",
        "solve",
        "Run a task's solution, with its output as it comes, and the verifier; exit with 2 where that is no pass.",
    ),
    "verify": Lazy(
        "tbench.cli.task",
        "verify",
        "Judge what was done in a shell of the task that is open elsewhere, in a copy, which leaves the shell alone.",
    ),
    "new": Lazy("tbench.cli.task", "new", "Write a small task that works, to begin with."),
    "convert": Lazy("tbench.cli.task", "convert", "Write tasks of Terminal-Bench 1 as tasks of the current form."),
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


# `tbench task new`: a small task that works, for somebody to turn into another one.

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@click.command(cls=TbenchCommand)
@click.argument(
    "name",
    cls=Argument,
    metavar="NAME",
    type=A_NAME,
    help="The task's name, and that of its directory: small letters, digits, '-', '_' and '.'.",
)
@click.option("--dir", "folder", metavar="DIR", type=A_PATH, default=".", help="Where its directory is made.")
def new(name: str, folder: Path) -> None:
    """Write a small task that works, to begin with."""
    from tbench.errors import UsageError
    from tbench.tasks.template import write_template

    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name}: no name of a task; it begins with a small letter or a digit, has only these and '-', '_' and "
            "'.', and at most 64 of them"
        )
    path = folder / name
    write_template(name, path)
    print_line(f"{path}: a task that works; change its files, and try it with: tbench task check {path}")


# `tbench task convert`: tasks of Terminal-Bench 1 in the current form.


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


# `tbench task shell`, `solve` and `verify`: a task by hand, its solution as it runs, and a verdict about either.


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The task, and what its sandbox may have."""
    command = click.option("--cap-add", metavar="CAP", multiple=True, help="A Linux capability besides; repeatable.")(
        command
    )
    command = click.option("--allow-env", metavar="VAR", multiple=True, help="A variable it may take; repeatable.")(
        command
    )
    command = click.option("--container-proxy", metavar="inherit|none|URL", help="Its proxy, where it has a network.")(
        command
    )
    help = "A task directory, or a bundled task's name."
    return click.argument("name", cls=Argument, metavar="TASK", type=A_NAME, help=help)(command)


@click.command("shell", cls=TbenchCommand)
@_options
def task_shell(name: str, **given: Any) -> None:
    """Open a shell as the task's agent has it; when you leave it, the verifier judges, and you may go back."""
    from tbench.cli.interactive import session
    from tbench.cli.interruption import run_interruptibly
    from tbench.sandbox.docker.backend import DockerBackend

    run_interruptibly(session(DockerBackend.connect, name, True, sandbox_of(given), returns=True))


@click.command("solve", cls=TbenchCommand)
@_options
def solve(name: str, **given: Any) -> None:
    """Run a task's solution, with its output as it comes, and the verifier; exit with 2 where that is no pass."""
    from tbench.cli.interactive import solution
    from tbench.cli.interruption import run_interruptibly
    from tbench.sandbox.docker.backend import DockerBackend

    if run_interruptibly(solution(DockerBackend.connect, name, sandbox_of(given))) < 1:
        raise click.exceptions.Exit(exit_codes.USAGE)


@click.command("verify", cls=TbenchCommand)
@_options
def verify(name: str, **given: Any) -> None:
    """Judge what was done in a shell of the task that is open elsewhere, in a copy, which leaves the shell alone."""
    from tbench.cli.interactive import beside
    from tbench.cli.interruption import run_interruptibly
    from tbench.sandbox.docker.backend import DockerBackend
    from tbench.sandbox.docker.engine import Engine
    from tbench.sandbox.docker.owner import LABEL_TRIAL

    def container(trial: str) -> str | None:
        engine = Engine.connect(1)
        try:
            found = engine.api.containers(filters={"label": f"{LABEL_TRIAL}={trial}"})
        finally:
            engine.close()
        return found[0]["Id"] if found else None

    if run_interruptibly(beside(DockerBackend.connect, name, sandbox_of(given), container)) < 1:
        raise click.exceptions.Exit(exit_codes.USAGE)


# `tbench shell`: a task's sandbox with you at the keyboard.


@click.command(cls=TbenchCommand)
@click.argument(
    "task",
    cls=Argument,
    metavar="TASK",
    type=A_NAME,
    help="A task directory, a bundled task's name, or RUN/TASK/SEED: what was kept of that trial.",
)
@click.option(
    "--allow-env",
    metavar="VAR",
    multiple=True,
    help="The task may take this variable from the environment; repeatable.",
)
@click.option(
    "--cap-add", metavar="CAP", multiple=True, help="The sandbox has this Linux capability besides; repeatable."
)
@click.option("--container-proxy", metavar="inherit|none|URL", help="The sandbox's proxy, where it has a network.")
@click.option("--verify/--no-verify", default=True, help="Run the verifier when you leave the shell.")
def shell(task: str, verify: bool, **given: Any) -> None:
    """Open a shell in a task's sandbox; leave it to see what the verifier says."""
    from tbench.cli.interactive import session
    from tbench.cli.interruption import run_interruptibly
    from tbench.sandbox.docker.backend import DockerBackend

    run_interruptibly(session(DockerBackend.connect, task, verify, sandbox_of(given)))
