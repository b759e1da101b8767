"""`tbench merge`: the shards of a run as one run."""

from __future__ import annotations

from pathlib import Path

import click

from tbench.cli.common import json_option, runs_argument
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.parsing.values import A_PATH


@click.command(cls=TbenchCommand)
@runs_argument("The directories of all shards (tbench run --shard I/N).")
@click.option("--output", "-o", metavar="DIR", type=A_PATH, required=True, help="A new directory for the whole run.")
@click.option(
    "--incomplete", is_flag=True, help="Also where shards or results are missing; tbench resume does the rest."
)
@json_option
def merge(runs: tuple[Path, ...], output: Path, incomplete: bool, as_json: bool) -> None:
    """Put the shards of a run together, and print its score."""
    from tbench.cli.execute import print_summary
    from tbench.errors import UsageError
    from tbench.shards.merging import merge as put_together

    try:
        put_together(runs, output, incomplete=incomplete)
    except OSError as error:
        raise UsageError(f"{error.filename or output}: {error.strerror or error}") from None
    print_summary(output, "json" if as_json else "text")
