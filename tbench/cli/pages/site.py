"""`tbench site`: one folder of pages about all runs of some directories."""

from __future__ import annotations

from pathlib import Path

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH
from tbench.cli.printing import print_line


@click.command(cls=TbenchCommand)
@click.argument(
    "folders",
    cls=Argument,
    metavar="DIR...",
    type=A_PATH,
    nargs=-1,
    help="Folders of run directories, at any depth, or the directory of a nightly benchmark; default: runs.",
)
@click.option("--output", "-o", type=A_PATH, default=Path("site"), show_default=True, help="The folder of the pages.")
@click.option("--index", metavar="FILE", type=A_PATH, help="The index; default: .tbench-history.sqlite in DIR.")
def site(folders: tuple[Path, ...], output: Path, index: Path | None) -> None:
    """Write pages about all runs into one folder that opens from a file and from any server."""
    from tbench.nightly.pages import write_pages

    written = write_pages(folders or (Path("runs"),), output, index)
    for note in written.notes:
        print_line(f"note: {note}", err=True)
    print_line(f"site: {written.overview}")
