"""`tbench import`: write results of other tools as run directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tbench.cli.parsing.commands import Command, LazyGroup, TbenchCommand, argument, flag, option
from tbench.cli.parsing.values import PATH_TYPE, OneOf
from tbench.cli.printing import print_line, print_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tbench.exchange.importing.common import Imported

COMMANDS = {
    "harbor": "tbench.cli.import_:harbor",
    "results": "tbench.cli.import_:results",
}


@click.group("import", cls=LazyGroup, table=COMMANDS)
def import_() -> None:
    """Import results of Harbor, JSONL or CSV as runs."""


def import_options(command: Command) -> Command:
    """Add the options that all imports share."""
    for decorate in reversed(
        [
            option(
                "--output -o DIR",
                "A new directory for the run, or the parent directory for several runs. Default: runs/NAME.",
                PATH_TYPE,
            ),
            option("--model NAME", "Import only results of this model."),
            option("--agent NAME", "Import only results of this agent."),
            option("--split", "Make a separate run per model.", OneOf("model")),
        ]
    ):
        command = decorate(command)
    return command


def print_imported(runs: Iterable[Imported]) -> None:
    """Print the imported runs, with notes."""
    for run in runs:
        print_line(f"run directory: {run.directory}")
        print_lines(f"  {line}" for line in (*run.lines, *(f"note: {note}" for note in run.notes)))


# `tbench import harbor`


@click.command(cls=TbenchCommand)
@argument("directories", "DIR...", "A job's directory, a directory of jobs, or directories of trials.", required=True)
@import_options
@option("--metric NAME", "The reward to import, if there are several; default: `reward`.")
def harbor(
    directories: tuple[Path, ...],
    output: Path | None,
    model: str | None,
    agent: str | None,
    split: Literal["model"] | None,
    metric: str | None,
) -> None:
    """Import jobs or trials of Harbor (0.6 to 0.26) as runs."""
    from tbench.exchange.importing.common import ImportChoice
    from tbench.exchange.importing.harbor.job import import_harbor

    print_imported(import_harbor(directories, output, ImportChoice(model, agent, split), metric))


# `tbench import results`


@click.command(cls=TbenchCommand)
@argument("file", "FILE", "JSONL or CSV with task, seed, reward and optional columns.")
@import_options
@flag("--number-seeds", "Number the lines of each task to make seeds, if they have none.")
def results(
    file: Path,
    output: Path | None,
    model: str | None,
    agent: str | None,
    split: Literal["model"] | None,
    number_seeds: bool,
) -> None:
    """Import plain results (task, seed, reward; JSONL or CSV) as a run."""
    from tbench.exchange.importing.bare_results import import_results
    from tbench.exchange.importing.common import ImportChoice

    print_imported(import_results(file, output, ImportChoice(model, agent, split), number_seeds=number_seeds))
