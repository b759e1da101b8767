"""`tbench import`: results of others as run directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import click

from tbench.cli.parsing.commands import Argument, Lazy, LazyGroup, TbenchCommand
from tbench.cli.parsing.values import A_PATH, OneOf
from tbench.cli.printing import print_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tbench.exchange.importing.writing import Imported

COMMANDS = {
    "harbor": Lazy("tbench.cli.import_", "harbor", "Write jobs or trials of Harbor (0.6 to 0.25) as runs."),
    "results": Lazy("tbench.cli.import_", "results", "Write bare results (task, seed, reward; JSONL or CSV) as a run."),
}
Command = TypeVar("Command", bound=Callable[..., object])


@click.group("import", cls=LazyGroup, table=COMMANDS)
def import_() -> None:
    """Write results of others (Harbor, bare lines) as run directories."""


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


# `tbench import harbor`: jobs and trials of Harbor as runs.


@click.command(cls=TbenchCommand)
@click.argument(
    "directories",
    cls=Argument,
    metavar="DIR...",
    type=A_PATH,
    nargs=-1,
    required=True,
    help="A job's directory, a directory of jobs, or directories of trials.",
)
@importing_options
@click.option("--metric", metavar="NAME", help="The reward that counts, of several; default: `reward`.")
def harbor(
    directories: tuple[Path, ...],
    output: Path | None,
    model: str | None,
    agent: str | None,
    split: Literal["model"] | None,
    metric: str | None,
) -> None:
    """Write jobs or trials of Harbor (0.6 to 0.25) as runs."""
    from tbench.exchange.importing.harbor.job import import_harbor
    from tbench.exchange.importing.writing import ImportChoice

    tell(import_harbor(directories, output, ImportChoice(model, agent, split), metric))


# `tbench import results`: bare results as runs.


@click.command(cls=TbenchCommand)
@click.argument(
    "file", cls=Argument, metavar="FILE", type=A_PATH, help="JSON lines or CSV with task, seed, reward and more."
)
@importing_options
@click.option("--number-seeds", is_flag=True, help="Number the lines of each task, which have no seed.")
def results(
    file: Path,
    output: Path | None,
    model: str | None,
    agent: str | None,
    split: Literal["model"] | None,
    number_seeds: bool,
) -> None:
    """Write bare results (task, seed, reward; JSONL or CSV) as a run."""
    from tbench.exchange.importing.bare_results import import_results
    from tbench.exchange.importing.writing import ImportChoice

    tell(import_results(file, output, ImportChoice(model, agent, split), number_seeds=number_seeds))
