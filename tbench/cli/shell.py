"""`tbench shell`: a task's sandbox with you at the keyboard."""

from __future__ import annotations

import click

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
@click.option("--verify/--no-verify", default=True, help="Run the verifier when you leave the shell.")
def shell(task: str, verify: bool, allow_env: tuple[str, ...], cap_add: tuple[str, ...]) -> None:
    """Open a shell in a task's sandbox; leave it to see what the verifier says."""
    from tbench.cli.interactive import session
    from tbench.cli.interruption import run_interruptibly
    from tbench.config.layers import Layers
    from tbench.config.settings import RunConfig
    from tbench.sandbox.docker.backend import DockerBackend

    layers, given = Layers(RunConfig), {"allow_env": (allow_env, "--allow-env"), "cap_add": (cap_add, "--cap-add")}
    values = [layers.option(f"sandbox.{name}", words, flag) for name, (words, flag) in given.items()]
    sandbox = layers.resolve(values).config.sandbox
    run_interruptibly(session(DockerBackend.connect, task, verify, sandbox))
