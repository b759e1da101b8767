"""`tbench shell`: a task's sandbox with you at the keyboard."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(shell)


def shell(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task directory, or the name of a bundled task.")],
    verify: Annotated[bool, typer.Option(help="Run the verifier when you leave the shell.")] = True,
) -> None:
    """Open a shell in a task's sandbox; leave it to see what the verifier says."""
    from tbench.cli.interactive import session
    from tbench.cli.interruption import run_interruptibly
    from tbench.sandbox.docker.backend import DockerBackend

    run_interruptibly(session(DockerBackend.connect, task, verify))
