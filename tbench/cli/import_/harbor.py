"""`tbench import harbor`: jobs and trials of Harbor as runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from tbench.cli.import_ import importing_options, tell
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH


@click.command(cls=TbenchCommand)
@click.argument(
    "directories",
    cls=Argument,
    metavar="DIR...",
    type=A_PATH,
    nargs=-1,
    required=True,
    help="A job's directory, a directory of jobs, or directories of trials.",
)
@importing_options
@click.option("--metric", metavar="NAME", help="The reward that counts, of several; default: `reward`.")
def harbor(
    directories: tuple[Path, ...],
    output: Path | None,
    model: str | None,
    agent: str | None,
    split: Literal["model"] | None,
    metric: str | None,
) -> None:
    """Write jobs or trials of Harbor (0.6 to 0.25) as runs."""
    from tbench.exchange.importing.choosing import ImportChoice
    from tbench.exchange.importing.harbor.jobs import import_harbor

    tell(import_harbor(directories, output, ImportChoice(model, agent, split), metric))
