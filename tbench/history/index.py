"""The index: which runs there are, brought up to date from their directories, and asked about them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar

from tbench.errors import UsageError
from tbench.history import queries
from tbench.history.database import Damaged, connect, make_tables, replace_damaged, told, transaction
from tbench.history.queries import Where
from tbench.history.rows import Changes, DayRow, ModelRow, ProxyRow, RunRow, TaskPoint, TrialRow
from tbench.history.updating import Places, Progress, Update
from tbench.scores.gate.nights import Night, run_identity
from tbench.scores.statistics import RewardTable
from tbench.scores.summary import ErrorGroup

Answer = TypeVar("Answer")


class RunHistory:
    """An index over run directories, open for updates and questions. Two processes may have it open at once."""

    def __init__(self, file: Path, connection: sqlite3.Connection, notes: tuple[str, ...]) -> None:
        self.file = file
        self.notes = notes
        """What was done to the file when it was opened, one sentence each."""
        self._places = Places(file.parent)
        self._connection = connection

    @classmethod
    def open(cls, file: Path) -> Self:
        """Open an index, or begin one. One that is damaged or of another schema is made anew, and the notes say so.

        Raises UsageError for a file that is no index, or cannot be written.
        """
        file = file.parent.resolve() / file.name
        return cls(file, *connect(file))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def update(self, *roots: Path, progress: Progress | None = None) -> Changes:
        """Read the run directories at or below `roots` that are new or have changed, and forget those that are gone.

        Forgotten is only what lay below a root that is there, on a disk that is there. Each run is one transaction:
        whoever ends this process leaves a sound index, which the next update completes. Raises UsageError.
        """
        try:
            return self._updated(roots, progress)
        except Damaged:
            self.close()
            replace_damaged(self.file)
            self._connection, _ = connect(self.file)
            changes = self._updated(roots, progress)
            note = f"{self.file}: was damaged, and was made anew of the run directories"
            return replace(changes, notes=(note, *changes.notes))

    def _updated(self, roots: Iterable[Path], progress: Progress | None) -> Changes:
        with told(self.file):
            return Update(self._connection, self._places, progress)([root.resolve() for root in roots])

    def clear(self) -> None:
        """Forget everything; the next update reads every directory again. Raises UsageError."""
        self._asked(self._make_tables)

    def _make_tables(self) -> None:
        with transaction(self._connection):
            make_tables(self._connection)

    def runs(
        self,
        *,
        model: str | None = None,
        dataset: str | None = None,
        fingerprint: str | None = None,
        begun_after: str | None = None,
        under: Iterable[Path] | None = None,
        limit: int | None = None,
    ) -> tuple[RunRow, ...]:
        """The runs, newest first; those that do not say when they began come last.

        `dataset` is a name or NAME@VERSION, `begun_after` an ISO 8601 time in UTC or the beginning of one, `under`
        folders of which the runs are.
        """
        where = self._where(model=model, dataset=dataset, fingerprint=fingerprint, under=under)
        if begun_after is not None:
            where.add("runs.begun_at > ?", begun_after)
        return self._asked(lambda: queries.select_runs(self._connection, self._places.folder, where, limit))

    def run(self, run: Path | str) -> RunRow:
        """The run of this directory, or of this name where there is one of it. Raises UsageError."""
        found = self._found(run)
        where = Where()
        where.add_equal("runs.id", found)
        return self._asked(lambda: queries.select_runs(self._connection, self._places.folder, where, 1))[0]

    def table(self, run: Path | str) -> RewardTable:
        """The rewards of a run that its summary counts, planned tasks x planned seeds. Raises UsageError."""
        found = self._found(run)
        return self._asked(lambda: queries.select_table(self._connection, found))

    def tasks(self, run: Path | str) -> dict[str, str | None]:
        """The planned tasks of a run in their order, with the hash of their content where it is known."""
        found = self._found(run)
        return self._asked(lambda: queries.select_tasks(self._connection, found))

    def hashes(self, run: Path | str) -> dict[str, str]:
        """The hash of each task's content in a run, by task, where it is known. Raises UsageError."""
        return {task: digest for task, digest in self.tasks(run).items() if digest is not None}

    def night(self, row: RunRow, name: str, begun: str) -> Night:
        """A run as the gate sees it, under the name and the time of its night. Raises UsageError."""
        rewards, hashes = self.table(row.path), self.hashes(row.path)
        return Night(name, begun, rewards, hashes, row.fingerprint, run_identity(row.name, row.model, row.begun_at))

    def trials(
        self, run: Path | str, *, tasks: Sequence[str] | None = None, status: str | None = None
    ) -> tuple[TrialRow, ...]:
        """The final result of each planned trial of a run that has one, of all tasks or of some. Raises UsageError."""
        where = Where()
        where.add_equal("run_id", self._found(run))
        where.add_equal("status", status)
        if tasks is not None:
            where.add(f"task IN ({', '.join('?' * len(tasks))})", *tasks)
        return self._asked(lambda: queries.select_trials(self._connection, where))

    def trials_of(self, task: str) -> dict[Path, tuple[TrialRow, ...]]:
        """The final results of one task over all runs that planned it, by the directory of the run."""
        return self._asked(lambda: queries.select_trials_of(self._connection, self._places.folder, task))

    def errors(self, run: Path | str) -> tuple[ErrorGroup, ...]:
        """The trials of a run without a verdict, those together that failed in the same way. Raises UsageError."""
        found = self._found(run)
        return self._asked(lambda: queries.select_errors(self._connection, found))

    def task(
        self,
        task: str,
        *,
        model: str | None = None,
        dataset: str | None = None,
        fingerprint: str | None = None,
        under: Iterable[Path] | None = None,
    ) -> tuple[TaskPoint, ...]:
        """One task over all runs that planned it, newest first."""
        where = self._where(model=model, dataset=dataset, fingerprint=fingerprint, under=under)
        return self._asked(lambda: queries.select_task(self._connection, self._places.folder, task, where))

    def names_of(self, hashes: Iterable[str]) -> tuple[str, ...]:
        """The names under which tasks of such content were run."""
        known = tuple(dict.fromkeys(hashes))
        return self._asked(lambda: queries.select_names(self._connection, known))

    def task_names(self) -> tuple[str, ...]:
        """The tasks of all runs."""
        return self._asked(lambda: queries.select_task_names(self._connection))

    def expected_sec(self) -> dict[str, float]:
        """The mean seconds of the trials of each task, over all models; only of trials that came to their end."""
        return self._asked(lambda: queries.select_expected_sec(self._connection))

    def models(self, *, dataset: str | None = None, under: Iterable[Path] | None = None) -> tuple[ModelRow, ...]:
        """The best and the last run of each model, series by series."""
        where = self._where(dataset=dataset, under=under)
        return self._asked(lambda: queries.select_models(self._connection, self._places.folder, where))

    def proxies(self, *, model: str | None = None, under: Iterable[Path] | None = None) -> tuple[ProxyRow, ...]:
        """The replays and extractions, newest first."""
        where = Where()
        where.add_equal("models.name", model)
        if under is not None:
            where.add_folders([each.resolve() for each in under], self._places.folder, "proxies")
        return self._asked(lambda: queries.select_proxies(self._connection, self._places.folder, where))

    def days(self, *, model: str | None = None, under: Iterable[Path] | None = None) -> tuple[DayRow, ...]:
        """The days on which runs began, newest first."""
        where = self._where(model=model, under=under)
        return self._asked(lambda: queries.select_days(self._connection, where))

    def _where(
        self,
        *,
        model: str | None = None,
        dataset: str | None = None,
        fingerprint: str | None = None,
        under: Iterable[Path] | None = None,
    ) -> Where:
        where = Where()
        where.add_equal("models.name", model)
        where.add_equal("runs.fingerprint", fingerprint)
        where.add_dataset(dataset)
        if under is not None:
            where.add_folders([each.resolve() for each in under], self._places.folder)
        return where

    def _found(self, run: Path | str) -> int:
        """The id of a run. Raises UsageError."""
        place = self._places.place(run.resolve() if isinstance(run, Path) else Path(run))
        statement = "SELECT id, path FROM runs WHERE path = ? OR name = ? ORDER BY path != ?"
        rows = self._asked(lambda: self._connection.execute(statement, (place, str(run), place)).fetchall())
        if not rows:
            raise UsageError(f"{run}: no such run in the history; `tbench history` lists them")
        if len(rows) > 1 and rows[0][1] != place:
            raise UsageError(f"{run}: {len(rows)} runs have this name; give the directory of one")
        return int(rows[0][0])

    def _asked(self, ask: Callable[[], Answer]) -> Answer:
        """The answer. Raises UsageError where the file is damaged."""
        try:
            with told(self.file):
                return ask()
        except Damaged as damage:
            raise UsageError(f"{damage}; make it anew with: tbench history --rebuild") from None
