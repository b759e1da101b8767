"""Run directories: what is written, when, and what is never overwritten."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from full_disk import files_end_at
from run_plans import a_document, a_plan

from tbench.errors import UsageError
from tbench.events import Note, RunEnded, RunStarted, TrialFinished, TrialPhase, TrialStep, TrialVerdict
from tbench.results import TrialResult
from tbench.storage.read_run import read_run_document
from tbench.storage.run_store import RunStore

TIME = datetime(2026, 1, 2, tzinfo=UTC)


def result(**more: Any) -> TrialResult:
    known: dict[str, Any] = {"run": "r", "trial": "t.s0.x", "task": "t", "seed": 0, "agent": "nop", "reward": 0.5}
    return TrialResult(**(known | {"started_at": TIME, "finished_at": TIME} | more))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_new_directory_has_its_configuration_at_once(tmp_path: Path) -> None:
    document = a_document(a_plan("a"))
    RunStore.create(tmp_path / "runs" / "a", document).close()
    assert read_run_document(tmp_path / "runs" / "a" / "run.json") == document


def test_an_empty_directory_can_be_used(tmp_path: Path) -> None:
    RunStore.create(tmp_path, a_document()).close()
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize("name", ["run.json", "anything", ".hidden"])
def test_a_directory_that_holds_anything_is_refused_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        RunStore.create(tmp_path, a_document())
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"{tmp_path / 'file' / 'run'}: cannot be written"):
        RunStore.create(tmp_path / "file" / "run", a_document())


def test_the_journal_has_every_event_and_is_readable_at_any_time(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, a_document())
    events = (
        RunStarted(run="r", trials=1),
        TrialPhase(trial="t.s0.x", attempt=1, task="t", seed=0, phase="agent"),
        TrialStep(trial="t.s0.x", attempt=1, step=1, line="root@box:/app# "),
        Note(text="building"),
        TrialVerdict(result=result()),
        TrialFinished(result=result()),
        RunEnded(interrupted=False),
    )
    for number, event in enumerate(events, start=1):
        store.on_event(event)
        assert lines(tmp_path / "journal.jsonl")[number - 1 :] == [json.loads(event.model_dump_json())]
    assert lines(tmp_path / "results.jsonl") == [json.loads(result().model_dump_json())]
    store.close()


def test_secrets_are_taken_out_of_notes(tmp_path: Path) -> None:
    with contextlib.closing(
        RunStore.create(tmp_path, a_document(), lambda text: text.replace("sesame", "[key]"))
    ) as store:
        store.on_event(Note(text="retrying with sesame"))
    assert lines(tmp_path / "journal.jsonl") == [{"kind": "note", "text": "retrying with [key]"}]


def test_events_after_the_end_are_ignored(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, a_document())
    store.close()
    store.on_event(RunEnded(interrupted=True))
    assert (tmp_path / "journal.jsonl").read_text() == ""


def test_a_result_that_cannot_be_written_waits_until_it_can(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, a_document())
    with files_end_at(100):
        store.on_event(TrialFinished(result=result()))
        assert (store.unwritten, (tmp_path / "results.jsonl").read_text()) == (1, "")
    store.on_event(TrialFinished(result=result(seed=1)))
    assert [line["seed"] for line in lines(tmp_path / "results.jsonl")] == [0, 1]
    store.close()


def test_superseded_results_are_kept_but_not_final(tmp_path: Path) -> None:
    with contextlib.closing(RunStore.create(tmp_path, a_document())) as store:
        for seed, attempt in ((0, 1), (1, 1)):
            store.append_result(result(trial=f"t.s{seed}.x", seed=seed, attempt=attempt))
        store.supersede({"t.s1.x"})
        store.append_result(result(trial="t.s1.x", seed=1, attempt=2))
    assert [(line["seed"], line["attempt"], line["final"]) for line in lines(tmp_path / "results.jsonl")] == [
        (0, 1, True),
        (1, 1, False),
        (1, 2, True),
    ]
