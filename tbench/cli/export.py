"""`tbench export`: write stored runs in other formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tbench.cli.common import runs_argument
from tbench.cli.parsing.commands import LazyCommand, LazyGroup, TbenchCommand
from tbench.cli.parsing.values import PATH_TYPE, Number, OneOf
from tbench.cli.printing import print_line
from tbench.errors import UsageError
from tbench.text import counted

if TYPE_CHECKING:
    from tbench.exchange.selection import LeftOutTrials, Only
    from tbench.exchange.sft import Thinking
    from tbench.storage.read_run import StoredRun

COMMANDS = {
    "atif": LazyCommand("tbench.cli.export", "atif", "Write trajectories as ATIF 1.8 documents, one per trial."),
    "sft": LazyCommand(
        "tbench.cli.export",
        "sft",
        "Write conversations as training data: OpenAI messages, where a flag marks the replies to train on.",
    ),
    "harbor": LazyCommand(
        "tbench.cli.export",
        "harbor",
        "Write runs as Harbor jobs that its viewer and other commands can read.",
    ),
    "sqlite": LazyCommand("tbench.cli.export", "sqlite", "Write runs, tasks and trials as tables of a SQLite file."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def export() -> None:
    """Export runs as ATIF, SFT data, Harbor jobs or SQLite."""


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def export_options(form: str, *, only: str) -> Callable[[Decorated], Decorated]:
    """Add the runs argument, `--output`, and the options that choose trials, with `only` as the default of `--only`."""

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
            type=PATH_TYPE,
            help=f"A new directory. Default for a single run: RUN-{form}.",
        ),
        click.option(
            "--only",
            type=OneOf("all", "scored", "passed", "failed"),
            default=only,
            help="Which trials: all, scored (with a verdict), passed (reward of 1 or more), or failed (lower reward).",
        ),
        click.option("--min-reward", type=Number(), help="Only trials with at least this reward."),
        click.option(
            *("--task", "-t", "tasks"),
            metavar="GLOB",
            multiple=True,
            help="Only tasks whose name matches this glob; repeatable.",
        ),
        click.option("--tag", "tags", metavar="NAME", multiple=True, help="Only trials with this tag; repeatable."),
        click.option("--without", metavar="TAG", multiple=True, help="No trials with this tag; repeatable."),
    ]


def output_directory(runs: Sequence[Path], output: Path | None, form: str) -> Path:
    """Return the directory to write. Raises UsageError for several runs without --output."""
    if output is not None:
        return output
    if len(runs) > 1:
        raise UsageError("several runs need a new directory: give it with --output")
    run = runs[0].resolve()
    return run.with_name(f"{run.stem if run.is_file() else run.name}-{form}")


def read_runs(paths: Sequence[Path]) -> dict[str, StoredRun]:
    """Read runs; the keys are names that are safe for files. Raises UsageError for equal names or an unreadable run."""
    from tbench.files import safe_relative
    from tbench.storage.read_run import read_run

    runs: dict[str, StoredRun] = {}
    for path in paths:
        run = read_run(path)
        name = str(safe_relative(run.name.replace("/", "-")))
        if name in runs:
            raise UsageError(f"{path}: has the same name as {runs[name].path} ({name}); export them separately")
        runs[name] = run
        for note in run.notes:
            print_line(f"note: {path}: {note}")
        if run.document is not None and run.document.status == "running":
            print_line(f"note: {path}: not finished; trials without a result are not exported")
    return runs


def print_left_out(left_out: LeftOutTrials) -> None:
    """Print which trials were left out of an export, and why."""
    for line in left_out.lines():
        print_line(line)


# `tbench export atif`


@click.command(cls=TbenchCommand)
@export_options("atif", only="all")
@click.option("--linear", is_flag=True, help="Write one document per context, for trials whose history was compacted.")
def atif(
    runs: tuple[Path, ...],
    output: Path | None,
    only: Only,
    min_reward: float | None,
    tasks: tuple[str, ...],
    tags: tuple[str, ...],
    without: tuple[str, ...],
    linear: bool,
) -> None:
    """Write trajectories as ATIF 1.8 documents, one per trial."""
    from tbench.exchange.atif import write_atif
    from tbench.exchange.selection import LeftOutTrials, TrialChoice, require_trials
    from tbench.storage.record_directory import new_directory

    target = output_directory(runs, output, "atif")
    choice = TrialChoice(only=only, min_reward=min_reward, tasks=tasks, tags=tags, without=without)
    stored, left_out, count = read_runs(runs), LeftOutTrials(), 0
    with new_directory(target) as directory:
        for name, run in stored.items():
            below = directory / name if len(stored) > 1 else directory
            count += write_atif(run, choice, below, left_out, linear=linear)
        require_trials(count, left_out)
    print_left_out(left_out)
    print_line(f"{counted(count, 'trial')} written to {target}")


# `tbench export sft`


@click.command(cls=TbenchCommand)
@export_options("sft", only="passed")
@click.option(
    "--thinking",
    type=OneOf("keep", "inline", "drop"),
    default="keep",
    help="Keep thinking separate, put it in <think> tags before the text, or drop it.",
)
@click.option("--with-flagged", is_flag=True, help="Also export trials with strong signs of tampering.")
@click.option("--with-human", is_flag=True, help="Also export trials in which a person typed.")
def sft(
    runs: tuple[Path, ...],
    output: Path | None,
    only: Only,
    min_reward: float | None,
    tasks: tuple[str, ...],
    tags: tuple[str, ...],
    without: tuple[str, ...],
    thinking: Thinking,
    with_flagged: bool,
    with_human: bool,
) -> None:
    """Write conversations as training data: OpenAI messages, where a flag marks the replies to train on."""
    from tbench.exchange.selection import LeftOutTrials, TrialChoice, require_trials, select_trials
    from tbench.exchange.sft import TrainingData
    from tbench.storage.record_directory import new_directory

    target = output_directory(runs, output, "sft")
    choice = TrialChoice(only, min_reward, tasks, with_flagged, with_human, tags, without)
    stored, left_out = read_runs(runs), LeftOutTrials()
    with new_directory(target) as directory:
        data = TrainingData(directory, thinking)
        for run in stored.values():
            for trial in select_trials(run, choice, left_out):
                if not data.add(trial):
                    left_out.add("without a reply to train on")
        data.close()
        require_trials(data.trials, left_out)
    print_left_out(left_out)
    for note in data.notes():
        print_line(note)
    rows = f"{counted(data.rows, 'row')} with {counted(data.replies, 'reply')} to train on"
    print_line(f"{counted(data.trials, 'trial')}, {rows} written to {target}")


# `tbench export harbor`


@click.command(cls=TbenchCommand)
@export_options("harbor", only="all")
def harbor(
    runs: tuple[Path, ...],
    output: Path | None,
    only: Only,
    min_reward: float | None,
    tasks: tuple[str, ...],
    tags: tuple[str, ...],
    without: tuple[str, ...],
) -> None:
    """Write runs as Harbor jobs that its viewer and other commands can read."""
    from tbench.exchange.harbor import write_harbor_job
    from tbench.exchange.selection import LeftOutTrials, TrialChoice, require_trials
    from tbench.storage.record_directory import new_directory

    target = output_directory(runs, output, "harbor")
    choice = TrialChoice(only=only, min_reward=min_reward, tasks=tasks, tags=tags, without=without)
    stored, left_out, count = read_runs(runs), LeftOutTrials(), 0
    with new_directory(target) as directory:
        for name, run in stored.items():
            below = Path(name) if len(stored) > 1 else Path()
            count += write_harbor_job(run, choice, directory / below, target / below, left_out)
        require_trials(count, left_out)
    print_left_out(left_out)
    print_line(f"{counted(count, 'trial')} written to {target}")


# `tbench export sqlite`


@click.command(cls=TbenchCommand)
@runs_argument("Run directories, and folders of them at any depth.")
@click.option("--output", "-o", metavar="FILE", type=PATH_TYPE, required=True, help="The new file.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
def sqlite(runs: tuple[Path, ...], output: Path, overwrite: bool) -> None:
    """Write runs, tasks and trials as tables of a SQLite file."""
    from tbench.history.update import export_sqlite

    count, notes = export_sqlite(runs, output, overwrite=overwrite)
    for note in notes:
        print_line(f"note: {note}", err=True)
    print_line(f"{counted(count, 'run')} written to {output}")
