"""`tbench task` and `tbench shell`: create and convert task directories, and try tasks interactively."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import click

from tbench import exit_codes
from tbench.cli.common import engines_option, sandbox_config
from tbench.cli.parsing.commands import Command, LazyGroup, TbenchCommand, argument, option
from tbench.cli.parsing.values import NAME_TYPE, PATH_TYPE
from tbench.cli.printing import print_line
from tbench.text import counted

COMMANDS = {
    "list": "tbench.cli.task_check:list_tasks",
    "check": "tbench.cli.task_check:check",
    "shell": "tbench.cli.task:task_shell",
    "solve": "tbench.cli.task:solve",
    "verify": "tbench.cli.task:verify",
    "new": "tbench.cli.task:new",
    "convert": "tbench.cli.task:convert",
}
SELECTION_SETTINGS = {
    *("tasks.source", "tasks.include", "tasks.exclude", "tasks.limit"),
    *("tasks.registry", "tasks.refresh", "tasks.offline"),
}
"""Settings that choose the tasks."""
TRIAL_SETTINGS = {
    *("sandbox.allow_env", "sandbox.ignore_keys", "sandbox.container_proxy", "sandbox.pull_timeout_sec"),
    "schedule.concurrency",
}
"""Settings for running oracle and nop."""


@click.group(cls=LazyGroup, table=COMMANDS)
def task() -> None:
    """List, check, try, create and convert tasks."""


# `tbench task new`

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_CALLS = 8
"""Calls to an engine at once."""


@click.command(cls=TbenchCommand)
@argument(
    "name", "NAME", "Name of the task and its directory: lowercase letters, digits, '-', '_' and '.'.", type=NAME_TYPE
)
@option("--dir DIR", "Where to create the directory.", PATH_TYPE, name="folder", default=".")
def new(name: str, folder: Path) -> None:
    """Create a small working task to start from."""
    from tbench.errors import UsageError
    from tbench.tasks.template import write_template

    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name}: not a task name; use at most 64 lowercase letters, digits, '-', '_' and '.', "
            "beginning with a letter or digit"
        )
    path = folder / name
    write_template(name, path)
    print_line(f"{path}: created a working task; edit its files and try it with: tbench task check {path}")


# `tbench task convert`


@click.command(cls=TbenchCommand)
@argument("tasks", "DIR", "A task of Terminal-Bench 1 (a directory with a task.yaml), or a directory of such tasks.")
@option("--output -o DIR", "A new directory for the tasks; default: DIR-converted.", PATH_TYPE)
def convert(tasks: Path, output: Path | None) -> None:
    """Convert tasks of Terminal-Bench 1 to the current format."""
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
        raise UsageError(f"{target}: not empty; name a new directory with --output (nothing is overwritten)")
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


# `tbench task shell`, `solve` and `verify`


_cap_add = option("--cap-add CAP", "Add this Linux capability; repeatable.", multiple=True)
_allow_env = option("--allow-env VAR", "Let the task read this variable of the environment; repeatable.", multiple=True)
_container_proxy = option("--container-proxy inherit|none|URL", "Proxy of the sandbox, if the task has a network.")


def _sandbox_options(command: Command) -> Command:
    """Add the task argument and the options of its sandbox."""
    name = argument("name", "TASK", "A task directory, or a bundled task's name.", type=NAME_TYPE)
    return name(_container_proxy(_allow_env(engines_option(_cap_add(command)))))


@click.command("shell", cls=TbenchCommand)
@_sandbox_options
def task_shell(name: str, **given: Any) -> None:
    """Open the shell that the task's agent gets; when you leave it, the verifier runs, and you can return."""
    from tbench.cli.interactive import shell_session
    from tbench.cli.interruption import run_interruptibly
    from tbench.fleet.engines import connect_backend

    config = sandbox_config(given)
    run_interruptibly(shell_session(connect_backend(config, _CALLS), name, True, config, returns=True))


@click.command("solve", cls=TbenchCommand)
@_sandbox_options
def solve(name: str, **given: Any) -> None:
    """Run a task's solution, showing its output, then the verifier; exit with 2 if the reward is below 1."""
    from tbench.cli.interactive import run_solution
    from tbench.cli.interruption import run_interruptibly
    from tbench.fleet.engines import connect_backend

    config = sandbox_config(given)
    if run_interruptibly(run_solution(connect_backend(config, _CALLS), name, config)) < 1:
        raise click.exceptions.Exit(exit_codes.USAGE)


@click.command("verify", cls=TbenchCommand)
@_sandbox_options
def verify(name: str, **given: Any) -> None:
    """Run the verifier in a copy of an open `tbench task shell`'s container; exit with 2 if the reward is below 1."""
    from tbench.cli.interactive import verify_open_shell
    from tbench.cli.interruption import run_interruptibly
    from tbench.fleet.engines import Engines, connect_backend, store_of
    from tbench.sandbox.oci.store import read_states
    from tbench.sandbox.owner import LABEL_TRIAL

    config = sandbox_config(given)

    def container(trial: str) -> str | None:
        if (store := store_of(config)) is not None:
            of_trial = (each for each, state in read_states(store) if state and state.labels[LABEL_TRIAL] == trial)
            return next((each.name for each in of_trial), None)
        wanted = {"label": f"{LABEL_TRIAL}={trial}"}
        with contextlib.closing(Engines.connect(config, 1)) as engines:
            return next((each["Id"] for engine in engines.all for each in engine.api.containers(filters=wanted)), None)

    if run_interruptibly(verify_open_shell(connect_backend(config, _CALLS), name, config, container)) < 1:
        raise click.exceptions.Exit(exit_codes.USAGE)


# `tbench shell`


@click.command(cls=TbenchCommand)
@argument(
    "task",
    "TASK",
    "A task directory, a bundled task's name, or RUN/TASK/SEED for the kept sandbox of a trial.",
    type=NAME_TYPE,
)
@_allow_env
@engines_option
@_cap_add
@_container_proxy
@option("--verify/--no-verify", "Run the verifier when you leave the shell.", default=True)
def shell(task: str, verify: bool, **given: Any) -> None:
    """Open a shell in a task's sandbox: the verifier runs when you leave it."""
    from tbench.cli.interactive import shell_session
    from tbench.cli.interruption import run_interruptibly
    from tbench.fleet.engines import connect_backend

    config = sandbox_config(given)
    run_interruptibly(shell_session(connect_backend(config, _CALLS), task, verify, config))
