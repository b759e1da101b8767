"""`tbench export`: stored runs in formats of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tbench.cli.common import runs_argument
from tbench.cli.parsing.commands import Lazy, LazyGroup, TbenchCommand
from tbench.cli.parsing.values import A_PATH, OneOf
from tbench.cli.printing import print_line
from tbench.errors import UsageError
from tbench.text import counted

if TYPE_CHECKING:
    from tbench.exchange.chosen import LeftOutTrials, Only
    from tbench.exchange.sft import Thinking
    from tbench.storage.read_run import StoredRun

COMMANDS = {
    "atif": Lazy("tbench.cli.export", "atif", "Write trajectories as ATIF 1.8 documents, one for each trial."),
    "sft": Lazy(
        "tbench.cli.export",
        "sft",
        "Write conversations as training data: OpenAI's messages, with a flag on each that is to be learnt.",
    ),
    "harbor": Lazy(
        "tbench.cli.export",
        "harbor",
        "Write runs as jobs of Harbor, with what its viewer and its other commands read.",
    ),
    "sqlite": Lazy("tbench.cli.export", "sqlite", "Write runs, tasks and trials as the tables of one SQLite file."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def export() -> None:
    """Write stored runs in formats of others."""


# What the commands of `tbench export` have in common: the runs, which of their trials, and where they go.

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


# `tbench export atif`: trajectories as Harbor, its viewers and its converters read them.


@click.command(cls=TbenchCommand)
@export_options("atif", only="all")
@click.option(
    "--linear", is_flag=True, help="A document for each context, where the history was made shorter on the way."
)
def atif(
    runs: tuple[Path, ...],
    output: Path | None,
    only: Only,
    min_reward: float | None,
    tasks: tuple[str, ...],
    linear: bool,
) -> None:
    """Write trajectories as ATIF 1.8 documents, one for each trial."""
    from tbench.exchange.atif import write_atif
    from tbench.exchange.chosen import LeftOutTrials, TrialChoice, require_trials
    from tbench.storage.record_directory import new_directory

    target = target_of(runs, output, "atif")
    choice = TrialChoice(only=only, min_reward=min_reward, tasks=tasks)
    stored, left_out, count = read_runs(runs), LeftOutTrials(), 0
    with new_directory(target) as directory:
        for name, run in stored.items():
            below = directory / name if len(stored) > 1 else directory
            count += write_atif(run, choice, below, left_out, linear=linear)
        require_trials(count, left_out)
    print_left_out(left_out)
    print_line(f"{counted(count, 'trial')} written to {target}")


# `tbench export sft`: conversations as training data.


@click.command(cls=TbenchCommand)
@export_options("sft", only="passed")
@click.option(
    "--thinking",
    type=OneOf("keep", "inline", "drop"),
    default="keep",
    help="Thinking stays where it came, stands in <think> tags in front of the text, or goes.",
)
@click.option("--with-flagged", is_flag=True, help="Also trials with strong signs of tampering.")
@click.option("--with-human", is_flag=True, help="Also trials in which a human typed.")
def sft(
    runs: tuple[Path, ...],
    output: Path | None,
    only: Only,
    min_reward: float | None,
    tasks: tuple[str, ...],
    thinking: Thinking,
    with_flagged: bool,
    with_human: bool,
) -> None:
    """Write conversations as training data: OpenAI's messages, with a flag on each that is to be learnt."""
    from tbench.exchange.chosen import LeftOutTrials, TrialChoice, exported_trials, require_trials
    from tbench.exchange.sft import TrainingData
    from tbench.storage.record_directory import new_directory

    target = target_of(runs, output, "sft")
    choice = TrialChoice(only, min_reward, tasks, with_flagged=with_flagged, with_human=with_human)
    stored, left_out = read_runs(runs), LeftOutTrials()
    with new_directory(target) as directory:
        data = TrainingData(directory, thinking)
        for run in stored.values():
            for trial in exported_trials(run, choice, left_out):
                if not data.add(trial):
                    left_out.add("in which nothing can be learnt")
        data.close()
        require_trials(data.trials, left_out)
    print_left_out(left_out)
    for note in data.notes():
        print_line(note)
    said = f"{counted(data.rows, 'row')} with {counted(data.replies, 'reply').replace('replys', 'replies')} to learn"
    print_line(f"{counted(data.trials, 'trial')}, {said} written to {target}")


# `tbench export harbor`: runs as jobs of Harbor.


@click.command(cls=TbenchCommand)
@export_options("harbor", only="all")
def harbor(
    runs: tuple[Path, ...], output: Path | None, only: Only, min_reward: float | None, tasks: tuple[str, ...]
) -> None:
    """Write runs as jobs of Harbor, with what its viewer and its other commands read."""
    from tbench.exchange.chosen import LeftOutTrials, TrialChoice, require_trials
    from tbench.exchange.harbor import write_harbor_job
    from tbench.storage.record_directory import new_directory

    target = target_of(runs, output, "harbor")
    choice = TrialChoice(only=only, min_reward=min_reward, tasks=tasks)
    stored, left_out, count = read_runs(runs), LeftOutTrials(), 0
    with new_directory(target) as directory:
        for name, run in stored.items():
            below = Path(name) if len(stored) > 1 else Path()
            count += write_harbor_job(run, choice, directory / below, target / below, left_out)
        require_trials(count, left_out)
    print_left_out(left_out)
    print_line(f"{counted(count, 'trial')} written to {target}")


# `tbench export sqlite`: runs as the tables of one SQLite file.


@click.command(cls=TbenchCommand)
@runs_argument("Run directories, and folders of them at any depth.")
@click.option("--output", "-o", metavar="FILE", type=A_PATH, required=True, help="The new file.")
@click.option("--overwrite", is_flag=True, help="Replace the file where it is there already.")
def sqlite(runs: tuple[Path, ...], output: Path, overwrite: bool) -> None:
    """Write runs, tasks and trials as the tables of one SQLite file."""
    from tbench.history.updating import export_sqlite

    count, notes = export_sqlite(runs, output, overwrite=overwrite)
    for note in notes:
        print_line(f"note: {note}", err=True)
    print_line(f"{counted(count, 'run')} written to {output}")
