"""`tbench summary`: the score of a run directory."""

from __future__ import annotations

from pathlib import Path

import click

from tbench.cli.common import json_option
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH, OneOf


@click.command(cls=TbenchCommand)
@click.argument("run", cls=Argument, metavar="RUN", type=A_PATH, help="A run directory, or one with a results.jsonl.")
@click.option(
    "--std",
    type=OneOf("sample", "population"),
    default="sample",
    help="What stands behind ±: n - 1 or n in the denominator.",
)
@json_option
def summary(run: Path, std: str, as_json: bool) -> None:
    """Print the score of a run from its directory."""
    from tbench.cli.execute import print_summary

    print_summary(run, "json" if as_json else "text", population=std == "population")
