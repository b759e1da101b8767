"""`tbench export`: stored runs in formats of others."""

from __future__ import annotations

import click

from tbench.cli.parsing.commands import Lazy, LazyGroup

COMMANDS = {
    "atif": Lazy("tbench.cli.export.atif", "atif", "Write trajectories as ATIF 1.8 documents, one for each trial."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def export() -> None:
    """Write stored runs in formats of others."""
