"""What the commands of `tbench export` have in common: the runs, which of their trials, and where they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tbench.cli.common import runs_argument
from tbench.cli.parsing.values import A_PATH, OneOf
from tbench.cli.printing import print_line
from tbench.errors import UsageError

if TYPE_CHECKING:
    from tbench.exchange.chosen import LeftOutTrials
    from tbench.storage.read_run import StoredRun

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def export_options(form: str, *, only: str) -> Callable[[Decorated], Decorated]:
    """The runs, where the files go, and which trials are taken: by default those that `only` says."""

    def decorated(command: Decorated) -> Decorated:
        for option in reversed(_options(form, only)):
            command = option(command)
        return command

    return decorated


def _options(form: str, only: str) -> list[Callable[[Decorated], Decorated]]:
    return [
        runs_argument("Run directories."),
        click.option(
            "--output",
            "-o",
            metavar="DIR",
            type=A_PATH,
            help=f"A new directory; for one run its default is RUN-{form}.",
        ),
        click.option(
            "--only",
            type=OneOf("all", "scored", "passed", "failed"),
            default=only,
            help="Trials by how they ended: all, with a verdict, with a reward of 1 or more, with a smaller one.",
        ),
        click.option("--min-reward", metavar="NUMBER", type=float, help="Only trials with at least this reward."),
        click.option(
            *("--task", "-t", "tasks"),
            metavar="GLOB",
            multiple=True,
            help="Only tasks whose name matches this glob; repeatable.",
        ),
    ]


def target_of(runs: Sequence[Path], output: Path | None, form: str) -> Path:
    """The directory to write. Raises UsageError where several runs leave no default."""
    if output is not None:
        return output
    if len(runs) > 1:
        raise UsageError("several runs: name a new directory for all of them with --output")
    run = runs[0].resolve()
    return run.with_name(f"{run.stem if run.is_file() else run.name}-{form}")


def read_runs(paths: Sequence[Path]) -> dict[str, StoredRun]:
    """The runs by their names as files have them. Raises UsageError where two have one, or one cannot be read."""
    from tbench.files import safe_relative
    from tbench.storage.read_run import read_run

    runs: dict[str, StoredRun] = {}
    for path in paths:
        run = read_run(path)
        name = str(safe_relative(run.name.replace("/", "-")))
        if name in runs:
            raise UsageError(f"{path}: is called {name}, as is {runs[name].path}; export them one by one")
        runs[name] = run
        for note in run.notes:
            print_line(f"note: {path}: {note}")
        if run.document is not None and run.document.status == "running":
            print_line(f"note: {path}: not finished: what has no result yet is not exported")
    return runs


def print_left_out(left_out: LeftOutTrials) -> None:
    """Print what is not in an export, and why."""
    for line in left_out.lines():
        print_line(line)
