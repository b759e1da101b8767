"""The debugger on a real terminal with real trials."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from debugging_users import User

from tbench.demo.server import DemoEndpoint
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.storage.read_run import read_run, read_trajectory
from tbench.tasks.sources import BUNDLED, read_tasks

MakeTask = Any
pytestmark = pytest.mark.engine
TASK = str(Path(__file__).parents[3] / "tasks" / "web-log-digest")
LOST_TASK = str(Path(TASK).with_name("lab-permissions"))
"""A task that the demo model fails."""
SHARED = ("--verify", "shared")
"""One container for each trial, where it is not the verdict that is tested."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with DemoEndpoint({task.name: task.instruction for task in read_tasks(BUNDLED).tasks}) as demo:
        yield demo.base_url


@pytest.fixture
def run(engine: Engine, tools_volume: str, tmp_path: Path) -> Iterator[Path]:
    """Directory of a run; asserts at the end that none of its containers are left."""
    directory = tmp_path / f"debugged-{uuid.uuid4().hex[:8]}"
    yield directory
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={directory.name}"}) == []


def test_two_people_debug_a_trial_of_which_one_is_the_host(endpoint: str, run: Path) -> None:
    with User(TASK, "--base-url", endpoint, "-o", str(run), *SHARED, size=(140, 40)) as host:
        host.sees("> ls -l logs")
        host.press("s", "929 total")
        with User(f"{run}/web-log-digest/0") as guest:
            guest.sees("929 total")
            guest.press("t", "the terminal is yours")
            guest.press("echo by a guest\r", "^by a guest")
            host.sees("^by a guest")
            host.press("t", "another client has taken its terminal")
            guest.press("\x1d", "the terminal is the model's again")
            guest.press("Q")
            assert guest.ends() == 0
        host.press("v", "verify at 2: reward 0")
        host.press("dNo, look again.\r", "next: step 3")
        host.press("g", "ended: submitted")
        host.sees("│.*model 0")
        host.press("q")
        assert host.ends() == 0
    (result,) = read_run(run).results
    assert result.human_touched


def test_ctrl_c_leaves_the_terminal_sane_and_no_container(endpoint: str, run: Path) -> None:
    with User(TASK, "--base-url", endpoint, "-o", str(run), *SHARED) as user:
        user.sees("> ls -l logs")
        user.press("\x03")
        assert user.ends() == 130
    (result,) = read_run(run).results
    assert result.error is not None
    assert result.error.type == "aborted"


def test_without_a_terminal_commands_are_read_in_lines(endpoint: str, run: Path) -> None:
    command = [sys.executable, "-m", "tbench", "debug", TASK, "--base-url", endpoint, "-o", str(run), *SHARED]
    done = subprocess.run(command, input="step\nquit keep\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "step 1: model" in done.stdout
    trial = f"{run}/web-log-digest/0"
    assert f"kept: the container; enter it with: tbench shell {trial}" in done.stderr
    kept = run / "trials" / "web-log-digest" / "seed-0" / "kept.json"
    container = json.loads(kept.read_text())["container"]
    subprocess.run(["docker", "rm", "-f", container], check=True, capture_output=True)


def test_a_user_goes_back_to_a_step_and_saves_the_replies(endpoint: str, run: Path) -> None:
    with User(TASK, "--base-url", endpoint, "-o", str(run), *SHARED, size=(140, 40)) as user:
        user.sees("> ls -l logs")
        user.press("s", "step 2  .*waiting for you")
        user.press("tqqq", "the terminal is yours")
        user.press("echo by hand\r", "^by hand")
        user.press("\x1d", "the terminal is the model's again")
        user.press("s", "step 3  .*waiting for you")
        user.press("b1\r", r"step 1  \|  waiting for you")
        user.press("s", "step 2  .*waiting for you")
        assert not any("by hand" in line for line in user.lines)
        user.press("C", "2 of its model's replies saved")
        user.press("b5\r", "is at step 2; choose that step or an earlier one")
        user.press("g", "ended: submitted, reward 1")
        user.press("q")
        assert user.ends() == 0
    results = read_run(run).results
    assert [(each.attempt, each.final, each.human_touched) for each in results] == [(1, False, True), (2, True, True)]
    assert len((run / "trials/web-log-digest/seed-0/attempt-2/cassette.jsonl").read_text().splitlines()) > 4


def test_a_trial_waits_while_its_endpoint_is_started_again(run: Path) -> None:
    instructions = {task.name: task.instruction for task in read_tasks(BUNDLED).tasks}
    first = DemoEndpoint(instructions).start()
    port = urlsplit(first.base_url).port or 0
    with User(
        TASK, "--base-url", first.base_url, "-o", str(run), *SHARED, "--max-outage", "0", "--retry-budget", "0"
    ) as user:
        user.sees("> ls -l logs")
        user.press("p", "will be held at its next model call")
        user.press("s", r"\|  held")
        first.stop()
        time.sleep(0.3)
        with DemoEndpoint(instructions, port=port):
            user.press("p", "step 2  .*waiting for you")
            user.press("g", "ended: submitted, reward 1")
            user.press("q")
            assert user.ends() == 0
    (result,) = read_run(run).results
    assert (result.error, result.human_touched) == (None, False)
    assert result.timings.waited_sec >= 0.3


def test_an_image_without_bash_has_a_terminal_to_type_into(endpoint: str, run: Path, make_task: MakeTask) -> None:
    bare = "FROM debian:bookworm-slim\nRUN rm -f /bin/bash /usr/bin/bash\nWORKDIR /app\n"
    task = make_task("without-bash", dockerfile=bare)
    with User(str(task), "--base-url", endpoint, "-o", str(run), *SHARED) as user:
        user.sees("waiting for you")
        user.press("t", "the terminal is yours")
        user.press("ls /bin/bash; echo is $((6 * 7))\r", "^is 42")
        user.sees("cannot access '/bin/bash'")
        user.press("\x1d", "the terminal is the model's again")
        user.press("\x03")
        assert user.ends() == 130


def test_what_has_to_be_approved_waits_and_what_rules_allow_does_not(endpoint: str, run: Path, tmp_path: Path) -> None:
    (rules := tmp_path / "rules.txt").write_text("ls .*\n")
    command = [sys.executable, "-m", "tbench", "run", TASK, "--base-url", endpoint, "-o", str(run), *SHARED]
    process = subprocess.Popen([*command, "--approve", f"ask,allowlist={rules}"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    trial = f"{run}/web-log-digest/0"
    told = "web-log-digest/0: step 2 waits for approval: tbench approve web-log-digest/0, or tbench refuse"
    while told not in (line := process.stderr.readline()):
        assert line
    assert "agent waiting for you" in tbench("ps", str(run))
    with User(trial) as guest:
        guest.sees("next: step 2, needs approval")
        guest.press("q")
        assert guest.ends() == 0
    assert "agent waiting for you" in tbench("ps", str(run))
    assert (
        tbench("refuse", trial, "Not like that.")
        == "web-log-digest/0: the reply of step 2 is discarded; its model gets your message instead\n"
    )
    while "step 3 waits for approval" not in (line := process.stderr.readline()):
        assert line
    assert tbench("approve", trial) == "web-log-digest/0: the reply of step 3 is followed\n"
    process.communicate(timeout=120)
    trajectory = read_trajectory(run / "trials/web-log-digest/seed-0")
    assert trajectory is not None
    assert [(each.step, each.kind, each.text) for each in trajectory.interventions] == [
        (1, "approved", "by rule: ls .*"),
        (2, "refused", "Not like that."),
        (3, "approved", "by a person"),
    ]
    (result,) = read_run(run).results
    assert result.human_touched


def tbench(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "tbench", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Asker(User):
    """Somebody who asks why a trial failed."""

    program = ("-m", "tbench", "why")


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_one_key_leads_from_why_to_the_step_in_a_debugger(endpoint: str, run: Path, size: tuple[int, int]) -> None:
    command = [sys.executable, "-m", "tbench", "debug", LOST_TASK, "--base-url", endpoint, "-o", str(run), *SHARED]
    done = subprocess.run([*command, "--do", "run"], capture_output=True, text=True, timeout=120)
    assert f"tbench why {run}/lab-permissions/0" in done.stdout, done.stderr
    with Asker(f"{run}/lab-permissions/0", size=size) as user:
        user.sees("d debugs it")
        user.press("d", "next: step 2")
        user.press("\x03")
        assert user.ends() == 130
    with Asker(f"{run}/lab-permissions/0", size=size) as user:
        user.sees("d debugs it")
        user.press("x")
        assert user.child.wait() == 0
