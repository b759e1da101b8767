"""Trials of packaged agents, each run in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results_on_disk import results_in

from tbench.agents.packages import _directory
from tbench.agents.recipe import known_recipes, load_recipe
from tbench.files import cache_home
from tbench.locks import hold_lock
from tbench.results import TrialResult

PULL_SEC = 900.0
TOOL_CALLERS = [name for name in known_recipes() if load_recipe(name).calls_tools]
Pull = Callable[[str], None]
"""Pulls an agent, and skips the test if its registry is away."""


def pull(name: str) -> str:
    """Have an agent's package in this session's cache, and return why that failed; empty if it did not.

    The package is kept in a folder that all test sessions of this machine share: TBENCH_TEST_CACHE, by default beside
    the user's own cache.
    """
    own = _directory(load_recipe(name))
    default = cache_home({**os.environ, "TBENCH_CACHE": ""}).with_name("tbench-tests")
    shared = Path(os.environ.get("TBENCH_TEST_CACHE") or default).absolute()
    shared.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tbench", "agent", "pull", name]
    environment = {**os.environ, "TBENCH_CACHE": str(shared)}
    with (shared / "pulling").open("w") as file, hold_lock(Path(file.name), file.fileno(), PULL_SEC):
        done = subprocess.run(command, capture_output=True, text=True, timeout=PULL_SEC, env=environment, check=False)
    if done.returncode:
        return done.stderr.strip()
    own.parent.mkdir(parents=True, exist_ok=True)
    own.symlink_to(shared / own.relative_to(cache_home()))
    return ""


def run(folder: Path, tasks: Path, agent: str, url: str, *more: str, seconds: int = 240) -> dict[str, Any]:
    """Run one trial of an agent in a process of its own, and return its result."""
    command = [sys.executable, "-m", "tbench", "run", str(tasks), "--agent", agent, "--base-url", url]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("OPENAI_")}
    done = subprocess.run(
        [*command, "--output", str(folder / "run"), "--verify", "shared", "--retries", "0", *more],
        capture_output=True, text=True, timeout=seconds, env=environment, check=False,
    )  # fmt: skip
    lines = (folder / "run" / "results.jsonl").read_text().splitlines() if (folder / "run").exists() else []
    assert len(lines) == 1, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(lines[0])
    return found


def run_killed_once(folder: Path, tasks: Path, agent: str, url: str, kill: threading.Event) -> TrialResult:
    """Run one trial of an agent, kill the run at an event, resume it, and return the trial's result."""
    command = [sys.executable, "-m", "tbench", "run", str(tasks), "--agent", agent, "--base-url", url]
    command += ["--verify", "shared", "--retries", "0", "--output", str(folder / "run")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        was_set = kill.wait(600)
        running.kill()
    assert was_set
    resume = [sys.executable, "-m", "tbench", "resume", str(folder / "run")]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = (each for each in results_in(folder / "run") if each.final)
    return result


def trajectory(folder: Path, task: str = "small-task") -> dict[str, Any]:
    path = folder / "run" / "trials" / task / "seed-0" / "trajectory.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found
