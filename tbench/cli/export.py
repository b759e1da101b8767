"""`tbench export`: write stored runs in other formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbench.cli.common import runs_argument
from tbench.cli.parsing.commands import LazyGroup, TbenchCommand, flag, option
from tbench.cli.parsing.values import PATH_TYPE, Number, OneOf
from tbench.cli.printing import print_line, print_lines, print_notes
from tbench.errors import UsageError
from tbench.text import counted

if TYPE_CHECKING:
    from tbench.exchange.selection import LeftOutTrials, TrialChoice
    from tbench.exchange.sft import Thinking
    from tbench.storage.read_run import StoredRun

COMMANDS = {
    "atif": "tbench.cli.export:atif",
    "sft": "tbench.cli.export:sft",
    "harbor": "tbench.cli.export:harbor",
    "sqlite": "tbench.cli.export:sqlite",
}


@click.group(cls=LazyGroup, table=COMMANDS)
def export() -> None:
    """Export runs as ATIF, SFT data, Harbor jobs or SQLite."""


@dataclass
class Export:
    """An export of trials while it is written."""

    runs: dict[str, StoredRun]
    """Runs by names that are safe for files."""
    choice: TrialChoice
    directory: Path
    """Directory to write into; it becomes `target` at the end."""
    target: Path
    left_out: LeftOutTrials

    def places(self) -> Iterator[tuple[StoredRun, Path]]:
        """Yield each run with its path: below the directory, or for a single run the directory itself."""
        for name, run in self.runs.items():
            yield run, Path(name) if len(self.runs) > 1 else Path()


Write = Callable[..., tuple[int, str]]
"""Writes the trials of an export; returns their number, and words about further contents."""


def export_command(form: str, *, only: str) -> Callable[[Write], click.Command]:
    """Make a command of a function that writes trials; `only` is the default of `--only`.

    The command reads the runs, creates the directory, and prints what was written and left out.
    """

    def decorate(write: Write) -> click.Command:
        def command(runs: tuple[Path, ...], output: Path | None, **given: Any) -> None:
            from tbench.exchange.selection import LeftOutTrials, TrialChoice, require_trials
            from tbench.storage.record_directory import new_directory

            target = output_directory(runs, output, form)
            choice = TrialChoice(
                **{each.name: given.pop(each.name) for each in fields(TrialChoice) if each.name in given}
            )
            stored, left_out = read_runs(runs), LeftOutTrials()
            with new_directory(target) as directory:
                count, words = write(Export(stored, choice, directory, target, left_out), **given)
                require_trials(count, left_out)
            print_lines(left_out.lines())
            print_line(f"{counted(count, 'trial')}{words} written to {target}")

        command.__doc__ = write.__doc__
        command.__click_params__ = getattr(write, "__click_params__", [])  # type: ignore[attr-defined]
        for decorate in reversed(_options(form, only)):
            command = decorate(command)
        return click.command(write.__name__, cls=TbenchCommand)(command)

    return decorate


def _options(form: str, only: str) -> list[Callable[[Any], Any]]:
    return [
        runs_argument("Run directories."),
        option("--output -o DIR", f"A new directory. Default for a single run: RUN-{form}.", PATH_TYPE),
        option(
            "--only",
            "Which trials: all, scored (with a verdict), passed (reward of 1 or more), or failed (lower reward).",
            OneOf("all", "scored", "passed", "failed"),
            default=only,
        ),
        option("--min-reward", "Only trials with at least this reward.", Number()),
        option("--task -t GLOB", "Only tasks whose name matches this glob; repeatable.", name="tasks", multiple=True),
        option("--tag NAME", "Only trials with this tag; repeatable.", name="tags", multiple=True),
        option("--without TAG", "No trials with this tag; repeatable.", multiple=True),
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
        print_lines(f"note: {path}: {note}" for note in run.notes)
        if run.document is not None and run.document.status == "running":
            print_line(f"note: {path}: not finished; trials without a result are not exported")
    return runs


@export_command("atif", only="all")
@flag("--linear", "Write one document per context, for trials whose history was compacted.")
def atif(export: Export, linear: bool) -> tuple[int, str]:
    """Write trajectories as ATIF 1.8 documents, one per trial."""
    from tbench.exchange.atif import write_atif

    written = (
        write_atif(run, export.choice, export.directory / below, export.left_out, linear=linear)
        for run, below in export.places()
    )
    return sum(written), ""


@export_command("sft", only="passed")
@option(
    "--thinking",
    "Keep thinking separate, put it in <think> tags before the text, or drop it.",
    OneOf("keep", "inline", "drop"),
    default="keep",
)
@flag("--with-flagged", "Also export trials with strong signs of tampering.")
@flag("--with-human", "Also export trials in which a person typed.")
def sft(export: Export, thinking: Thinking) -> tuple[int, str]:
    """Write conversations as training data: OpenAI messages, where a flag marks the replies to train on."""
    from tbench.exchange.selection import select_trials
    from tbench.exchange.sft import TrainingData

    data = TrainingData(export.directory, thinking)
    for run in export.runs.values():
        for trial in select_trials(run, export.choice, export.left_out):
            if not data.add(trial):
                export.left_out.add("without a reply to train on")
    data.close()
    print_lines(data.notes() if data.trials else ())
    return data.trials, f", {counted(data.rows, 'row')} with {counted(data.replies, 'reply')} to train on"


@export_command("harbor", only="all")
def harbor(export: Export) -> tuple[int, str]:
    """Write runs as Harbor jobs that its viewer and other commands can read."""
    from tbench.exchange.harbor import write_harbor_job

    written = (
        write_harbor_job(run, export.choice, export.directory / below, export.target / below, export.left_out)
        for run, below in export.places()
    )
    return sum(written), ""


# `tbench export sqlite`


@click.command(cls=TbenchCommand)
@runs_argument("Run directories, or folders that contain some at any depth.")
@option("--output -o FILE", "The new file.", PATH_TYPE, required=True)
@flag("--overwrite", "Replace the file if it exists.")
def sqlite(runs: tuple[Path, ...], output: Path, overwrite: bool) -> None:
    """Write runs, tasks and trials as tables of a SQLite file."""
    from tbench.history.update import export_sqlite

    count, notes = export_sqlite(runs, output, overwrite=overwrite)
    print_notes(notes)
    print_line(f"{counted(count, 'run')} written to {output}")
