"""The index of runs: updated from their directories, and queried in SQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from tbench.errors import UsageError
from tbench.history.database import DamagedIndex, connect, make_tables, replace_damaged, sqlite_errors, transaction
from tbench.history.records import RunReader
from tbench.history.rows import Changes, ProxyRow, RunRow, TaskPoint, TrialRow
from tbench.history.update import IndexPaths, IndexUpdate, Progress
from tbench.scores.cost import Cost
from tbench.scores.gate.nights import Night, run_identity
from tbench.scores.statistics import RewardTable
from tbench.scores.summary import ErrorGroup

_JOINED_COLUMNS = {
    "model": "models.name",
    "dataset": "datasets.name",
    "dataset_version": "datasets.version",
}
_FIELDS = tuple(field.name for field in fields(RunRow))
_COLUMNS = ", ".join(_JOINED_COLUMNS.get(name, f"runs.{name}") for name in _FIELDS)
_TRIAL_COLUMNS = ", ".join(f"trials.{field.name}" for field in fields(TrialRow))
_RUNS = """runs LEFT JOIN models ON models.id = runs.model_id LEFT JOIN datasets ON datasets.id = runs.dataset_id"""
_NEWEST_FIRST = "runs.begun_at IS NULL, runs.begun_at DESC, runs.path DESC"
"""Runs whose start is unknown come last."""


class _WhereClause:
    """Conditions of a query and their values."""

    def __init__(self) -> None:
        self._conditions: list[str] = []
        self.values: list[object] = []

    def add(self, condition: str, *values: object) -> None:
        self._conditions.append(condition)
        self.values += values

    def add_equal(self, column: str, value: object) -> None:
        """Add a condition unless the value is None."""
        if value is not None:
            self.add(f"{column} = ?", value)

    def add_folders(self, folders: Iterable[Path], index_folder: Path, table: str = "runs") -> None:
        """Select paths at or below these folders; paths inside the index's own folder are stored relative to it."""
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


class RunHistory:
    """An open index over run directories, for updates and queries. Several processes may have it open."""

    def __init__(self, file: Path, connection: sqlite3.Connection, notes: tuple[str, ...]) -> None:
        self.file = file
        self.notes = notes
        """Sentences on repairs of the file when it was opened."""
        self._paths = IndexPaths(file.parent)
        self._connection = connection

    @classmethod
    def open(cls, file: Path) -> Self:
        """Open or create an index. If it is damaged or has another schema, it is rebuilt with a note.

        Raises UsageError for a file that is not an index, or is not writable.
        """
        file = file.parent.resolve() / file.name
        return cls(file, *connect(file))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def update(self, *roots: Path, progress: Progress | None = None, reader: RunReader | None = None) -> Changes:
        """Read new and changed run directories at or below `roots`, and remove from the index those that are gone.

        Runs are removed only if their root exists and their disk is mounted. Each run is one transaction: if the
        process is killed, the index stays intact, and the next update completes it. Raises UsageError.
        """
        try:
            return self._update_once(roots, progress, reader)
        except DamagedIndex:
            self.close()
            replace_damaged(self.file)
            self._connection, _ = connect(self.file)
            changes = self._update_once(roots, progress, reader)
            note = f"{self.file}: was damaged, and was rebuilt from the run directories"
            return replace(changes, notes=(note, *changes.notes))

    def _update_once(self, roots: Iterable[Path], progress: Progress | None, reader: RunReader | None) -> Changes:
        with sqlite_errors(self.file):
            update = IndexUpdate(self._connection, self._paths, progress, reader or RunReader())
            return update([root.resolve() for root in roots])

    def clear(self) -> None:
        """Empty the index; the next update reads every directory again. Raises UsageError."""
        with self._raises_damage(), transaction(self._connection):
            make_tables(self._connection)

    # Each query serves one page and reads only what the page shows. All raise UsageError if the file is damaged.

    def runs(
        self,
        *,
        model: str | None = None,
        dataset: str | None = None,
        under: Iterable[Path] | None = None,
        limit: int | None = None,
        unscored: bool = False,
    ) -> tuple[RunRow, ...]:
        """Return the runs, newest first; those whose start is unknown come last.

        Runs for debugging and forks, which have no score, are left out unless `unscored`.
        `dataset` is a name or NAME@VERSION, `under` folders that contain the runs.
        """
        where = _WhereClause()
        where.add_equal("runs.purpose", None if unscored else "score")
        where.add_equal("models.name", model)
        if dataset is not None:
            title = "datasets.name || '@' || datasets.version"
            where.add(f"(datasets.name = ? OR {title} = ?)", dataset, dataset)
        if under is not None:
            where.add_folders([each.resolve() for each in under], self._paths.folder)
        return self._runs(where, limit)

    def run(self, run: Path | str) -> RunRow:
        """Return the run with this directory or unique name. Raises UsageError."""
        where = _WhereClause()
        where.add_equal("runs.id", self._run_id(run))
        return self._runs(where, 1)[0]

    def _runs(self, where: _WhereClause, limit: int | None) -> tuple[RunRow, ...]:
        ordered = f"SELECT {_COLUMNS} FROM {_RUNS} {where} ORDER BY {_NEWEST_FIRST} LIMIT ?"
        return tuple(map(self._run_row, self._rows(ordered, *where.values, -1 if limit is None else limit)))

    def _run_row(self, values: Sequence[Any]) -> RunRow:
        """Convert a row of `_COLUMNS`."""
        known = dict(zip(_FIELDS, values, strict=True))
        known["path"] = self._paths.path(known["path"])
        known["imported"] = bool(known["imported"])
        known["seeds"] = tuple(json.loads(known["seeds"]))
        known["per_seed"] = tuple(json.loads(known["per_seed"] or "[]"))
        known["metrics"] = {each["name"]: each["mean"] for each in json.loads(known["metrics"])}
        known["cost"] = None if known["cost"] is None else Cost.model_validate_json(known["cost"])
        return RunRow(**known)

    def table(self, run: Path | str) -> RewardTable:
        """Return the rewards of a run that its summary counts. Raises UsageError."""
        found = self._run_id(run)
        known = "SELECT seeds, score IS NULL OR best IS NOT NULL FROM runs WHERE id = ?"
        ((seeds, is_bounded),) = self._rows(known, found)
        verdicts = self._rows("SELECT task, seed, reward FROM trials WHERE run_id = ?", found)
        return RewardTable.from_verdicts(
            verdicts, list(self._tasks(found)), json.loads(seeds), is_bounded=bool(is_bounded)
        )

    def tasks(self, run: Path | str) -> dict[str, str | None]:
        """Return the content hash of each planned task of a run, in order; None if unknown."""
        return self._tasks(self._run_id(run))

    def _tasks(self, run_id: int) -> dict[str, str | None]:
        return dict(self._rows("SELECT task, hash FROM tasks WHERE run_id = ? ORDER BY position", run_id))

    def hashes(self, run: Path | str) -> dict[str, str]:
        """Return the known content hashes of a run's tasks, by task. Raises UsageError."""
        return {task: digest for task, digest in self.tasks(run).items() if digest is not None}

    def night(self, row: RunRow, name: str, begun: str) -> Night:
        """Return a run as a night for the gate, with the given name and time. Raises UsageError."""
        rewards, hashes = self.table(row.path), self.hashes(row.path)
        return Night(name, begun, rewards, hashes, row.fingerprint, run_identity(row.name, row.model, row.begun_at))

    def trials(
        self, run: Path | str, *, tasks: Sequence[str] | None = None, status: str | None = None
    ) -> tuple[TrialRow, ...]:
        """Return the final results of a run's planned trials, of all or of some tasks. Raises UsageError."""
        where = _WhereClause()
        where.add_equal("run_id", self._run_id(run))
        where.add_equal("status", status)
        if tasks is not None:
            where.add(f"task IN ({', '.join('?' * len(tasks))})", *tasks)
        rows = self._rows(f"SELECT {_TRIAL_COLUMNS} FROM trials {where} ORDER BY task, seed", *where.values)
        return tuple(TrialRow(*row) for row in rows)

    def trials_by_run(self, task: str) -> dict[Path, tuple[TrialRow, ...]]:
        """Return the final results of one task in all runs that planned it, by run directory."""
        rows = self._rows(
            f"""SELECT runs.path, {_TRIAL_COLUMNS} FROM tasks JOIN runs ON runs.id = tasks.run_id
            JOIN trials ON trials.run_id = tasks.run_id AND trials.task = tasks.task
            WHERE tasks.task = ? ORDER BY runs.path, trials.seed""",
            task,
        )
        grouped = groupby(rows, key=itemgetter(0))
        return {self._paths.path(path): tuple(TrialRow(*row) for _, *row in found) for path, found in grouped}

    def errors(self, run: Path | str) -> tuple[ErrorGroup, ...]:
        """Return the trials of a run without a verdict, grouped by error. Raises UsageError."""
        ((groups,),) = self._rows("SELECT error_groups FROM runs WHERE id = ?", self._run_id(run))
        return tuple(ErrorGroup.model_validate(group) for group in json.loads(groups))

    def task(self, task: str) -> tuple[TaskPoint, ...]:
        """Return one task over all runs that planned it, newest first."""
        where = _WhereClause()
        where.add_equal("runs.purpose", "score")
        where.add("tasks.task = ?", task)
        rows = self._rows(
            f"""SELECT runs.path, runs.name, models.name, runs.fingerprint, runs.begun_at, tasks.hash,
            tasks.mean_reward, json_array_length(runs.seeds), tasks.scored, tasks.solved, tasks.mean_steps,
            tasks.mean_wall_sec,
            (SELECT json_group_array(json_array(seed, reward)) FROM trials
             WHERE trials.run_id = runs.id AND trials.task = tasks.task)
            FROM tasks JOIN {_RUNS.replace("runs ", "runs ON runs.id = tasks.run_id ", 1)} {where}
            ORDER BY {_NEWEST_FIRST}""",
            *where.values,
        )
        found = []
        for path, *known, rewards in rows:
            values: list[Any] = [self._paths.path(path), *known, dict(json.loads(rewards))]
            found.append(TaskPoint(*values))
        return tuple(found)

    def names_by_hash(self, hashes: Iterable[str]) -> tuple[str, ...]:
        """Return the names under which tasks with these content hashes were run."""
        known = tuple(dict.fromkeys(hashes))
        marks = ", ".join("?" * len(known))
        found = self._rows(f"SELECT DISTINCT task FROM tasks WHERE hash IN ({marks}) ORDER BY task", *known)
        return tuple(name for (name,) in found)

    def task_names(self) -> tuple[str, ...]:
        """Return the names of the tasks of all runs."""
        return tuple(name for (name,) in self._rows("SELECT DISTINCT task FROM tasks ORDER BY task"))

    def expected_sec(self) -> dict[str, float]:
        """Return the mean duration of trials by task, over all models, without trials that ended with an error."""
        return dict(
            self._rows(
                """SELECT trials.task, avg(trials.wall_sec) FROM trials JOIN runs ON runs.id = trials.run_id
                WHERE runs.purpose = 'score' AND runs.model_id IS NOT NULL
                AND trials.error IS NULL AND trials.wall_sec > 0 AND NOT trials.human_touched GROUP BY trials.task"""
            )
        )

    def proxies(self, *, model: str | None = None, under: Iterable[Path] | None = None) -> tuple[ProxyRow, ...]:
        """Return the replays and extractions, newest first."""
        where = _WhereClause()
        where.add_equal("models.name", model)
        if under is not None:
            where.add_folders([each.resolve() for each in under], self._paths.folder, "proxies")
        names = [field.name for field in fields(ProxyRow)]
        columns = ", ".join("models.name" if name == "model" else f"proxies.{name}" for name in names)
        tables = "proxies LEFT JOIN models ON models.id = proxies.model_id"
        newest_first = _NEWEST_FIRST.replace("runs.", "proxies.")
        rows = self._rows(f"SELECT {columns} FROM {tables} {where} ORDER BY {newest_first}", *where.values)
        return tuple(ProxyRow(self._paths.path(path), *rest) for path, *rest in rows)

    def _run_id(self, run: Path | str) -> int:
        """Return the id of a run. Raises UsageError."""
        path = self._paths.to_stored(run.resolve() if isinstance(run, Path) else Path(run))
        rows = self._rows("SELECT id FROM runs WHERE path = ?", path)
        rows = rows or self._rows("SELECT id FROM runs WHERE name = ?", str(run))
        if not rows:
            raise UsageError(f"{run}: no such run in the history; `tbench history` lists them")
        if len(rows) > 1:
            raise UsageError(f"{run}: {len(rows)} runs have this name; give the directory of one")
        return int(rows[0][0])

    def _rows(self, statement: str, *values: object) -> list[Any]:
        """Return all rows of a query. Raises UsageError if the file is damaged."""
        with self._raises_damage():
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _raises_damage(self) -> Iterator[None]:
        """Raise UsageError if the block finds the file damaged."""
        try:
            with sqlite_errors(self.file):
                yield
        except DamagedIndex as damage:
            raise UsageError(f"{damage}; rebuild it with: tbench history --rebuild") from None
