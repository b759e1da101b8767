"""What the commands of `tbench export` have in common: the runs, which of their trials, and where they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tbench.cli.parsing.commands import Argument
from tbench.cli.parsing.values import A_PATH, Number, OneOf
from tbench.cli.printing import print_line
from tbench.errors import UsageError

if TYPE_CHECKING:
    from tbench.exchange.chosen import LeftOut
    from tbench.storage.read_run import StoredRun

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_ONLY = ("all", "scored", "passed", "failed")

runs_argument = click.argument(
    "runs",
    cls=Argument,
    metavar="RUN",
    type=A_PATH,
    nargs=-1,
    required=True,
    help="A run directory; several may follow.",
)
task_option = click.option(
    "--task", "-t", "tasks", metavar="GLOB", multiple=True, help="Only tasks whose name matches this glob; repeatable."
)
min_reward_option = click.option(
    "--min-reward", metavar="NUMBER", type=Number(), help="Only trials with at least this reward."
)


def only_option(default: str) -> Callable[[Decorated], Decorated]:
    """The option that says which trials are taken by how they ended."""
    return click.option(
        "--only",
        type=OneOf(*_ONLY),
        default=default,
        help="Trials by how they ended: all, with a verdict, with a reward of 1 or more, with a smaller one.",
    )


def output_option(form: str) -> Callable[[Decorated], Decorated]:
    """The option that says where the files go."""
    return click.option(
        "--output", "-o", metavar="DIR", type=A_PATH, help=f"A new directory; for one run its default is RUN-{form}."
    )


def target_of(runs: Sequence[Path], output: Path | None, form: str) -> Path:
    """The directory to write. Raises UsageError where several runs leave no default."""
    if output is not None:
        return output
    if len(runs) > 1:
        raise UsageError("several runs: name a new directory for all of them with --output")
    run = runs[0].resolve()
    return run.with_name(f"{run.stem if run.is_file() else run.name}-{form}")


def read_runs(paths: Sequence[Path]) -> dict[str, StoredRun]:
    """The runs by their names. Raises UsageError where two have the same, or one cannot be read."""
    from tbench.storage.read_run import read_run

    runs: dict[str, StoredRun] = {}
    for path in paths:
        run = read_run(path)
        if run.name in runs:
            raise UsageError(f"{path}: is called {run.name}, as is {runs[run.name].path}; export them one by one")
        runs[run.name] = run
        for note in run.notes:
            print_line(f"note: {path}: {note}")
        if run.document is not None and run.document.status == "running":
            print_line(f"note: {path}: not finished: what has no result yet is not exported")
    return runs


def print_left_out(left_out: LeftOut) -> None:
    """Print what is not in an export, and why."""
    for line in left_out.lines():
        print_line(line)
