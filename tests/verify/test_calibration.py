"""Calibrations: common facts of the oracle's passes, differences of another pass, and their files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tbench.errors import TrialError, UsageError
from tbench.results import INTACT, ErrorInfo, ImageOrigin
from tbench.tasks.task import Task
from tbench.verify import calibration as calibrations
from tbench.verify import tests_shown as showing
from tbench.verify.calibration import (
    Calibration,
    MeasuredTrial,
    calibration_directory,
    compare_with_oracle,
    image_identity,
    load_calibration,
    mean_oracle_sec,
    save_calibration,
)
from tbench.verify.tests_shown import TEST_SUMS

MakeTask = Any
differences = calibrations.test_differences
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"


def trial(agent: str = "oracle", repetition: int = 0, reward: float | None = 1.0, **more: Any) -> MeasuredTrial:
    return MeasuredTrial.model_validate({"agent": agent, "repetition": repetition, "reward": reward, **more})


def calibration(*trials: MeasuredTrial, task_hash: str = "h", image: str = "i") -> Calibration:
    return Calibration(
        task="t",
        task_hash=task_hash,
        image=image,
        architecture="amd64",
        measured_at=datetime(2026, 1, 1, tzinfo=UTC),
        trials=trials,
    )


def shown(**tests: str) -> dict[str, dict[str, str]]:
    return {"": tests}


def test_tests_that_passed_in_every_oracle_pass_are_missing_or_not_run_in_another_pass() -> None:
    measured = calibration(
        trial(repetition=0, tests=shown(a=PASSED, b=PASSED, c=PASSED, random_1=PASSED, d=SKIPPED)),
        trial(repetition=1, tests=shown(a=PASSED, b=PASSED, c=PASSED, random_2=PASSED, d=PASSED)),
        trial(repetition=2, tests=shown(a=PASSED), reward=0.0),
        trial("nop", tests=shown(z=PASSED), reward=1.0),
    )
    assert compare_with_oracle({"a": PASSED, "b": PASSED, "c": PASSED}, measured) == ([], [])
    assert compare_with_oracle({"b": "xfailed", "c": "deselected", "more": PASSED}, measured) == (["a"], ["b", "c"])
    # The task may tolerate failed tests.
    assert compare_with_oracle({"a": FAILED, "b": "error", "c": SKIPPED}, measured) == ([], ["c"])


def test_without_a_pass_of_the_oracle_no_test_is_expected() -> None:
    assert compare_with_oracle({}, calibration()) == ([], [])
    assert compare_with_oracle({}, calibration(trial(reward=0.0, tests=shown(a=PASSED)))) == ([], [])


def test_tests_are_compared_by_step() -> None:
    measured = calibration(trial(tests={"one": {"a": PASSED}, "two": {"b": PASSED}}))
    assert compare_with_oracle({"a": PASSED}, measured, "one") == ([], [])
    assert compare_with_oracle({"a": PASSED}, measured, "two") == (["b"], [])


@pytest.mark.parametrize(
    ("trials", "fresh"),
    [
        ([trial(rewards={"shared": 1, "isolated": 1})], True),
        (
            [trial(rewards={"shared": 1, "isolated": 1}), trial(repetition=1, rewards={"shared": 1, "isolated": 0})],
            True,
        ),
        # A strong sign made the lower reward count, but the oracle passed in its own container.
        ([trial(reward=0.0, rewards={"shared": 1, "isolated": 0})], False),
        ([trial(unconfirmed="unconfirmed: no verdict in a fresh container")], False),
        ([trial(rewards={"one/shared": 1, "one/isolated": 1, "two/shared": 1, "two/isolated": 0})], False),
        ([trial(reward=0.0)], None),
        ([trial(rewards={"separate": 1, "without": 1})], None),
        ([], None),
    ],
)
def test_whether_the_oracles_work_passes_in_a_fresh_container(trials: list[MeasuredTrial], fresh: bool | None) -> None:
    assert calibration(*trials).passes_fresh is fresh


def test_a_trial_with_an_error_counts_if_the_task_caused_it() -> None:
    for type_, counts in {"verifier_no_reward": True, "image_build_failed": True, "sandbox_lost": False}.items():
        assert trial(reward=None, error=ErrorInfo.of(TrialError(type_, "so"))).counts is counts
    assert trial().counts and not trial(reward=None, rewards={"shared": 1.0}).is_pass


def test_a_calibration_is_found_by_content_image_and_architecture(make_task: MakeTask, tmp_path: Path) -> None:
    task = Task.read(make_task())
    measured = calibration(trial(tests=shown(a=PASSED)), task_hash=task.hash)
    path = save_calibration(measured, tmp_path)
    assert load_calibration(task, "i", "amd64", root=tmp_path) == measured
    for image, architecture in (("other", "amd64"), ("i", "arm64")):
        assert load_calibration(task, image, architecture, root=tmp_path) is None
    (task.path / "instruction.md").write_text("Other words.\n")
    assert load_calibration(Task.read(task.path), "i", "amd64", root=tmp_path) is None
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == [path.name]


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b'{"schema_version": 1}', b"\xff", b"null"])
def test_a_broken_file_is_reported_in_one_line(make_task: MakeTask, tmp_path: Path, content: bytes) -> None:
    task, said = Task.read(make_task()), list[str]()
    path = save_calibration(calibration(task_hash=task.hash), tmp_path)
    path.write_bytes(content)
    assert load_calibration(task, "i", "amd64", said.append, tmp_path) is None
    assert said == [f"{path}: is not a calibration of this version, so the task is measured again"]


def test_a_file_about_another_task_is_ignored(make_task: MakeTask, tmp_path: Path) -> None:
    task = Task.read(make_task())
    path = save_calibration(calibration(task_hash=task.hash), tmp_path)
    save_calibration(calibration(task_hash="other"), tmp_path).replace(path)
    assert load_calibration(task, "i", "amd64", root=tmp_path) is None


def test_an_image_is_identified_by_digest_or_build_hash_or_id() -> None:
    def origin(**more: Any) -> ImageOrigin:
        return ImageOrigin.model_validate({"how": "present", "reference": "r", **more})

    assert image_identity(origin(digest="sha256:d", built_from="b"), "id") == "sha256:d"
    assert image_identity(origin(built_from="b"), "id") == "built:b"
    assert image_identity(origin(), "id") == image_identity(None, "id") == "id"


def test_calibrations_are_stored_in_the_cache() -> None:
    assert calibration_directory({"TBENCH_CACHE": "/cache"}) == Path("/cache/calibration")
    assert calibration_directory({"XDG_CACHE_HOME": "/shared"}) == Path("/shared/tbench/calibration")


def test_differences_of_tests_are_described() -> None:
    names = dict.fromkeys("abcde", PASSED)
    once = calibration(trial(tests=shown(**names)))
    twice = calibration(trial(tests=shown(**names)), trial(repetition=1, tests=shown(**names)))
    assert differences(names, once) == differences({**names, "a": FAILED, "f": PASSED}, twice) == ""
    # A single pass does not show whether names change each time.
    others = dict.fromkeys("vwxyz", PASSED)
    assert differences(others, once) == ""
    words = "of 5 tests that the oracle passes 5 not shown (a, b, c and 2 more)"
    assert differences(others, twice) == words
    assert differences(dict.fromkeys("vwxy", PASSED), once) == words
    found = differences({"a": PASSED, "b": PASSED, "c": SKIPPED}, twice)
    assert found == "of 5 tests that the oracle passes 2 not shown (d, e), 1 not run (c)"
    assert differences({}, calibration()) == ""


def test_signs_in_every_oracle_pass_are_usual() -> None:
    measured = calibration(
        trial(signs=("a", "b", "c (step one)"), cleared=("d",)),
        trial(repetition=1, signs=("a", "c (step one)"), cleared=("d", "b")),
        trial(repetition=2, reward=0.0),
        trial("nop", signs=("b",)),
    )
    assert measured.usual_signs(shared=False) == {"a", "c (step one)"}
    assert measured.usual_signs(shared=True) == {"a", "b", "c (step one)", "d"}
    assert measured.usual_signs("one", shared=True) == {"c"}
    assert calibration(trial(reward=0.0, signs=("a",))).usual_signs(shared=True) == set()


def test_the_mean_duration_covers_oracle_passes_with_any_image(make_task: MakeTask, tmp_path: Path) -> None:
    tasks = [Task.read(make_task(name, instruction=name)) for name in ("one", "two", "three")]
    for image, sec in (("i", 1.0), ("j", 4.0)):
        trials = [trial(solution_sec=sec, tests_sec=2.0), trial(repetition=1, reward=0.0, solution_sec=99.0)]
        save_calibration(calibration(*trials, task_hash=tasks[0].hash, image=image), tmp_path)
    save_calibration(calibration(trial(reward=0.0), task_hash=tasks[1].hash), tmp_path)
    assert mean_oracle_sec(tasks, tmp_path) == {"one": 4.5}


def test_a_file_that_cannot_be_written_or_read_is_reported_in_one_line(make_task: MakeTask, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"cannot be written: .+; set TBENCH_CACHE"):
        save_calibration(calibration(), tmp_path / "file")
    task, said = Task.read(make_task()), list[str]()
    path = save_calibration(calibration(task_hash=task.hash), tmp_path)
    path.unlink()
    path.mkdir()
    assert load_calibration(task, "i", "amd64", said.append, tmp_path) is None
    assert said == [f"{path}: cannot be read, so the task is measured again: Is a directory"]


SHORT = "== short test summary info ==\n"


@pytest.mark.parametrize(
    ("output", "sums", "differs"),
    [
        ("PASSED t.py::a\n== 1 passed in 0.1s ==", "1" * 64, False),
        ("PASSED t.py::a\n== 1 passed in 0.1s ==", "2" * 64, True),
        ("PASSED t.py::a\n== 1 passed in 0.1s ==", "", False),
        # The task may tolerate failed tests.
        ("FAILED t.py::a\n== 1 failed in 0.1s ==", "1" * 64, False),
        (
            "== FAILURES ==\nPASSED t.py::a\n== short test summary info ==\nFAILED t.py::a\n== 1 failed in 0.1s ==",
            "",
            True,
        ),
        ("PASSED t.py::b\n== 1 passed in 0.1s ==", "1" * 64, False),
    ],
)
def test_changed_test_files_and_forged_output_are_described(output: str, sums: str, differs: bool) -> None:
    usual = {"": {"/app/t.py": "1" * 64}}
    tests = {"": {"t::a": PASSED}}
    oracle = calibration(*(trial(repetition=number, tests=tests, test_files=usual) for number in range(2)))
    logs = {"stdout.txt": output.encode(), TEST_SUMS: f"{sums}  /app/t.py\n".encode() if sums else b""}
    assert bool(calibrations.test_file_differences(logs, showing.tests_shown(logs), oracle)) is differs


def test_test_files_that_differ_between_oracle_passes_are_not_compared() -> None:
    passes = (trial(repetition=n, test_files={"": {"/app/t.py": str(n) * 64, "/app/u.py": "a" * 64}}) for n in range(2))
    assert calibration(*passes).test_files() == {"/app/u.py": "a" * 64}
    assert calibration().test_files() == {}


def test_calibrations_are_in_the_cache_unless_another_directory_is_given(
    make_task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path))
    task = Task.read(make_task())
    kept = calibration(trial(solution_sec=1.0, tests_sec=2.0), task_hash=task.hash)
    path = save_calibration(kept)
    assert path.parent == tmp_path / "calibration"
    assert load_calibration(task, kept.image, kept.architecture) == kept
    assert mean_oracle_sec([task]) == {task.name: 3.0}
    path.write_bytes(b" " * (64 << 20) + path.read_bytes())
    said: list[str] = []
    assert load_calibration(task, kept.image, kept.architecture, said.append) is None and len(said) == 1


ROWS: list[tuple[list[dict[str, float]], str]] = [
    ([{"control-some": 0.0}] * 2, "some"),
    ([{"control-some": 1.0, "control-asserted": 0.5}] * 2, "asserted"),
    ([{"control-some": 0.0}, {"control-some": 1.0, "control-asserted": 0.0}], ""),
    ([{"control-some": 0.0}, {}], ""),
    ([{"control-some": 1.0}], ""),
    ([{"control": 0.0}], ""),
    ([], ""),
]


@pytest.mark.parametrize(("rewards", "expected"), ROWS)
def test_the_kind_of_control_tests_is_one_that_every_oracle_pass_failed(
    rewards: list[dict[str, float]], expected: str
) -> None:
    oracle = calibration(*(trial(repetition=number, rewards=each) for number, each in enumerate(rewards)))
    assert oracle.failed_control() == expected


def test_one_kind_of_control_tests_can_be_asked_for() -> None:
    oracle = calibration(trial(rewards={"control-data": 0.0, "control-swapped": 0.0, "one/control-swapped": 1.0}))
    assert [oracle.failed_control(step, "swapped") for step in ("", "one")] == ["swapped", ""]


def test_of_control_tests_those_are_known_that_end_the_same_way_every_time() -> None:
    own, first = {"a": PASSED, "b": PASSED, "c": PASSED, "d": FAILED}, {"a": PASSED, "b": FAILED, "c": PASSED}
    rewards, second = {"control-some": 0.0}, {"a": PASSED, "c": FAILED, "d": FAILED}
    passes = [
        trial(repetition=number, rewards=rewards, tests={"": own, "control-some": each, "control-data": {"a": FAILED}})
        for number, each in enumerate((first, second))
    ]
    assert calibration(*passes).of_control() == {"a": True, "b": False}
    assert calibration(*passes, trial(repetition=2, rewards=rewards, tests={"": own})).of_control() == {}
    steps = trial(rewards={"one/control-data": 0.0}, tests={"one": own, "one/control-data": first})
    assert calibration(steps).of_control("one") == {"a": True, "b": False, "c": True}
    assert calibration(steps).of_control() == calibration().of_control() == {}


def test_control_tests_are_compared_by_step() -> None:
    oracle = calibration(trial(rewards={"one/control-data": 0.0, "two/control-data": 1.0}))
    assert [oracle.failed_control(step) for step in ("one", "two", "")] == ["data", "", ""]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([], False), ([1.0], True), ([0.5], False), ([None], False), ([1.0, 1.0], True), ([1.0, 0.0], False)],
)
def test_hidden_values_are_tried_if_every_oracle_pass_passed_with_them(
    rewards: list[float | None], expected: bool
) -> None:
    for step, key in (("", INTACT), ("one", f"one/{INTACT}")):
        given = ({} if reward is None else {key: reward} for reward in rewards)
        oracle = calibration(*(trial(repetition=number, rewards=each) for number, each in enumerate(given)))
        assert oracle.passes_intact(step) is expected
