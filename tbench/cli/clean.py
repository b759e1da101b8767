"""`tbench clean`: remove what tbench keeps on the engine."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(clean)


def clean(
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also what is shared or kept, the images that tbench built, and what another machine's runs may use.",
        ),
    ] = False,
    kept: Annotated[bool, typer.Option("--kept", help="Also containers and snapshots that were kept.")] = False,
    run: Annotated[str | None, typer.Option("--run", help="Only what belongs to the run of this name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
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
        typer.echo(f"{'would remove' if dry_run else 'removed'} {line}")
    for line in done.kept:
        typer.echo(f"kept {line}")
    for line in done.failed:
        typer.echo(f"tbench: could not remove {line}", err=True)
    if done.failed:
        raise typer.Exit(2)
    if not done.removed:
        typer.echo("nothing to remove")
