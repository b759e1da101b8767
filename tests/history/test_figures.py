"""The figures in the index equal those of `tbench summary --json`."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from run_trees import a_result, write_run

from harness.trajectory import Outcome
from tbench.api.stored_runs import summarise
from tbench.history.database import INDEX_NAME
from tbench.history.index import RunHistory
from tbench.results import Blame, ErrorInfo, Integrity, Stage, TrialResult
from tbench.scores.summarise import reward_table
from tbench.storage.read_run import read_run

TASKS, SEEDS = ("a", "b", "c"), (0, 1, 5)
ERROR = ErrorInfo(stage=Stage.VERIFIER, type="verifier_timeout", blame=Blame.TASK, retryable=False, message="late")
REWARDS = st.none() | st.sampled_from([0.0, 1.0, 0.5]) | st.floats(-2, 2)


@st.composite
def results(draw: st.DrawFn) -> list[TrialResult]:
    """Results in any order: several attempts and final ones, also of tasks and seeds outside the plan."""
    found = []
    for _ in range(draw(st.integers(0, 14))):
        reward = draw(REWARDS)
        found.append(
            a_result(
                draw(st.sampled_from([*TASKS, "not-planned"])),
                draw(st.sampled_from([*SEEDS, 9])),
                reward,
                attempt=draw(st.integers(1, 3)),
                final=draw(st.booleans()),
                error=draw(st.sampled_from([None, ERROR])) if reward is None else None,
                outcome=draw(st.sampled_from([None, *Outcome])),
                metrics=draw(st.dictionaries(st.sampled_from(["speed", "reward"]), st.floats(-1, 1), max_size=2)),
                integrity=Integrity(tamper=draw(st.sampled_from([(), ("hosts: changed",), ("tests-touched: x",)]))),
                human_touched=draw(st.booleans()),
                steps=draw(st.integers(0, 9)),
            )
        )
    return found


def said_by_index(index: sqlite3.Connection) -> dict[str, Any]:
    """The row of the only run, with its lists and objects."""
    index.row_factory = sqlite3.Row
    row = dict(index.execute("SELECT * FROM runs").fetchone())
    return {column: json.loads(value) if str(value)[:1] in ("[", "{") else value for column, value in row.items()}


def said_by_summary(summary: dict[str, Any]) -> dict[str, Any]:
    known = {**summary["counts"], **summary["usage"], **summary["time"], "seeds": summary["seeds"]}
    known |= {name: summary[name] for name in ("metrics", "outcomes", "flags", "overrides", "broken_rules")}
    known |= {"error_groups": summary["errors"], "tasks": len(summary["tasks"])}
    score = summary["score"] or {}
    named = {"score": "mean", "score_std": "std", "score_se": "se_over_tasks"}
    same = ("per_seed", "scored_per_seed", "completed", "scored_only", "scored_only_std", "worst", "best")
    more = ("expected_std", "solved_rate", "pass_at_k", "pass_hat_k")
    return known | {column: score.get(name) for column, name in (named | {each: each for each in same + more}).items()}


def cells_in_index(index: sqlite3.Connection) -> set[tuple[Any, ...]]:
    columns = "task, seed, status, reward, error, outcome, steps, attempt, human_touched"
    return {tuple(row) for row in index.execute(f"SELECT {columns} FROM trials")}


def cells_in_summary(summary: dict[str, Any]) -> set[tuple[Any, ...]]:
    columns = ("seed", "status", "reward", "error", "outcome", "steps", "attempt", "human_touched")
    cells = [(row["task"], *(cell[name] for name in columns)) for row in summary["tasks"] for cell in row["cells"]]
    return {cell for cell in cells if cell[2] != "missing"}


@settings(max_examples=30)
@given(results(), st.integers(1, 3), st.integers(1, 3))
def test_the_figures_of_a_run_are_those_of_its_summary(found: list[TrialResult], tasks: int, seeds: int) -> None:
    planned = dict.fromkeys(TASKS[:tasks], "h")
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", found, planned, SEEDS[:seeds])
        summary = summarise(run).as_json()
        with RunHistory.open(Path(folder) / INDEX_NAME) as history:
            assert history.update(Path(folder)).added == 1
            stored = read_run(run)
            table = history.table(run)
            (row,) = history.runs()
        assert table == reward_table(stored.results, stored.planned_tasks, stored.planned_seeds)
        with closing(sqlite3.connect(Path(folder) / INDEX_NAME)) as index:
            in_index, expected = said_by_index(index), said_by_summary(summary)
            assert {column: in_index[column] for column in expected} == expected
            assert cells_in_index(index) == cells_in_summary(summary)
            columns = "task, mean_reward, scored, solved, mean_steps, mean_wall_sec"
            rows = [tuple(each) for each in index.execute(f"SELECT {columns} FROM tasks ORDER BY position")]
        assert rows == [tuple(each[name] for name in columns.split(", ")) for each in summary["tasks"]]
    assert row.coverage == summary["coverage"]
    assert dict(row.metrics) == {each["name"]: each["mean"] for each in summary["metrics"]}
