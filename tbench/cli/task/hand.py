"""`tbench task shell`, `solve` and `verify`: a task by hand, its solution as it runs, and a verdict about either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tbench import exit_codes
from tbench.cli.common import sandbox_of
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME


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
def shell(name: str, **given: Any) -> None:
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
    from tbench.sandbox.docker.labels import LABEL_TRIAL

    def container(trial: str) -> str | None:
        engine = Engine.connect(1)
        try:
            found = engine.api.containers(filters={"label": f"{LABEL_TRIAL}={trial}"})
        finally:
            engine.close()
        return found[0]["Id"] if found else None

    if run_interruptibly(beside(DockerBackend.connect, name, sandbox_of(given), container)) < 1:
        raise click.exceptions.Exit(exit_codes.USAGE)
