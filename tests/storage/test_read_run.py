"""Reading stored runs and imported results, and what is said when that is not possible."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from run_plans import a_document, a_plan

from harness.trajectory import Outcome
from tbench.config.document import PlannedTask
from tbench.results import TrialResult
from tbench.runs.resume import EarlierRun
from tbench.scores.summarise import summarise
from tbench.storage.read_run import RunUnreadable, read_checkpoints, read_run, read_run_document, read_steps
from tbench.storage.run_files import CHECKPOINTS_NAME, trial_directory
from tbench.storage.run_store import RunStore

KILLED = Path(__file__).parents[1] / "data" / "killed-run" / "run"
CONFIG = a_document(a_plan("nightly", seeds=(0, 1))).model_dump(mode="json") | {"tasks": [{"name": "t", "hash": "x"}]}
TIME = datetime(2026, 1, 1, tzinfo=UTC)


def line(seed: int = 0, **more: Any) -> str:
    known = {"run": "nightly", "trial": f"t-{seed}", "agent": "a", "started_at": TIME, "finished_at": TIME}
    return TrialResult(task="t", seed=seed, reward=1.0, **(known | more)).model_dump_json()


def store(path: Path, results: str | None, config: Any = CONFIG) -> Path:
    if config is not None:
        (path / "run.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if results is not None:
        (path / "results.jsonl").write_text(results)
    return path


def complaint(path: Path) -> str:
    with pytest.raises(RunUnreadable) as caught:
        read_run(path)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_is_its_configuration_and_its_results(tmp_path: Path) -> None:
    run = read_run(store(tmp_path, f"{line(0)}\n{line(1)}\n"))
    assert (run.name, run.planned_tasks, run.planned_seeds) == ("nightly", ["t"], [0, 1])
    assert [result.seed for result in run.results] == [0, 1]
    assert run.document is not None and run.document.tasks[0].hash == "x"
    assert (run.notes, run.imported) == ((), False)


def test_a_run_that_was_killed_is_read_with_its_steps() -> None:
    run = read_run(KILLED)
    assert (len(run.results), run.notes) == (3, ())
    for result in run.results:
        steps = read_steps(trial_directory(KILLED, result.task, result.seed, result.attempt))
        assert [step.index for step in steps] == list(range(1, result.steps + 1))


def test_a_run_that_has_just_started_has_no_results(tmp_path: Path) -> None:
    assert read_run(store(tmp_path, None)).results == []


@pytest.mark.parametrize("tail", ['{"task": "t", "se', '{"task": "\u00e9'.encode()[:-1].decode("latin-1"), "\0\0\0"])
def test_a_torn_last_line_is_left_out_and_noted(tmp_path: Path, tail: str) -> None:
    run = read_run(store(tmp_path, f"{line(0)}\n{tail}"))
    assert len(run.results) == 1
    assert "results.jsonl:2: the last line is incomplete" in run.notes[0]


def test_bytes_that_are_not_utf8_at_the_end_are_a_torn_line(tmp_path: Path) -> None:
    store(tmp_path, None)
    (tmp_path / "results.jsonl").write_bytes(line(0).encode() + b'\n{"task": "\xc3')
    assert len(read_run(tmp_path).results) == 1


def test_line_separators_inside_text_do_not_split_a_line(tmp_path: Path) -> None:
    assert len(read_run(store(tmp_path, line(0, model="a\u2028b") + "\n")).results) == 1


def test_a_malformed_line_before_the_last_is_named(tmp_path: Path) -> None:
    text = complaint(store(tmp_path, f"{line(0)}\n\n{{torn\n{line(1)}\n"))
    assert "results.jsonl:3: not JSON" in text
    assert "repair this line" in text


def test_a_line_with_a_wrong_value_is_named_even_if_it_is_the_last(tmp_path: Path) -> None:
    broken = json.loads(line(0)) | {"reward": "many"}
    assert "results.jsonl:1: reward:" in complaint(store(tmp_path, json.dumps(broken)))


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e308, -1e308, 1.1e9])
def test_a_reward_that_cannot_be_computed_with_is_refused(tmp_path: Path, reward: float) -> None:
    broken = json.loads(line(0)) | {"reward": reward}
    words = complaint(store(tmp_path, json.dumps(broken)))
    assert "results.jsonl:1: reward: " in words and "from -1,000,000,000 to 1,000,000,000" in words


def test_results_of_another_version_are_refused_in_one_line(tmp_path: Path) -> None:
    other = json.loads(line(0)) | {"schema_version": 99, "colour": "blue"}
    words = (
        "results.jsonl:1: schema_version 99 is from another version of tbench, this one reads 2; use the version that"
    )
    assert words in complaint(store(tmp_path, json.dumps(other)))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "run.json: not JSON"),
        ("[]", "run.json: not a JSON object"),
        ({"seeds": [0]}, "`tasks` is not a list of objects with a name"),
        ({"tasks": [{"hash": "x"}], "seeds": [0]}, "`tasks` is not a list of objects with a name"),
        ({"tasks": [{"name": "t"}], "seeds": ["0"]}, "`seeds` is not a list of whole numbers"),
        ({"tasks": [{"name": "t"}], "seeds": [0, 0]}, "listed twice"),
    ],
)
def test_a_malformed_configuration_is_explained(tmp_path: Path, config: Any, says: str) -> None:
    assert says in complaint(store(tmp_path, line(0), config))


def test_what_is_not_a_run_is_called_so(tmp_path: Path) -> None:
    assert "has neither run.json nor results.jsonl" in complaint(tmp_path)
    assert "no such run directory" in complaint(tmp_path / "absent")


def test_lines_with_task_seed_and_reward_can_be_summarised(tmp_path: Path) -> None:
    rows = [("a", 0, 1), ("a", 1, 0.5), ("b", 0, 0), ("b", 1, None)]
    text = "\n".join(json.dumps({"task": task, "seed": seed, "reward": reward}) for task, seed, reward in rows)
    run = read_run(store(tmp_path, text, config=None))
    summary = summarise(run.results, run.planned_tasks, run.planned_seeds)
    assert run.imported
    assert summary.score_lines[0].startswith("score 37.5 ± 17.7 %")
    assert summary.counts.errors == 1


def test_a_single_file_can_be_imported(tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text('{"task": "a", "seed": 3, "reward": 1, "model": "m"}\n')
    run = read_run(file)
    assert (run.name, run.planned_seeds, run.model) == ("export", [3], "m")


def test_foreign_fields_are_left_out_and_noted(tmp_path: Path) -> None:
    foreign = {
        "task": "a",
        "seed": 0,
        "reward": 1,
        "outcome": "llm_stop",
        "error": "boom",
        "tests_ran": True,
        "started_at": "2026-01-01T00:00:00Z",
        "finished_at": "2026-01-01T00:01:30Z",
    }
    both = [foreign, foreign | {"seed": 1, "outcome": "submitted", "error": None}]
    run = read_run(store(tmp_path, "\n".join(map(json.dumps, both)), config=None))
    assert [result.outcome for result in run.results] == [None, Outcome.SUBMITTED]
    assert run.results[0].timings.wall_sec == 90
    assert "key 'tests_ran' ignored in 2 imported lines" in run.notes
    assert "foreign value of 'outcome' ignored in 1 imported lines" in run.notes


def test_an_import_without_a_seed_or_with_a_repeat_is_refused(tmp_path: Path) -> None:
    assert "results.jsonl:1: lacks seed" in complaint(store(tmp_path, '{"task": "a", "reward": 1}\n', config=None))
    twice = '{"task": "a", "seed": 0, "reward": 1}\n' * 2
    assert "results.jsonl:2: task 'a' seed 0 is already in" in complaint(store(tmp_path, twice, config=None))
    assert "has no results" in complaint(store(tmp_path, "", config=None))


LOST = [b"", b"\0" * 4096, b'{"schema_version": 3, "run": "ni', None]


@pytest.mark.parametrize("left", LOST, ids=["emptied", "NULs", "half", "gone"])
def test_a_run_json_that_a_power_cut_took_is_read_as_it_was_when_the_run_began(
    tmp_path: Path, left: bytes | None
) -> None:
    whole = a_document(a_plan("nightly", seeds=(0, 1))).model_copy(update={"tasks": (PlannedTask(name="t"),)})
    RunStore.create(tmp_path / "nightly", whole).close()
    run = store(tmp_path / "nightly", f"{line(0)}\n", config=None)
    if left is None:
        (run / "run.json").unlink()
    else:
        (run / "run.json").write_bytes(left)
    found = read_run(run)
    assert found.document == whole
    assert (found.planned_tasks, found.planned_seeds, len(found.results)) == (["t"], [0, 1], 1)
    [note] = found.notes
    assert note.startswith(f"{run / 'run.json'}: ") and "begun.json" in note
    assert read_run_document(run / "run.json") == EarlierRun.read(run).document == whole


def test_without_a_copy_a_lost_run_json_is_named_and_one_of_another_version_is_refused(tmp_path: Path) -> None:
    for left in LOST[:3]:
        assert f"{tmp_path / 'run.json'}: " in complaint(store(tmp_path, line(), (left or b"").decode()))
    other = complaint(store(tmp_path, line(), {"schema_version": 1, "of another shape": True}))
    assert other.endswith("use the version that wrote it")


def test_a_trial_whose_line_was_lost_has_the_result_of_its_own_file(tmp_path: Path) -> None:
    run = store(tmp_path, f"{line(0, final=False)}\n")
    for seed, attempt in ((0, 1), (0, 2), (1, 1)):
        place = trial_directory(run, "t", seed, attempt)
        place.mkdir(parents=True)
        (place / "result.json").write_text(line(seed, attempt=attempt))
    assert [(each.seed, each.attempt, each.final) for each in read_run(run).results] == [
        (0, 1, False),
        (0, 2, True),
        (1, 1, True),
    ]
    (trial_directory(run, "t", 1) / "result.json").write_text("")
    torn, found = read_run(run).notes
    assert str(trial_directory(run, "t", 1) / "result.json") in torn and found.startswith("1 result ")


def test_a_checkpoint_of_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINTS_NAME).write_text('{"of another shape": 1}\n')
    with pytest.raises(ValueError, match=rf"another version: {tmp_path}/{CHECKPOINTS_NAME}:1: "):
        read_checkpoints(tmp_path)
