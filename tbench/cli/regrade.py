"""`tbench regrade`: run the verifier again where a sandbox was kept, or what was handed over is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tbench.cli.common import task_option
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME
from tbench.cli.printing import print_line

if TYPE_CHECKING:
    from tbench.results import TrialResult


@click.command(cls=TbenchCommand)
@click.argument("run", cls=Argument, metavar="RUN", type=A_NAME, help="A run directory.")
@task_option
@click.option("--seed", type=int, help="Only trials with this seed.")
def regrade(run: str, task: tuple[str, ...], seed: int | None) -> None:
    """Verify trials again: run with --keep or --snapshot, or with verifiers of their own."""
    from pathlib import Path

    from tbench.cli.execute import print_summary
    from tbench.cli.interruption import run_interruptibly
    from tbench.fleet.backend import MachinesOfRun
    from tbench.runs.regrade import regrade as verify_again
    from tbench.sandbox.docker.backend import DockerBackend

    def say(text: str) -> None:
        print_line(text, err=True)

    changes = run_interruptibly(
        verify_again(DockerBackend.connect, Path(run), tuple(task or ()), seed, say, MachinesOfRun)
    )
    for change in changes:
        became = _words(change.after) if change.after else f"as it was: {change.why_not}"
        print_line(f"{change.before.task} seed {change.before.seed}: {_words(change.before)} -> {became}")
    print_summary(Path(run))


def _words(result: TrialResult) -> str:
    if result.reward is not None:
        return f"{result.reward:g}"
    return result.error.type if result.error else "no verdict"
