"""`tbench report`: one self-contained HTML page for a run."""

from __future__ import annotations

from pathlib import Path

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH
from tbench.cli.printing import print_line


@click.command(cls=TbenchCommand)
@click.argument("run", cls=Argument, metavar="RUN", type=A_PATH, help="A run directory.")
@click.option("--output", "-o", type=A_PATH, help="Where to write; default RUN/report.html.")
def report(run: Path, output: Path | None) -> None:
    """Write one self-contained HTML page and print its path."""
    from reports.report import write_report
    from tbench.errors import UsageError

    try:
        print_line(f"report: {write_report(run, output)}")
    except OSError as error:
        raise UsageError(f"{output or run}: cannot be written: {error.strerror or error}") from None
