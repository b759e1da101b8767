"""`tbench export`: stored runs in formats of others."""

from __future__ import annotations

import click

from tbench.cli.parsing.commands import Lazy, LazyGroup

COMMANDS = {
    "atif": Lazy("tbench.cli.export.atif", "atif", "Write trajectories as ATIF 1.8 documents, one for each trial."),
    "sft": Lazy(
        "tbench.cli.export.sft",
        "sft",
        "Write conversations as training data: OpenAI's messages, with a flag on each that is to be learnt.",
    ),
    "harbor": Lazy(
        "tbench.cli.export.harbor",
        "harbor",
        "Write runs as jobs of Harbor, with what its viewer and its other commands read.",
    ),
    "sqlite": Lazy(
        "tbench.cli.export.sqlite", "sqlite", "Write runs, tasks and trials as the tables of one SQLite file."
    ),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def export() -> None:
    """Write stored runs in formats of others."""
