"""The run.json of an imported run: what is read of it, and how it is told from a run of tbench's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tbench.storage.imported_plan import imported_plan
from tbench.storage.read_run import RunUnreadable, read_run, read_run_document

PLAN: dict[str, Any] = {
    "run": "job",
    "imported": {"format": "harbor", "version": "0.25.0", "source": "job", "at": "2026-03-01T12:00:00+00:00"},
    "model": "m",
    "dataset": {"name": "small", "version": "1.2", "source": "harbor", "tasks": 2},
    "seeds": [0, 1],
    "tasks": [{"name": "a", "hash": "f" * 64}, {"name": "b", "checksum": "c"}],
}


def store(path: Path, plan: dict[str, Any]) -> Path:
    (path / "run.json").write_text(json.dumps(plan))
    return path


def test_a_plan_says_what_was_planned_and_where_it_is_from(tmp_path: Path) -> None:
    run = read_run(store(tmp_path, PLAN))
    assert (run.name, run.model, run.planned_tasks, run.planned_seeds) == ("job", "m", ["a", "b"], [0, 1])
    assert (run.imported, run.document, run.results, run.notes) == (True, None, [], ())
    assert run.dataset is not None and run.dataset.title == "small@1.2"
    assert run.task_hashes == {"a": "f" * 64}


def test_what_was_done_otherwise_than_the_tasks_say_is_reported(tmp_path: Path) -> None:
    settings = {"timeout_multiplier": 1.0, "agent_timeout_multiplier": 2.5, "environment.override_cpus": 4}
    more = {"agent.max_timeout_sec": 60, "agent.kwargs.max_turns": 3, "environment.type": "docker"}
    run = read_run(store(tmp_path, {**PLAN, "settings": settings | more}))
    assert run.overrides == (
        "agent_timeout_multiplier 2.5",
        "environment.override_cpus 4",
        "agent.max_timeout_sec 60",
    )


def test_a_plan_of_others_is_no_import() -> None:
    assert imported_plan({"tasks": [], "seeds": []}) is None
    assert imported_plan({**PLAN, "schema_version": 3}) is None


def test_a_plan_that_cannot_be_read_is_reported_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(RunUnreadable, match=r"run.json: imported.format: .*; import it again$"):
        read_run(store(tmp_path, {**PLAN, "imported": {"format": "elsewhere"}}))


def test_an_imported_run_cannot_go_on(tmp_path: Path) -> None:
    with pytest.raises(RunUnreadable, match="was imported from 'job', so it cannot be continued; start a new run"):
        read_run_document(store(tmp_path, PLAN) / "run.json")
