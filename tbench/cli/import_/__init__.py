"""`tbench import`: results of others as run directories."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from tbench.cli.parsing.commands import Lazy, LazyGroup
from tbench.cli.parsing.values import A_PATH, OneOf
from tbench.cli.printing import print_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tbench.exchange.importing.report import Imported

COMMANDS = {
    "harbor": Lazy("tbench.cli.import_.harbor", "harbor", "Write jobs or trials of Harbor (0.6 to 0.25) as runs."),
    "results": Lazy(
        "tbench.cli.import_.results", "results", "Write bare results (task, seed, reward; JSONL or CSV) as a run."
    ),
}
Command = TypeVar("Command", bound=Callable[..., object])


@click.group("import", cls=LazyGroup, table=COMMANDS)
def import_() -> None:
    """Write results of others as run directories, which all other commands read."""


def importing_options(command: Command) -> Command:
    """Options that all imports share."""
    for option in reversed(
        [
            click.option(
                "--output",
                "-o",
                metavar="DIR",
                type=A_PATH,
                help="A new directory for the run; with several runs, the one above them. Default: runs/NAME.",
            ),
            click.option("--model", metavar="NAME", help="Only results of this model."),
            click.option("--agent", metavar="NAME", help="Only results of this agent."),
            click.option("--split", type=OneOf("model"), help="Make a run of each model's results."),
        ]
    ):
        command = option(command)
    return command


def tell(runs: Iterable[Imported]) -> None:
    """Print what became of an import."""
    for run in runs:
        print_line(f"run directory: {run.directory}")
        for line in run.lines:
            print_line(f"  {line}")
        for note in run.notes:
            print_line(f"  note: {note}")
