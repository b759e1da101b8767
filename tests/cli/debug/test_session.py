"""session: a user at a real terminal debugs a real trial."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from debugging_users import User

from tbench.demo.server import DemoEndpoint
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.labels import LABEL_RUN
from tbench.storage.read_run import read_run
from tbench.tasks.sources import BUNDLED, read_tasks

pytestmark = pytest.mark.engine
TASK = str(Path(__file__).parents[3] / "tasks" / "web-log-digest")


@pytest.fixture
def endpoint() -> Iterator[str]:
    with DemoEndpoint({task.name: task.instruction for task in read_tasks(BUNDLED).tasks}) as demo:
        yield demo.base_url


@pytest.fixture
def run(engine: Engine, tools_volume: str, tmp_path: Path) -> Iterator[Path]:
    """Where a run goes; afterwards none of its containers may be left."""
    directory = tmp_path / f"debugged-{uuid.uuid4().hex[:8]}"
    yield directory
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={directory.name}"}) == []


def test_two_people_debug_a_trial_of_which_one_is_the_host(endpoint: str, run: Path) -> None:
    with User(TASK, "--base-url", endpoint, "-o", str(run), size=(140, 40)) as host:
        host.sees("> ls -l logs")
        host.press("s", "929 total")
        with User(f"{run}/web-log-digest/0") as guest:
            guest.sees("929 total")
            guest.press("t", "the terminal is yours")
            guest.press("echo by a guest\r", "^by a guest")
            host.sees("^by a guest")
            host.press("t", "somebody else has taken its terminal")
            guest.press("\x1d", "the terminal is the model's again")
            guest.press("Q")
            assert guest.ends() == 0
        host.press("v", "verify at 2: reward 0")
        host.press("dNo, look again.\r", "nothing of step 2 is done")
        host.press("g", "ended: submitted")
        host.sees("│.*model 0")
        host.press("q")
        assert host.ends() == 0
    (result,) = read_run(run).results
    assert result.human_touched


def test_ctrl_c_leaves_the_terminal_sane_and_no_container(endpoint: str, run: Path) -> None:
    with User(TASK, "--base-url", endpoint, "-o", str(run)) as user:
        user.sees("> ls -l logs")
        user.press("\x03")
        assert user.ends() == 130
    (result,) = read_run(run).results
    assert result.error is not None
    assert result.error.type == "aborted"


def test_without_a_terminal_commands_are_read_in_lines(endpoint: str, run: Path) -> None:
    command = [sys.executable, "-m", "tbench", "debug", TASK, "--base-url", endpoint, "-o", str(run)]
    done = subprocess.run(command, input="step\nquit keep\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "step 1: model" in done.stdout
    trial = f"{run}/web-log-digest/0"
    assert f"kept: its container; enter it with: tbench shell {trial}" in done.stderr
    kept = run / "trials" / "web-log-digest" / "seed-0" / "kept.json"
    container = json.loads(kept.read_text())["container"]
    subprocess.run(["docker", "rm", "-f", container], check=True, capture_output=True)
