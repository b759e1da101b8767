"""The files of a trial: its steps as they come, what is made of them, and what a full disk or a kill leaves."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from full_disk import files_end_at
from hypothesis import given
from hypothesis import strategies as st

from harness.trajectory import Message, Outcome, Reply, Step, Trajectory
from tbench.results import TrialResult
from tbench.storage.read_run import RunUnreadable, read_steps
from tbench.storage.run_store import StepLog, write_trial

TIME = datetime(2026, 1, 2, tzinfo=UTC)
RESULT = TrialResult(run="r", trial="t", task="t", seed=0, agent="nop", reward=1.0, started_at=TIME, finished_at=TIME)


def step(index: int, text: str = "hi") -> Step:
    return Step(index=index, reply=Reply(content=text), actions=(text,), observation=f"$ {text}")


def trajectory(*steps: Step, **more: Any) -> Trajectory:
    messages = tuple(Message(role="assistant", content=each.reply.content) for each in steps)
    return Trajectory(protocol="p", messages=messages, steps=steps, outcome=Outcome.SUBMITTED, **more)


def logged(directory: Path, *steps: Step) -> StepLog:
    log = StepLog(directory)
    for each in steps:
        log.append(each)
    log.close()
    return log


def written(directory: Path, recorded: Trajectory) -> str:
    write_trial(directory, RESULT, recorded, {})
    text = (directory / "trajectory.json").read_text(encoding="utf-8")
    assert Trajectory.model_validate_json(text) == recorded
    return text


# -- steps.jsonl ---------------------------------------------------------------------------------


def test_each_step_is_on_disk_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    log, directory = StepLog(tmp_path / "deep" / "trial"), tmp_path / "deep" / "trial"
    assert read_steps(directory) == []
    steps = [step(1), step(2, "line\nline \u2028 \N{PILE OF POO}"), step(3)]
    for number, each in enumerate(steps, start=1):
        log.append(each)
        assert read_steps(directory) == steps[:number]
    log.close()


def test_a_trial_without_steps_has_no_file(tmp_path: Path) -> None:
    assert logged(tmp_path).problem is None
    assert list(tmp_path.iterdir()) == []


def test_what_comes_after_the_end_is_ignored(tmp_path: Path) -> None:
    logged(tmp_path, step(1)).append(step(2))
    assert read_steps(tmp_path) == [step(1)]


def test_a_full_disk_ends_the_log_and_not_the_trial(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    log.append(step(1))
    with files_end_at(500):
        log.append(step(2, "x" * 1000))
    log.append(step(3))
    assert log.problem == "No space left on device"
    assert read_steps(tmp_path) == [step(1)]


def test_a_torn_last_step_is_left_out_and_any_other_line_is_a_problem_with_its_place(tmp_path: Path) -> None:
    logged(tmp_path, step(1), step(2))
    file = tmp_path / "steps.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert read_steps(tmp_path) == [step(1)]
    file.write_bytes(b"{}\n" + file.read_bytes())
    with pytest.raises(RunUnreadable, match=r"steps\.jsonl:1: index: Field required; remove or repair this line"):
        read_steps(tmp_path)


# -- the end of a trial --------------------------------------------------------------------------


def test_the_trajectory_is_made_of_the_lines_on_disk(tmp_path: Path) -> None:
    steps = [step(1), step(2, "two")]
    logged(tmp_path, *steps)
    text = written(tmp_path, trajectory(*steps, warnings={"steps": 1}))
    for line in (tmp_path / "steps.jsonl").read_text().splitlines():
        assert f"\n  {line}" in text


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_whatever_was_said_the_trajectory_is_the_same_with_and_without_the_lines(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    steps = [step(index, f'{text}\n "steps": [],') for index, text in enumerate(texts, start=1)]
    directory = tmp_path_factory.mktemp("trial")
    logged(directory, *steps)
    assert written(directory, trajectory(*steps)).count('"index":') == len(steps)


@pytest.mark.parametrize("left", [b"", b"{}\n", b'{"index": 1, "rep'])
def test_where_the_lines_are_not_all_there_the_trajectory_is_whole_all_the_same(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "steps.jsonl").write_bytes(left)
    written(tmp_path, trajectory(step(1), step(2)))


def test_a_trials_files_are_written_byte_by_byte(tmp_path: Path) -> None:
    files = {"verifier/stdout.txt": b"\xff\0\r\n", "verifier/reward.txt": b"0.5", "agent/deep/er/x": b""}
    write_trial(tmp_path / "d", RESULT, None, files)
    assert {name: (tmp_path / "d" / name).read_bytes() for name in files} == files
    assert TrialResult.model_validate_json((tmp_path / "d" / "result.json").read_text()) == RESULT
    assert not (tmp_path / "d" / "trajectory.json").exists()


def test_nothing_half_written_is_left_beside_the_files(tmp_path: Path) -> None:
    write_trial(tmp_path / "d", RESULT, None, {"a": b"1"})
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["a", "result.json"]


def test_a_path_too_long_for_this_file_system_costs_the_agent_s_file_and_not_the_verdict(tmp_path: Path) -> None:
    deep = "agent/" + "/".join(["d" * 200] * 40)
    write_trial(tmp_path / "t", RESULT, None, {deep: b"x", "verifier/reward.txt": b"1"})
    assert (tmp_path / "t" / "result.json").exists()
    assert (tmp_path / "t" / "verifier" / "reward.txt").read_bytes() == b"1"
    with pytest.raises(OSError):
        write_trial(tmp_path / "t", RESULT, None, {deep.replace("agent", "verifier"): b"x"})
