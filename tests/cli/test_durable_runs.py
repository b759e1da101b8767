"""Runs that are killed, interrupted, resumed: real processes and containers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, answer, completion
from results_on_disk import finals_in, results_in

from harness.trajectory import Outcome, Trajectory
from tbench import exit_codes
from tbench.results import TrialResult
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN, LABEL_TRIAL
from tbench.storage.read_run import read_steps

pytestmark = pytest.mark.engine
MakeTask = Any
TBENCH = str(Path(sys.executable).with_name("tbench"))
BOUND_SEC = 120
KILLS = 20
OVER = ("--cpu-overcommit", "8")


class LiveRun:
    """A `tbench run` process and its run directory."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.directory = directory
        self._engine = engine
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if key != "OPENAI_BASE_URL"}
        process = subprocess.Popen(
            [TBENCH, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment, "COLUMNS": "100"},
        )
        self._processes.append(process)
        return process

    def finish(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=BOUND_SEC)
        return process.returncode, output

    def end_all(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    @property
    def containers(self) -> dict[str, str]:
        """Trials by their containers, without containers that only read an image for comparison."""
        labelled = {"label": f"{LABEL_RUN}={self.directory.name}"}
        found = self._engine.api.containers(all=True, filters=labelled)
        trials = {container["Id"]: container["Labels"].get(LABEL_TRIAL) for container in found}
        return {container: trial for container, trial in trials.items() if trial}

    @property
    def results(self) -> list[TrialResult]:
        return results_in(self.directory)

    @property
    def finals(self) -> dict[tuple[str, int], TrialResult]:
        return finals_in(self.directory)

    @property
    def status(self) -> str:
        return str(json.loads((self.directory / "run.json").read_text())["status"])


@pytest.fixture
def live(engine: Engine, tools_volume: str, tmp_path: Path) -> Iterator[LiveRun]:
    run = LiveRun(engine, tmp_path / f"durable-{uuid.uuid4().hex[:8]}")
    yield run
    run.end_all()
    for container in run.containers:
        engine.api.remove_container(container, force=True)


def eventually(holds: Any, what: str) -> None:
    deadline = time.monotonic() + BOUND_SEC
    while not holds():
        assert time.monotonic() < deadline, f"in vain waited for {what}"
        time.sleep(0.02)


def slow_task(make_task: MakeTask, name: str, sec: float) -> Path:
    path: Path = make_task(name, solve=f"sleep {sec}; touch /app/done\n")
    return path


def test_a_killed_run_is_taken_up_where_it_ended(live: LiveRun, make_task: MakeTask) -> None:
    for name in ("alpha", "beta"):
        make_task(name)
    source = slow_task(make_task, "gamma", 60).parent
    process = live.start("run", str(source), "--agent", "oracle", "-n", "3", *OVER, "-o", str(live.directory))
    eventually(lambda: len(live.finals) == 2 and len({*live.containers.values()}) == 1, "two verdicts")
    orphans = set(live.containers)
    # From here on, the next run to start may take them over, even one of another test worker.
    process.kill()
    process.wait()
    assert orphans and live.status == "running"
    with (live.directory / "results.jsonl").open("a") as file:
        file.write('{"schema_version": 2, "tor')
    make_task("gamma")  # otherwise it would sleep again; a changed task would be refused
    code, said = live.finish("resume", str(live.directory))
    assert (code, "these tasks have changed since: gamma" in said) == (2, True)
    slow_task(make_task, "gamma", 60)
    resumed = live.start("resume", str(live.directory))
    eventually(lambda: set(live.containers) and not orphans & set(live.containers), "the orphan's end")
    code, said = live.finish("resume", str(live.directory))
    assert (code, "this run is still going on" in said) == (2, True)
    resumed.send_signal(signal.SIGTERM)
    resumed.communicate(timeout=BOUND_SEC)
    assert (resumed.returncode, live.status, live.containers) == (exit_codes.STOPPED, "interrupted", {})
    assert {task for task, _ in live.finals} == {"alpha", "beta"}


STEPS = 8


def typing(keystrokes: str, **more: Any) -> str:
    commands = [{"keystrokes": f"{keystrokes}\n", "duration": 10}]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, **more})


@pytest.mark.slow
def test_a_run_killed_in_its_ninth_step_leaves_eight_on_disk_and_goes_on(
    live: LiveRun, make_task: MakeTask, endpoint: FaultServer
) -> None:
    endpoint.always_list({"id": "tiny", "object": "model"})
    for number in range(1, STEPS + 1):
        endpoint.will_reply(typing(f"echo $((6 * 7)) step-{number}"))
    endpoint.will_hang()
    source = make_task().parent
    process = live.start("run", str(source), "--base-url", endpoint.base_url, "-o", str(live.directory))
    eventually(lambda: len(endpoint.seen) == STEPS + 1, "the ninth query")
    process.kill()
    process.wait()

    trial = live.directory / "trials" / "small-task" / "seed-0"
    steps = read_steps(trial)
    assert [step.index for step in steps] == list(range(1, STEPS + 1))
    assert all(f"42 step-{step.index}" in step.observation for step in steps)
    recording = (trial / "session.cast").read_text()
    events = [json.loads(line) for line in recording.splitlines()[1:]]
    assert [text for _, kind, text in events if kind == "i"] == [step.actions[0] for step in steps]
    assert f"42 step-{STEPS}" in "".join(text for _, kind, text in events if kind == "o")
    assert not (trial / "trajectory.json").exists()
    journal = [json.loads(line) for line in (live.directory / "journal.jsonl").read_text().splitlines()]
    assert [event["step"] for event in journal if event["kind"] == "trial_step"] == list(range(1, STEPS + 2))
    code, said = live.finish("summary", str(live.directory))
    assert (code, "coverage 0/1" in said) == (0, True), said

    endpoint.answer_by(lambda _: answer(200, completion(typing("touch /app/done", task_complete=True))))
    code, said = live.finish("resume", str(live.directory))
    assert code == 0, said
    (result,) = live.finals.values()
    assert (result.reward, result.attempt, [each.how for each in result.went_on]) == (1.0, 1, ["attached"])
    trajectory = Trajectory.model_validate_json((trial / "trajectory.json").read_text())
    assert list(trajectory.steps) == read_steps(trial) and trajectory.outcome is Outcome.SUBMITTED
    assert list(trajectory.steps[:STEPS]) == steps
    note = f"{live.directory}: 0 of 1 trials are kept, 1 to run"
    assert {"kind": "note", "text": note} in map(
        json.loads, (live.directory / "journal.jsonl").read_text().splitlines()
    )
    log = (live.directory / "run.log").read_text()
    assert log.count(f"{live.directory.name}: 1 trial\n") == 2
    assert f"INFO    {note}\n" in log and "small-task seed 0: reward 1 (submitted" in log


@pytest.mark.slow
def test_a_run_with_resume_begins_goes_on_and_is_done(live: LiveRun, make_task: MakeTask) -> None:
    command = ("run", str(make_task().parent), "--agent", "oracle", "--resume", "-o", str(live.directory))
    assert live.finish(*command)[0] == 0
    assert live.finish(*command, "-k", "2")[0] == 0
    code, said = live.finish(*command, "-k", "2")
    assert (code, "2 of 2 trials are kept, 0 to run" in said) == (0, True)
    assert [(result.seed, result.reward, result.attempt) for result in live.results] == [(0, 1.0, 1), (1, 1.0, 1)]
    document = json.loads((live.directory / "run.json").read_text())
    assert (document["status"], document["seeds"], len(document["resumed_at"])) == ("finished", [0, 1], 2)
    assert all(task["image_id"] for task in document["tasks"])
    code, said = live.finish("run", str(make_task().parent), "--agent", "nop", "--resume", "-o", str(live.directory))
    assert (code, 'another configuration: agent.name: "oracle" → "nop"' in said) == (2, True)


@pytest.mark.slow
def test_errors_are_tried_again_where_they_are_named(live: LiveRun, make_task: MakeTask) -> None:
    flag = "if [ -e /app/done ]; then echo 1 > /logs/verifier/reward.txt; fi\n"
    source = make_task(solve="true\n", test=flag).parent
    assert live.finish("run", str(source), "--agent", "oracle", "-o", str(live.directory))[0] == 3  # no verdict
    assert live.finals["small-task", 0].error is not None
    assert live.finish("resume", str(live.directory))[0] == 3
    assert len(live.results) == 1
    resume = ("resume", str(live.directory), "--retry-errors")
    assert live.finish(*resume, "verifier_no_reward", "image_unavailable")[0] == 3
    assert live.finish(*resume)[0] == 3
    assert [(result.attempt, result.final) for result in live.results] == [(1, False), (2, False), (3, True)]
    code, said = live.finish(*resume, "no_such_type")
    assert (code, "no_such_type: no such type of error" in said) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("second", [False, True], ids=["once", "twice"])
def test_ctrl_c_with_eight_trials_under_way(live: LiveRun, make_task: MakeTask, second: bool) -> None:
    make_task("alpha")
    source = slow_task(make_task, "beta", 100).parent
    command = ("run", str(source), "--agent", "oracle", "-k", "9", "-n", "9", *OVER, "-o", str(live.directory))
    process = live.start(*command)
    eventually(lambda: len(live.finals) == 9 and len(live.containers) >= 8, "eight trials at work")
    process.send_signal(signal.SIGINT)
    if second:
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=BOUND_SEC)
    assert process.returncode == 130, output
    eventually(lambda: not live.containers, "the containers' end")
    assert {result.reward for result in live.finals.values()} == {1.0}
    if not second:
        assert live.status == "interrupted"
        assert "coverage 9/18" in output


@pytest.mark.slow
def test_a_run_killed_at_twenty_moments_loses_nothing_and_measures_nothing_twice(
    live: LiveRun, make_task: MakeTask
) -> None:
    names = ("alpha", "beta", "gamma", "delta")
    for name in names:
        make_task(name)
    seeds = 15
    source = make_task("epsilon", solve="touch /app/done; sleep 1\n").parent
    planned = seeds * (len(names) + 1)
    command = (
        "run",
        str(source),
        "--agent",
        "oracle",
        "-k",
        str(seeds),
        "-n",
        "2",
        *OVER,
        "--resume",
        "-o",
        str(live.directory),
    )
    chance = random.Random(planned)
    verdicts: dict[tuple[str, int], TrialResult] = {}
    for _ in range(KILLS):
        process = live.start(*command)
        time.sleep(chance.uniform(0.2, 4.0))
        process.kill()
        process.communicate()
        found = live.finals
        for trial, result in verdicts.items():
            assert found[trial] == result, "a verdict was lost or measured again"
        verdicts = found
    code, output = live.finish(*command)
    assert code == 0, output
    assert (len(live.finals), {result.reward for result in live.finals.values()}) == (planned, {1.0})
    assert live.containers == {}
    for line in (live.directory / "journal.jsonl").read_text().splitlines():
        json.loads(line)
    for result in live.results:
        assert result.final, "an attempt that was cut short has no line"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_costs_results_and_not_the_run(live: LiveRun, make_task: MakeTask) -> None:
    """Big logs fill the disk of the run directory; after making room, a resume measures the lost trials again."""
    small = live.directory.parent / "disk"
    small.mkdir()
    live.directory = small / live.directory.name
    big = "head -c 3000000 /dev/zero > /logs/verifier/big; echo 1 > /logs/verifier/reward.txt\n"
    make_task("little")
    source = make_task("much", test=big).parent
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=True)
    try:
        code, output = live.finish("run", str(source), "--agent", "oracle", "--retries", "0", "-o", str(live.directory))
        assert code == 0, output
        finals = live.finals
        assert finals["little", 0].reward == 1.0
        error = finals["much", 0].error
        assert error is not None and error.type == "result_unwritable" and "No space left" in error.message
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        code, output = live.finish("resume", str(live.directory))
        assert code == 0, output
        assert {trial: result.reward for trial, result in live.finals.items()} == {("little", 0): 1.0, ("much", 0): 1.0}
    finally:
        subprocess.run(["umount", str(small)], check=True)
