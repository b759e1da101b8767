"""`tbench shell`: a task's sandbox with you at the keyboard."""

from __future__ import annotations

from typing import Any

import click

from tbench.cli.common import sandbox_of
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME


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
