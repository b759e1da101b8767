"""`tbench task shell`, `verify` and `solve`."""

from __future__ import annotations

import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import in_process
import pexpect
import pytest

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN

pytestmark = pytest.mark.engine
TBENCH = [sys.executable, "-m", "tbench"]
MakeTask = Any


def tbench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TBENCH, *words], capture_output=True, text=True, timeout=120)


def test_a_task_is_tried_by_hand_and_judged_in_the_same_container_until_it_passes(
    engine: Engine, tools_volume: str, make_task: MakeTask
) -> None:
    limits = "[environment]\nmemory_mb = 256\nstorage_mb = 512\nallow_internet = false\n"
    task = str(make_task("by-hand", toml=limits))
    child = pexpect.spawn(TBENCH[0], [*TBENCH[1:], "task", "shell", task], timeout=120, encoding="utf-8")
    labelled = {"label": f"{LABEL_RUN}=shell-{child.pid}"}
    try:
        before = termios.tcgetattr(child.child_fd)
        child.expect("Create the file /app/done")
        child.expect(r"/app# ")
        child.send("touch other\r")
        child.expect(r"/app# ")
        (container,) = engine.api.containers(filters=labelled)
        judged = tbench("task", "verify", task)
        assert (judged.stdout, judged.returncode) == ("reward 0\n", 2)
        child.send("exit\r")
        child.expect("reward 0")
        child.expect("press Enter to go back")
        child.send("\r")
        child.expect(r"/app# ")
        child.send("ls; touch done\r")
        child.expect("other")
        child.expect(r"/app# ")
        assert [each["Id"] for each in engine.api.containers(filters=labelled)] == [container["Id"]]
        judged = tbench("task", "verify", task)
        assert (judged.stdout, judged.returncode) == ("reward 1\n", 0)
        child.send("exit\r")
        child.expect("reward 1")
        child.expect("q to remove it")
        child.send("q\r")
        child.expect(pexpect.EOF)
        assert termios.tcgetattr(child.child_fd) == before
    finally:
        child.close()
    assert child.exitstatus == 0
    assert engine.api.containers(all=True, filters=labelled) == []
    refused = in_process.tbench("task", "verify", task).stderr
    assert f"has no open shell; open one with: tbench task shell {task}" in refused


@pytest.mark.parametrize(("solve", "code"), [("echo working; touch /app/done\n", 0), ("echo not really\n", 2)])
def test_a_solution_is_seen_as_it_runs_and_judged(
    engine: Engine, tools_volume: str, make_task: MakeTask, solve: str, code: int
) -> None:
    done = tbench("task", "solve", str(make_task("solved", solve=solve)))
    assert done.returncode == code, done.stderr
    assert solve.split(";")[0].removeprefix("echo ").strip() in done.stdout
    assert f"reward {int(code == 0)}" in done.stdout


def test_a_task_without_a_solution_is_reported(make_task: MakeTask, tmp_path: Path) -> None:
    done = in_process.tbench("task", "solve", str(make_task(solve=None)))
    assert done.returncode == 2
    assert "solution/solve.sh: missing; the task has no solution to run" in done.stderr
