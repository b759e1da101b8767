"""Run directories: what is written, when, and what is never overwritten."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness.trajectory import Message, Outcome, Reply, Step, Trajectory
from tbench.errors import UsageError
from tbench.events import Note, RunEnded, RunStarted, TrialFinished, TrialPhase, TrialStep, TrialVerdict
from tbench.files import safe_relative, write_atomically, write_json
from tbench.results import TrialResult
from tbench.storage.lines import LineFile
from tbench.storage.run_store import RunStore

TIME = datetime(2026, 1, 2, tzinfo=UTC)


def result(**more: Any) -> TrialResult:
    known: dict[str, Any] = {"run": "r", "trial": "t.s0.x", "task": "t", "seed": 0, "agent": "nop", "reward": 0.5}
    return TrialResult(**(known | {"started_at": TIME, "finished_at": TIME} | more))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_new_directory_has_its_configuration_at_once(tmp_path: Path) -> None:
    RunStore.create(tmp_path / "runs" / "a", {"run": "a"}).close()
    assert json.loads((tmp_path / "runs" / "a" / "run.json").read_text()) == {"run": "a"}


def test_an_empty_directory_can_be_used(tmp_path: Path) -> None:
    RunStore.create(tmp_path, {}).close()
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize("name", ["run.json", "anything", ".hidden"])
def test_a_directory_that_holds_anything_is_refused_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        RunStore.create(tmp_path, {})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"{tmp_path / 'file' / 'run'}: cannot be written"):
        RunStore.create(tmp_path / "file" / "run", {})


def test_the_journal_has_everything_but_steps_and_notes_and_is_readable_at_any_time(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, {})
    phase = TrialPhase(trial="t.s0.x", task="t", seed=0, phase="agent")
    verdict, finished = TrialVerdict(result=result()), TrialFinished(result=result())
    for event in (
        RunStarted(run="r", trials=1),
        phase,
        TrialStep(trial="t.s0.x", step=1, line="$"),
        Note(text="building"),
        verdict,
        finished,
        RunEnded(interrupted=False),
    ):
        store.on_event(event)
    kinds = [line["kind"] for line in lines(tmp_path / "journal.jsonl")]
    assert kinds == ["run_started", "trial_phase", "trial_verdict", "trial_finished", "run_ended"]
    assert lines(tmp_path / "results.jsonl") == [json.loads(result().model_dump_json())]
    store.close()


def test_events_after_the_end_are_ignored(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, {})
    store.close()
    store.on_event(RunEnded(interrupted=True))
    assert (tmp_path / "journal.jsonl").read_text() == ""


def test_a_trial_has_its_own_directory_and_later_attempts_lie_inside(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    assert store.trial_dir("t", 3) == tmp_path / "trials" / "t" / "seed-3"
    assert store.trial_dir("t", 3, 2) == tmp_path / "trials" / "t" / "seed-3" / "attempt-2"


def test_a_trials_files_are_written_byte_by_byte(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    files = {"verifier/stdout.txt": b"\xff\0\r\n", "verifier/reward.txt": b"0.5", "agent/deep/er/x": b""}
    store.write_trial(tmp_path / "d", result(), None, files)
    assert {name: (tmp_path / "d" / name).read_bytes() for name in files} == files
    assert TrialResult.model_validate_json((tmp_path / "d" / "result.json").read_text()) == result()
    assert not (tmp_path / "d" / "trajectory.json").exists()


def test_a_trajectory_is_kept_even_with_lone_surrogates(tmp_path: Path) -> None:
    reply = Reply(content="caf\u00e9 \N{PILE OF POO}")
    trajectory = Trajectory(
        protocol="p",
        messages=(Message(role="user", content="hi"),),
        steps=(Step(index=1, reply=reply),),
        outcome=Outcome.SUBMITTED,
    )
    RunStore(tmp_path).write_trial(tmp_path / "d", result(), trajectory, {})
    assert Trajectory.model_validate_json((tmp_path / "d" / "trajectory.json").read_text()) == trajectory


def test_nothing_half_written_is_left_beside_the_files(tmp_path: Path) -> None:
    RunStore(tmp_path).write_trial(tmp_path / "d", result(), None, {"a": b"1"})
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["a", "result.json"]


def test_the_longest_file_name_can_be_kept(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("x" * 255), b"1")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"1"


def test_a_write_replaces_the_whole_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"long": "x" * 1000})
    write_json(tmp_path / "a.json", {"short": "\u00e9"})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "short": "\u00e9"\n}\n'


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("verifier/reward.txt", "verifier/reward.txt"),
        ("/etc/passwd", "etc/passwd"),
        ("../../etc/passwd", "etc/passwd"),
        ("a/../../b", "a/b"),
        ("./a//b/.", "a/b"),
        ("..", "unnamed"),
        ("", "unnamed"),
        ("a..b/...", "a..b/..."),
    ],
)
def test_names_out_of_a_container_cannot_climb_out_of_the_directory(name: str, safe: str) -> None:
    assert safe_relative(name) == Path(safe)


def test_a_path_too_long_for_this_file_system_costs_the_agent_s_file_and_not_the_verdict(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", {})
    deep = "agent/" + "/".join(["d" * 200] * 40)
    store.write_trial(tmp_path / "t", result(), None, {deep: b"x", "verifier/reward.txt": b"1"})
    assert (tmp_path / "t" / "result.json").exists()
    assert (tmp_path / "t" / "verifier" / "reward.txt").read_bytes() == b"1"
    with pytest.raises(OSError):
        store.write_trial(tmp_path / "t", result(), None, {deep.replace("agent", "verifier"): b"x"})
    store.close()


@contextlib.contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """As on a full disk, a write is cut short, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_that_a_full_disk_cuts_is_taken_back_and_the_next_one_stands_alone(tmp_path: Path) -> None:
    with contextlib.closing(LineFile(tmp_path / "a.jsonl")) as file:
        file.append('"first"')
        with files_end_at(12), pytest.raises(OSError):
            file.append('"second, and cut"')
        assert (tmp_path / "a.jsonl").read_text() == '"first"\n'
        file.append('"third"')
    assert lines(tmp_path / "a.jsonl") == ["first", "third"]


@pytest.mark.parametrize(
    ("torn", "kept"),
    [
        ("", ""),
        ('{"a": 1}', '{"a": 1}\n'),
        ('{"a": 1}\n{"b"', '{"a": 1}\n'),
        ('{"a": 1}\n{"b": 2}', '{"a": 1}\n{"b": 2}\n'),
        ("\0\0\0", ""),
    ],
)
def test_a_last_line_without_its_end_is_ended_where_it_is_whole_and_removed_where_not(
    tmp_path: Path, torn: str, kept: str
) -> None:
    (tmp_path / "a.jsonl").write_text(torn)
    LineFile(tmp_path / "a.jsonl").close()
    assert (tmp_path / "a.jsonl").read_text() == kept


def test_a_result_that_cannot_be_written_waits_until_it_can(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, {})
    with files_end_at(100):
        store.on_event(TrialFinished(result=result()))
        assert (store.unwritten, (tmp_path / "results.jsonl").read_text()) == (1, "")
    store.on_event(TrialFinished(result=result(seed=1)))
    assert [line["seed"] for line in lines(tmp_path / "results.jsonl")] == [0, 1]
    store.close()


def test_superseded_results_are_kept_but_not_final(tmp_path: Path) -> None:
    with contextlib.closing(RunStore.create(tmp_path, {})) as store:
        for seed, attempt in ((0, 1), (1, 1)):
            store.append_result(result(trial=f"t.s{seed}.x", seed=seed, attempt=attempt))
        store.supersede({"t.s1.x"})
        store.append_result(result(trial="t.s1.x", seed=1, attempt=2))
    assert [(line["seed"], line["attempt"], line["final"]) for line in lines(tmp_path / "results.jsonl")] == [
        (0, 1, True),
        (1, 1, False),
        (1, 2, True),
    ]


def test_attempts_are_known_by_what_they_left(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    assert store.attempts("t", 0) == {}
    second = store.trial_dir("t", 0, 2)
    second.mkdir(parents=True)
    assert store.attempts("t", 0) == {2: second}
    (store.trial_dir("t", 0) / "session.cast").touch()
    assert store.attempts("t", 0) == {1: store.trial_dir("t", 0), 2: second}
