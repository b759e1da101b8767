"""Jobs of Harbor: what a run becomes, and, where Harbor is to be had, that its own code reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from exported_jobs import needs_harbor, read_by_harbor
from fault_server import FaultServer
from stored_conversations import SCRIPTS, StoredTrial, conversation, store_run

from harness.trajectory import Outcome, Reply, Step, Trajectory, Usage
from tbench.cli import app
from tbench.errors import KINDS
from tbench.results import ErrorInfo, TaskStepResult, Timings, WentOn

SAID = Trajectory(protocol="bash-block", steps=(Step(index=1, reply=Reply(content="a")),))
Fields = dict[str, Any]


def export(*arguments: object) -> Result:
    done = CliRunner().invoke(app, ["export", "harbor", *map(str, arguments)])
    assert done.exit_code == 0, done.output + str(done.exception)
    return done


def error(type_: str) -> ErrorInfo:
    kind = KINDS[type_]
    return ErrorInfo(stage=kind.stage, type=type_, blame=kind.blame, retryable=kind.retryable, message="so it was")


def a_run(tmp_path: Path) -> Path:
    """A run with a pass, the ends that Harbor calls exceptions, errors, and a task of several steps."""
    several = [
        TaskStepResult(
            name="one",
            reward=1.0,
            steps=1,
            usage=Usage(prompt_tokens=5, completion_tokens=2),
            timings=Timings(sandbox_sec=1, agent_sec=4, verifier_sec=2),
        ),
        TaskStepResult(name="two", error=error("verifier_timeout")),
        TaskStepResult(name="three", begun=False),
    ]
    usage, timings = Usage(prompt_tokens=7, completion_tokens=3), Timings(sandbox_sec=2, agent_sec=30, verifier_sec=5)
    of_several = {"task_steps": several, "usage": several[0].usage, "timings": Timings(sandbox_sec=3)}
    trials = [
        StoredTrial(SAID, task="a", fields={"usage": usage, "timings": timings, "metrics": {"speed": 0.25}}),
        StoredTrial(SAID, task="b", reward=0.0, fields={"outcome": Outcome.AGENT_TIMEOUT}),
        StoredTrial(SAID, task="c", reward=0.5, fields={"outcome": Outcome.CONTEXT_LIMIT}),
        StoredTrial(SAID, task="d", reward=None, fields={"error": error("endpoint_unavailable")}),
        StoredTrial(None, task="e", reward=None, fields={"error": error("sandbox_lost")}),
        StoredTrial(
            steps={"one": SAID, "two": SAID},
            task="f",
            reward=None,
            fields=of_several,
        ),
        StoredTrial(SAID, task="a-task/with-a-name-that-is-longer-than-thirty-two-characters", seed=1),
        StoredTrial(SAID, task="a", seed=1, fields={"final": False}),
    ]
    return store_run(tmp_path / "run", trials)


def records(job: Path) -> dict[str, Fields]:
    return {read["task_name"]: read for file in job.glob("*/result.json") if (read := json.loads(file.read_text()))}


def test_every_trial_is_a_directory_with_its_record_logs_and_trajectory(tmp_path: Path) -> None:
    export(a_run(tmp_path), "-o", tmp_path / "jobs" / "nightly")
    job = tmp_path / "jobs" / "nightly"
    found = records(job)
    assert len(found) == 7
    passed = found["a"]
    place = job / passed["trial_name"]
    assert sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()) == [
        "agent/trajectory.json",
        "config.json",
        "result.json",
        "verifier/reward.txt",
        "verifier/test-stdout.txt",
    ]
    assert passed["verifier_result"] == {"rewards": {"reward": 1.0, "speed": 0.25}}
    assert passed["agent_result"]["n_input_tokens"] == 7
    assert passed["exception_info"] is None
    assert passed["agent_execution"] == {
        "started_at": "2026-11-23T12:00:02+00:00",
        "finished_at": "2026-11-23T12:00:32+00:00",
    }
    assert json.loads((place / "config.json").read_text())["agent"]["kwargs"]["seed"] == 0


def test_a_trial_that_went_on_after_a_cut_says_so_in_its_metadata(tmp_path: Path) -> None:
    cut = WentOn(at_step=1, how="attached")
    trials = [StoredTrial(SAID, task="a", fields={"went_on": (cut,)}), StoredTrial(SAID, task="b")]
    export(store_run(tmp_path / "run", trials), "-o", tmp_path / "job")
    found = {task: record["agent_result"]["metadata"] for task, record in records(tmp_path / "job").items()}
    assert found["a"]["went_on"] == [cut.model_dump(mode="json")]
    assert "went_on" not in found["b"]


def test_ends_that_are_exceptions_in_harbor_stand_beside_their_rewards(tmp_path: Path) -> None:
    export(a_run(tmp_path), "-o", tmp_path / "job")
    found = records(tmp_path / "job")
    seen = {
        task: (record["exception_info"]["exception_type"], (record["verifier_result"] or {"rewards": None})["rewards"])
        for task, record in found.items()
        if record["exception_info"]
    }
    assert seen == {
        "b": ("AgentTimeoutError", {"reward": 0.0}),
        "c": ("ContextLengthExceededError", {"reward": 0.5}),
        "d": ("ApiConnectionError", None),
        "e": ("sandbox_lost", None),
    }
    assert (tmp_path / "job" / found["e"]["trial_name"] / "exception.txt").read_text().startswith("sandbox_lost: ")
    one, two = found["f"]["step_results"]
    assert (one["step_name"], one["verifier_result"]) == ("one", {"rewards": {"reward": 1.0}})
    assert two["exception_info"]["exception_type"] == "VerifierTimeoutError"
    began = [found["f"]["environment_setup"], one["agent_execution"], one["verifier"], two["agent_execution"]]
    assert [span["started_at"][-8:] for span in began] == ["00+00:00", "03+00:00", "07+00:00", "09+00:00"]


def test_the_job_counts_what_was_exported(tmp_path: Path) -> None:
    export(a_run(tmp_path), "-o", tmp_path / "job")
    stats = json.loads((tmp_path / "job" / "result.json").read_text())["stats"]
    assert (stats["n_completed_trials"], stats["n_errored_trials"], stats["n_retries"]) == (7, 5, 1)
    (figures,) = stats["evals"].values()
    assert figures["metrics"] == [{"speed": 0.25 / 4, "reward": 2.5 / 4}]
    assert sorted(figures["reward_stats"]["reward"]) == ["0.0", "0.5", "1.0"]


def test_what_is_exported_twice_is_the_same(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    for name in ("x", "y"):
        export(run, "-o", tmp_path / name / "job")
    one, two = (
        {
            str(path.relative_to(tmp_path / name)): path.read_text().replace(str(tmp_path / name), "")
            for path in (tmp_path / name).rglob("*")
            if path.is_file()
        }
        for name in ("x", "y")
    )
    assert one == two


def test_bare_results_are_a_job_without_trajectories(tmp_path: Path) -> None:
    (tmp_path / "import.jsonl").write_text('{"task": "../../a\\u0000", "seed": 0, "reward": 1}\n')
    export(tmp_path / "import.jsonl", "-o", tmp_path / "job")
    ((task, record),) = records(tmp_path / "job").items()
    assert task == "../../a\0"
    assert record["agent_info"]["version"] == "unknown"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["import.jsonl", "job"]


@pytest.mark.parametrize("command", ["atif", "harbor"])
def test_names_of_others_lead_nowhere_else(command: str, tmp_path: Path) -> None:
    runs = [store_run(tmp_path / name, [StoredTrial(SAID, task="../a")], name=f"../{name}") for name in ("x", "y")]
    done = CliRunner().invoke(app, ["export", command, *map(str, runs), "-o", str(tmp_path / "below" / "out")])
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"x", "y", "below"}
    assert {path.name for path in (tmp_path / "below").iterdir()} == {"out"}
    assert len(list((tmp_path / "below" / "out").rglob("trajectory.json"))) == 2


# -- Harbor's own code -----------------------------------------------------------------------------


@needs_harbor
@pytest.mark.slow
async def test_harbor_reads_jobs_and_documents_of_every_protocol(endpoint: FaultServer, tmp_path: Path) -> None:
    for protocol in SCRIPTS:
        trajectory, _ = await conversation(endpoint, protocol)
        run = store_run(tmp_path / protocol, [StoredTrial(trajectory)], name=protocol)
        export(run, "-o", tmp_path / "jobs" / protocol)
        CliRunner().invoke(app, ["export", "atif", str(run), "-o", str(tmp_path / "atif" / protocol)])
    export(a_run(tmp_path), "-o", tmp_path / "jobs" / "mixed")
    documents = sorted((tmp_path / "atif").rglob("trajectory.json"))
    found = read_by_harbor(tmp_path / "jobs", *documents)
    assert (found["read"], found["documents"]) == (len(SCRIPTS), [])
    assert set(found["jobs"]) == {*SCRIPTS, "mixed"}
    for job in found["jobs"].values():
        assert (job["problems"], job["stats_that_harbor_counts_otherwise"]) == ([], [])
    mixed = found["jobs"]["mixed"]
    assert (len(mixed["trials"]), mixed["trajectories"]) == (7, 7)
    assert [job["metrics"] for job in found["jobs"].values()] == [job["by_harbor"] for job in found["jobs"].values()]
