"""What is asked of an index, in SQL; each query is meant for a page and reads no more than it shows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tbench.history.rows import DayRow, ModelRow, ProxyRow, RunRow, TaskPoint, TrialRow
from tbench.scores.statistics import RewardTable, TrialReward
from tbench.scores.summary import ErrorGroup

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
    rewards = connection.execute("SELECT task, seed, reward FROM trials WHERE run_id = ?", (run_id,))
    verdicts = (TrialReward(*row) for row in rewards)
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
