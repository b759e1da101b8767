"""`tbench regrade`: run the verifier again where a sandbox was kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tbench.results import TrialResult


def register(app: typer.Typer) -> None:
    app.command()(regrade)


def regrade(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")],
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", help="Only tasks whose name matches this glob (repeatable)."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Only trials with this seed.")] = None,
) -> None:
    """Verify trials again that were run with --keep or --snapshot, and print what changed."""
    from pathlib import Path

    from tbench.cli.execute import print_summary
    from tbench.cli.interruption import run_interruptibly
    from tbench.runs.regrade import regrade as verify_again
    from tbench.sandbox.docker.backend import DockerBackend

    changes = run_interruptibly(
        verify_again(DockerBackend.connect, Path(run), tuple(task or ()), seed, lambda text: typer.echo(text, err=True))
    )
    for change in changes:
        became = _words(change.after) if change.after else f"as it was: {change.why_not}"
        typer.echo(f"{change.before.task} seed {change.before.seed}: {_words(change.before)} -> {became}")
    print_summary(Path(run))


def _words(result: TrialResult) -> str:
    if result.reward is not None:
        return f"{result.reward:g}"
    return result.error.type if result.error else "no verdict"
