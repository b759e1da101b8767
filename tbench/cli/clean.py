"""`tbench clean`: remove what tbench keeps on the engine."""

from __future__ import annotations

import click

from tbench import exit_codes
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.printing import print_line


@click.command(cls=TbenchCommand)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also what is shared or kept, the images that tbench built, and what another machine's runs may use.",
)
@click.option("--kept", is_flag=True, help="Also containers and snapshots that were kept.")
@click.option("--run", help="Only what belongs to the run of this name.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def clean(everything: bool, kept: bool, run: str | None, dry_run: bool) -> None:
    """Remove what runs left whose process is gone, and nameless images; never anything of a run under way."""
    import asyncio

    from tbench.sandbox.docker import cleaning
    from tbench.sandbox.docker.engine import Engine

    engine = Engine.connect()
    try:
        scope = cleaning.Scope(everything=everything, kept=kept, run=run)
        done = asyncio.run(cleaning.clean(engine, scope, dry_run=dry_run))
    finally:
        engine.close()
    for line in done.removed:
        print_line(f"{'would remove' if dry_run else 'removed'} {line}")
    for line in done.kept:
        print_line(f"kept {line}")
    for line in done.failed:
        print_line(f"tbench: could not remove {line}", err=True)
    if done.failed:
        raise click.exceptions.Exit(exit_codes.USAGE)
    if not done.removed:
        print_line("nothing to remove")
