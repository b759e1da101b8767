"""Notes that people write about the trials and tasks of a run, in notes.jsonl: lines are only ever appended.

A note about a trial names its id, so that it stays with the trial when results are written again.
"""

from __future__ import annotations

import contextlib
import getpass
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness.trajectory import Frozen
from tbench.errors import UsageError
from tbench.files import writable
from tbench.locks import Held, hold_lock
from tbench.storage.record_directory import LineFile, read_lines
from tbench.storage.run_files import NOTES_NAME
from tbench.text import counted

_WAIT_SEC = 10.0
TAG = r"^[\w][\w.+-]{0,63}$"
"""Pattern of a tag."""


class TrialNote(Frozen, extra="ignore"):
    """One line of notes.jsonl: a note about a trial or a whole task, or the removal of earlier ones."""

    time: datetime
    author: str = ""
    task: str
    seed: int | None = None
    """The seed of the trial; None for all trials of the task."""
    trial: str | None = None
    """The id of the trial, as in results.jsonl; None for all trials of the task."""
    tags: tuple[str, ...] = ()
    text: str = ""
    removes: bool = False
    """Whether the line removes the earlier notes on the same trial or task or, if it has tags, only these tags."""

    @property
    def target(self) -> tuple[str, int | None]:
        """Task and seed."""
        return self.task, self.seed

    @property
    def words(self) -> str:
        """Tags, text, author and day in one line."""
        said = ": ".join(filter(None, (", ".join(self.tags), self.text)))
        scope = "; on all trials of the task" if self.seed is None else ""
        return f"{said} ({', '.join(filter(None, (self.author, f'{self.time:%Y-%m-%d}')))}{scope})"

    def is_about(self, task: str, seed: int) -> bool:
        """Whether the note applies to a trial."""
        return self.task == task and self.seed in (None, seed)


def new_note(
    task: str, seed: int | None, trial: str | None, tags: Iterable[str], text: str, *, removes: bool = False
) -> TrialNote:
    """Return a note of the present user, written now."""
    try:
        author = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        author = ""
    unique, now = tuple(dict.fromkeys(tags)), datetime.now(UTC).replace(microsecond=0)
    return TrialNote(
        time=now, author=author, task=task, seed=seed, trial=trial, tags=unique, text=text, removes=removes
    )


def append_note(run: Path, note: TrialNote) -> None:
    """Append a line to the notes of a run, waiting for others who write. Raises UsageError."""
    path = run / NOTES_NAME
    try:
        with (
            writable(path),
            path.open("ab") as opened,
            hold_lock(path, opened.fileno(), _WAIT_SEC),
            # Under the lock: it repairs the last line, which another process may be writing.
            contextlib.closing(LineFile(path)) as file,
        ):
            file.append(note.model_dump_json(exclude_defaults=True))
    except Held:
        raise UsageError(f"{path}: another process has been writing to it for {_WAIT_SEC:.0f} s; try again") from None


def read_notes(run: Path, problems: list[str]) -> tuple[TrialNote, ...]:
    """Read the notes of a run that were not removed, oldest first; unreadable lines are added to `problems`.

    Raises OSError.
    """
    damaged: list[str] = []
    lines = read_lines(run / NOTES_NAME, _whole_lines(run), TrialNote, damaged)
    notes = _without_removed(note for _, note in lines)
    problems += (f"{each}; this note is left out" for each in damaged)
    return notes


def _whole_lines(run: Path) -> bytes:
    """Return the content of a run's notes, without an incomplete last line. Raises OSError."""
    try:
        content = (run / NOTES_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    whole, _, last = content.rpartition(b"\n")
    try:
        json.loads(last)
    except ValueError:
        return whole
    return content


def _without_removed(lines: Iterable[TrialNote]) -> tuple[TrialNote, ...]:
    kept: list[TrialNote] = []
    for line in lines:
        if line.removes:
            kept = [*filter(None, (_less(note, line) if note.target == line.target else note for note in kept))]
        else:
            kept.append(line)
    return tuple(kept)


def _less(note: TrialNote, removal: TrialNote) -> TrialNote | None:
    """Apply a line that removes text or tags to a note. Returns None if nothing is left."""
    tags = tuple(tag for tag in note.tags if tag not in removal.tags)
    if not removal.tags or (tags != note.tags and not tags and not note.text):
        return None
    return note.model_copy(update={"tags": tags})


def of_same_trials(
    notes: Sequence[TrialNote], ids: Mapping[tuple[str, int], str], problems: list[str]
) -> tuple[TrialNote, ...]:
    """Return the notes without those on trials that now have another id, such as in a copy of another run's notes."""
    kept = tuple(
        note for note in notes if note.seed is None or ids.get((note.task, note.seed), note.trial) == note.trial
    )
    if gone := len(notes) - len(kept):
        problems.append(f"{NOTES_NAME}: {counted(gone, 'note')} on trials of another run left out")
    return kept


def tags_by_trial(
    notes: Iterable[TrialNote], tasks: Iterable[str], seeds: Sequence[int]
) -> dict[tuple[str, int], set[str]]:
    """Return the tags of each tagged trial of a plan, by task and seed."""
    found: dict[tuple[str, int], set[str]] = {}
    planned = set(tasks)
    for note in notes:
        for seed in (seeds if note.seed is None else (note.seed,)) if note.task in planned and note.tags else ():
            found.setdefault((note.task, seed), set()).update(note.tags)
    return found


def note_lines(run: Path) -> Iterator[str]:
    """Yield the lines of a run's notes as they are. Raises OSError."""
    yield from filter(None, _whole_lines(run).decode("utf-8", "replace").split("\n"))
