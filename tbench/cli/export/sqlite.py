"""`tbench export sqlite`: runs as the tables of one SQLite file."""

from __future__ import annotations

from pathlib import Path

import click

from tbench.cli.common import runs_argument
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.parsing.values import A_PATH
from tbench.cli.printing import print_line
from tbench.text import counted


@click.command(cls=TbenchCommand)
@runs_argument("Run directories, and folders of them at any depth.")
@click.option("--output", "-o", metavar="FILE", type=A_PATH, required=True, help="The new file.")
@click.option("--overwrite", is_flag=True, help="Replace the file where it is there already.")
def sqlite(runs: tuple[Path, ...], output: Path, overwrite: bool) -> None:
    """Write runs, tasks and trials as the tables of one SQLite file."""
    from tbench.history.export import export_sqlite

    count, notes = export_sqlite(runs, output, overwrite=overwrite)
    for note in notes:
        print_line(f"note: {note}", err=True)
    print_line(f"{counted(count, 'run')} written to {output}")
