"""`tbench import results`: bare results as runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from tbench.cli.import_ import importing_options, tell
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH


@click.command(cls=TbenchCommand)
@click.argument(
    "file", cls=Argument, metavar="FILE", type=A_PATH, help="JSON lines or CSV with task, seed, reward and more."
)
@importing_options
@click.option("--number-seeds", is_flag=True, help="Number the lines of each task, which have no seed.")
def results(
    file: Path,
    output: Path | None,
    model: str | None,
    agent: str | None,
    split: Literal["model"] | None,
    number_seeds: bool,
) -> None:
    """Write bare results (task, seed, reward; JSONL or CSV) as a run."""
    from tbench.exchange.importing.bare_results import import_results
    from tbench.exchange.importing.choosing import ImportChoice

    tell(import_results(file, output, ImportChoice(model, agent, split), number_seeds=number_seeds))
