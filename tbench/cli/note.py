"""`tbench note`: write, list and remove notes on trials and tasks of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import click

from tbench.cli.parsing.commands import TbenchCommand, argument, flag, option
from tbench.cli.parsing.values import NAME_TYPE
from tbench.cli.printing import print_line, print_notes
from tbench.errors import UsageError
from tbench.storage.read_run import StoredRun, read_run
from tbench.storage.run_files import RESULTS_NAME, is_run
from tbench.storage.stored_trial import NAMED
from tbench.storage.trial_notes import TAG, append_note, new_note
from tbench.text import plain


class NoteTarget(NamedTuple):
    """Subject of a note: a trial, a task of a run or, when notes are listed, the whole run."""

    run: StoredRun
    task: str | None = None
    seed: int | None = None
    trial: str | None = None
    """Id of the trial."""

    def includes(self, task: str, seed: int | None) -> bool:
        """Whether a note on a task or trial is part of the list of this target."""
        return self.task in (None, task) and (self.seed is None or seed in (None, self.seed))


@click.command(cls=TbenchCommand)
@argument("target", "TARGET", "A trial, RUN/TASK/SEED, or a task, RUN/TASK; to list notes, also a RUN.", type=NAME_TYPE)
@argument("text", "TEXT", "The note; without text and tags, notes are listed.", nargs=-1, type=str)
@option("--tag NAME", "Add this tag, such as task-fault; repeatable.", name="tags", multiple=True)
@flag("--remove", "Remove the notes on the target, or only the given tags.")
def note(target: str, text: tuple[str, ...], tags: tuple[str, ...], remove: bool) -> None:
    """Write a note on a trial or on a task, with tags; or list the notes of RUN, RUN/TASK or RUN/TASK/SEED."""
    said = " ".join(text).strip()
    if bad := next((tag for tag in tags if not re.fullmatch(TAG, tag)), None):
        raise UsageError(f"--tag {plain(bad)}: is not a tag; use letters, digits, dots, dashes, for example task-fault")
    if remove and said:
        raise UsageError("--remove: takes no text; it removes the notes on TARGET, or only the tags that --tag names")
    found = find_target(target)
    if not (said or tags or remove):
        _list(found)
        return
    if found.task is None:
        raise UsageError(f"{target}: is a run; write RUN/TASK/SEED for a trial, or RUN/TASK for a task")
    own = [each for each in found.run.trial_notes if each.target == (found.task, found.seed)]
    if remove and not any(not tags or set(tags) & set(each.tags) for each in own):
        raise UsageError(f"{target}: has no such note; tbench note {target} lists what there is")
    append_note(found.run.path, new_note(found.task, found.seed, found.trial, tags, said, removes=remove))
    _list(find_target(target))


def find_target(name: str) -> NoteTarget:
    """Find a run, a task or a trial by name. Raises UsageError."""
    if _has_results(Path(name)):
        return NoteTarget(read_run(Path(name)))
    found = NAMED.fullmatch(name)
    if found is None or not _has_results(Path(found["run"])):
        raise UsageError(f"{plain(name)}: is not in a run directory; write RUN/TASK/SEED or RUN/TASK")
    run, task = read_run(Path(found["run"])), found["task"]
    if task not in run.planned_tasks:
        raise UsageError(f"{found['run']}: has no task {plain(task)}; tbench summary lists its tasks")
    if found["seed"] is None:
        return NoteTarget(run, task)
    seed = int(found["seed"])
    ids = [each.trial for each in run.results if (each.task, each.seed) == (task, seed)]
    if not ids:
        raise UsageError(f"{found['run']}: trial {plain(task)}/{seed} does not exist, or has no result yet")
    return NoteTarget(run, task, seed, ids[-1])


def _has_results(path: Path) -> bool:
    return is_run(path) or (path / RESULTS_NAME).is_file()


def _list(target: NoteTarget) -> None:
    notes = [each for each in target.run.trial_notes if target.includes(each.task, each.seed)]
    print_notes(target.run.notes)
    for each in notes:
        print_line(f"{'/'.join(map(str, filter(lambda part: part is not None, each.target)))}: {each.words}")
    if not notes:
        print_line("no notes")
