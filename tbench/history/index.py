"""The index: which runs there are, brought up to date from their directories, and asked about them in SQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Self, TypeVar

from tbench.errors import UsageError
from tbench.history.database import Damaged, connect, make_tables, replace_damaged, told, transaction
from tbench.history.rows import Changes, DayRow, ModelRow, ProxyRow, RunRow, TaskPoint, TrialRow
from tbench.history.updating import Places, Progress, Update
from tbench.scores.gate.nights import Night, run_identity
from tbench.scores.statistics import RewardTable
from tbench.scores.summary import ErrorGroup

# What is asked of an index, in SQL; each query is meant for a page and reads no more than it shows.

_ELSEWHERE = {
    "model": "models.name",
    "dataset": "datasets.name",
    "dataset_version": "datasets.version",
}
_FIELDS = tuple(field.name for field in fields(RunRow))
_COLUMNS = ", ".join(_ELSEWHERE.get(name, f"runs.{name}") for name in _FIELDS)
_TRIAL_COLUMNS = ", ".join(f"trials.{field.name}" for field in fields(TrialRow))
_RUNS = """runs LEFT JOIN models ON models.id = runs.model_id LEFT JOIN datasets ON datasets.id = runs.dataset_id"""
NEWEST_FIRST = "runs.begun_at IS NULL, runs.begun_at DESC, runs.path DESC"
"""Runs whose begin is not known come last."""


class Where:
    """Conditions and their values."""

    def __init__(self) -> None:
        self._conditions: list[str] = []
        self.values: list[object] = []

    def add(self, condition: str, *values: object) -> None:
        self._conditions.append(condition)
        self.values += values

    def add_equal(self, column: str, value: object) -> None:
        """Nothing for None."""
        if value is not None:
            self.add(f"{column} = ?", value)

    def add_dataset(self, said: str | None) -> None:
        """The dataset by name, or by NAME@VERSION."""
        if said is not None:
            title = "datasets.name || '@' || datasets.version"
            self.add(f"(datasets.name = ? OR {title} = ?)", said, said)

    def add_folders(self, folders: Iterable[Path], index_folder: Path, table: str = "runs") -> None:
        """At or below one of these folders; paths in the index are relative to its own folder where they lie in it."""
        conditions, values = [], list[object]()
        for folder in folders:
            known = folder.relative_to(index_folder) if folder.is_relative_to(index_folder) else folder
            start = "" if known == Path() else f"{str(known).rstrip('/')}/"
            if start:
                conditions.append(f"{table}.path = ? OR substr({table}.path, 1, ?) = ?")
                values += (str(known), len(start), start)
            if index_folder.is_relative_to(folder):
                conditions.append(f"substr({table}.path, 1, 1) != '/'")
        self.add(f"({' OR '.join(conditions) or 'FALSE'})", *values)

    def __str__(self) -> str:
        return f"WHERE {' AND '.join(self._conditions)}" if self._conditions else ""


def run_row(folder: Path, values: Sequence[Any]) -> RunRow:
    """A row of `_COLUMNS` as an object; paths are relative to `folder`."""
    known = dict(zip(_FIELDS, values, strict=True))
    known["path"] = folder / known["path"]
    known["imported"] = bool(known["imported"])
    known["seeds"] = tuple(json.loads(known["seeds"]))
    known["per_seed"] = tuple(json.loads(known["per_seed"] or "[]"))
    known["metrics"] = {each["name"]: each["mean"] for each in json.loads(known["metrics"])}
    return RunRow(**known)


def select_runs(connection: sqlite3.Connection, folder: Path, where: Where, limit: int | None) -> tuple[RunRow, ...]:
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM {_RUNS} {where} ORDER BY {NEWEST_FIRST} LIMIT ?",
        (*where.values, -1 if limit is None else limit),
    )
    return tuple(run_row(folder, row) for row in rows)


def select_table(connection: sqlite3.Connection, run_id: int) -> RewardTable:
    known = connection.execute("SELECT seeds, score IS NULL OR best IS NOT NULL FROM runs WHERE id = ?", (run_id,))
    seeds, is_bounded = known.fetchone()
    tasks = connection.execute("SELECT task FROM tasks WHERE run_id = ? ORDER BY position", (run_id,))
    verdicts = connection.execute("SELECT task, seed, reward FROM trials WHERE run_id = ?", (run_id,))
    return RewardTable.of(verdicts, [task for (task,) in tasks], json.loads(seeds), is_bounded=bool(is_bounded))


def select_tasks(connection: sqlite3.Connection, run_id: int) -> dict[str, str | None]:
    return dict(connection.execute("SELECT task, hash FROM tasks WHERE run_id = ? ORDER BY position", (run_id,)))


def select_trials(connection: sqlite3.Connection, where: Where) -> tuple[TrialRow, ...]:
    rows = connection.execute(f"SELECT {_TRIAL_COLUMNS} FROM trials {where} ORDER BY task, seed", where.values)
    return tuple(TrialRow(*row) for row in rows)


def select_trials_of(connection: sqlite3.Connection, folder: Path, task: str) -> dict[Path, tuple[TrialRow, ...]]:
    rows = connection.execute(
        f"""SELECT runs.path, {_TRIAL_COLUMNS} FROM tasks JOIN runs ON runs.id = tasks.run_id
            JOIN trials ON trials.run_id = tasks.run_id AND trials.task = tasks.task
            WHERE tasks.task = ? ORDER BY runs.path, trials.seed""",
        (task,),
    )
    grouped = groupby(rows, key=itemgetter(0))
    return {folder / path: tuple(TrialRow(*row) for _, *row in found) for path, found in grouped}


def select_errors(connection: sqlite3.Connection, run_id: int) -> tuple[ErrorGroup, ...]:
    (groups,) = connection.execute("SELECT error_groups FROM runs WHERE id = ?", (run_id,)).fetchone()
    return tuple(ErrorGroup.model_validate(group) for group in json.loads(groups))


def select_names(connection: sqlite3.Connection, hashes: Sequence[str]) -> tuple[str, ...]:
    marks = ", ".join("?" * len(hashes))
    found = connection.execute(f"SELECT DISTINCT task FROM tasks WHERE hash IN ({marks}) ORDER BY task", hashes)
    return tuple(name for (name,) in found)


def select_task_names(connection: sqlite3.Connection) -> tuple[str, ...]:
    return tuple(name for (name,) in connection.execute("SELECT DISTINCT task FROM tasks ORDER BY task"))


def select_expected_sec(connection: sqlite3.Connection) -> dict[str, float]:
    return dict(
        connection.execute(
            """SELECT trials.task, avg(trials.wall_sec) FROM trials JOIN runs ON runs.id = trials.run_id
            WHERE runs.model_id IS NOT NULL AND trials.error IS NULL AND trials.wall_sec > 0
            AND NOT trials.human_touched GROUP BY trials.task"""
        )
    )


def select_task(connection: sqlite3.Connection, folder: Path, task: str, where: Where) -> tuple[TaskPoint, ...]:
    where.add("tasks.task = ?", task)
    found = connection.execute(
        f"""SELECT runs.path, runs.name, models.name, runs.fingerprint, runs.begun_at, tasks.hash, tasks.mean_reward,
            json_array_length(runs.seeds), tasks.scored, tasks.solved, tasks.mean_steps, tasks.mean_wall_sec,
            (SELECT json_group_array(json_array(seed, reward)) FROM trials
             WHERE trials.run_id = runs.id AND trials.task = tasks.task)
            FROM tasks JOIN {_RUNS.replace("runs ", "runs ON runs.id = tasks.run_id ", 1)} {where}
            ORDER BY {NEWEST_FIRST}""",
        where.values,
    )
    return tuple(_point(folder, row) for row in found)


def _point(folder: Path, row: Sequence[Any]) -> TaskPoint:
    path, *known, rewards = row
    values: list[Any] = [folder / path, *known, dict(json.loads(rewards))]
    return TaskPoint(*values)


def select_models(connection: sqlite3.Connection, folder: Path, where: Where) -> tuple[ModelRow, ...]:
    """Best and last run of each model in each series; without runs that have no score."""
    where.add("runs.score IS NOT NULL")
    series = "PARTITION BY runs.model_id, runs.fingerprint"
    found = connection.execute(
        f"""SELECT * FROM (SELECT {_COLUMNS}, count(*) OVER ({series}),
            row_number() OVER ({series} ORDER BY runs.score DESC, {NEWEST_FIRST}),
            row_number() OVER ({series} ORDER BY {NEWEST_FIRST}) FROM {_RUNS} {where})""",
        where.values,
    )
    best: dict[tuple[str | None, str], tuple[int, RunRow]] = {}
    last: dict[tuple[str | None, str], RunRow] = {}
    for *values, count, by_score, by_time in found:
        if by_score > 1 and by_time > 1:
            continue
        row = run_row(folder, values)
        key = (row.model, row.fingerprint)
        if by_score == 1:
            best[key] = (count, row)
        if by_time == 1:
            last[key] = row
    rows = [ModelRow(*key, count, row, last[key]) for key, (count, row) in best.items()]
    return tuple(sorted(rows, key=lambda row: (row.fingerprint, -(row.best.score or 0.0), row.model or "")))


def select_proxies(connection: sqlite3.Connection, folder: Path, where: Where) -> tuple[ProxyRow, ...]:
    names = [field.name for field in fields(ProxyRow)]
    columns = ", ".join("models.name" if name == "model" else f"proxies.{name}" for name in names)
    tables = "proxies LEFT JOIN models ON models.id = proxies.model_id"
    newest_first = NEWEST_FIRST.replace("runs.", "proxies.")
    rows = connection.execute(f"SELECT {columns} FROM {tables} {where} ORDER BY {newest_first}", where.values)
    return tuple(ProxyRow(folder / path, *rest) for path, *rest in rows)


def select_days(connection: sqlite3.Connection, where: Where) -> tuple[DayRow, ...]:
    where.add("runs.begun_at IS NOT NULL")
    found = connection.execute(
        f"""SELECT substr(runs.begun_at, 1, 10) AS day, count(*), sum(runs.planned), sum(runs.scored), sum(runs.errors),
            sum(runs.prompt_tokens), sum(runs.completion_tokens) FROM {_RUNS} {where} GROUP BY day ORDER BY day DESC""",
        where.values,
    )
    return tuple(DayRow(*row) for row in found)


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
        return self._asked(lambda: select_runs(self._connection, self._places.folder, where, limit))

    def run(self, run: Path | str) -> RunRow:
        """The run of this directory, or of this name where there is one of it. Raises UsageError."""
        found = self._found(run)
        where = Where()
        where.add_equal("runs.id", found)
        return self._asked(lambda: select_runs(self._connection, self._places.folder, where, 1))[0]

    def table(self, run: Path | str) -> RewardTable:
        """The rewards of a run that its summary counts, planned tasks x planned seeds. Raises UsageError."""
        found = self._found(run)
        return self._asked(lambda: select_table(self._connection, found))

    def tasks(self, run: Path | str) -> dict[str, str | None]:
        """The planned tasks of a run in their order, with the hash of their content where it is known."""
        found = self._found(run)
        return self._asked(lambda: select_tasks(self._connection, found))

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
        return self._asked(lambda: select_trials(self._connection, where))

    def trials_of(self, task: str) -> dict[Path, tuple[TrialRow, ...]]:
        """The final results of one task over all runs that planned it, by the directory of the run."""
        return self._asked(lambda: select_trials_of(self._connection, self._places.folder, task))

    def errors(self, run: Path | str) -> tuple[ErrorGroup, ...]:
        """The trials of a run without a verdict, those together that failed in the same way. Raises UsageError."""
        found = self._found(run)
        return self._asked(lambda: select_errors(self._connection, found))

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
        return self._asked(lambda: select_task(self._connection, self._places.folder, task, where))

    def names_of(self, hashes: Iterable[str]) -> tuple[str, ...]:
        """The names under which tasks of such content were run."""
        known = tuple(dict.fromkeys(hashes))
        return self._asked(lambda: select_names(self._connection, known))

    def task_names(self) -> tuple[str, ...]:
        """The tasks of all runs."""
        return self._asked(lambda: select_task_names(self._connection))

    def expected_sec(self) -> dict[str, float]:
        """The mean seconds of the trials of each task, over all models; only of trials that came to their end."""
        return self._asked(lambda: select_expected_sec(self._connection))

    def models(self, *, dataset: str | None = None, under: Iterable[Path] | None = None) -> tuple[ModelRow, ...]:
        """The best and the last run of each model, series by series."""
        where = self._where(dataset=dataset, under=under)
        return self._asked(lambda: select_models(self._connection, self._places.folder, where))

    def proxies(self, *, model: str | None = None, under: Iterable[Path] | None = None) -> tuple[ProxyRow, ...]:
        """The replays and extractions, newest first."""
        where = Where()
        where.add_equal("models.name", model)
        if under is not None:
            where.add_folders([each.resolve() for each in under], self._places.folder, "proxies")
        return self._asked(lambda: select_proxies(self._connection, self._places.folder, where))

    def days(self, *, model: str | None = None, under: Iterable[Path] | None = None) -> tuple[DayRow, ...]:
        """The days on which runs began, newest first."""
        where = self._where(model=model, under=under)
        return self._asked(lambda: select_days(self._connection, where))

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
