"""`tbench clean`: remove what tbench keeps on the engine."""

from __future__ import annotations

import click

from tbench import exit_codes
from tbench.cli.common import engines_option
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
@engines_option
def clean(everything: bool, kept: bool, run: str | None, dry_run: bool, engines: tuple[str, ...]) -> None:
    """Remove what runs left whose process is gone, and nameless images; never anything of a run under way."""
    import asyncio
    import contextlib

    from tbench.config.settings import SandboxConfig
    from tbench.fleet.engines import Engines
    from tbench.sandbox.docker.cleaning import Scope
    from tbench.sandbox.docker.cleaning import clean as clean_engine

    scope, removed, failed = Scope(everything=everything, kept=kept, run=run), 0, 0
    with contextlib.closing(Engines.connect(SandboxConfig(engines=engines))) as connected:
        for name, engine in zip(connected.names, connected.all, strict=True):
            done = asyncio.run(clean_engine(engine, scope, dry_run=dry_run))
            for line in done.removed:
                print_line(f"{name}{'would remove' if dry_run else 'removed'} {line}")
            for line in done.kept:
                print_line(f"{name}kept {line}")
            for line in done.failed:
                print_line(f"tbench: {name}could not remove {line}", err=True)
            removed, failed = removed + len(done.removed), failed + len(done.failed)
    if failed:
        raise click.exceptions.Exit(exit_codes.USAGE)
    if not removed:
        print_line("nothing to remove")
