"""Trials of packaged agents, each run in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tbench.agents.packages import require_package
from tbench.agents.recipe import load_recipe
from tbench.errors import UsageError

Pull = Callable[[str], None]
"""Pulls an agent, and skips the test if its registry is away."""


def pull(name: str) -> str:
    """Pull an agent if it is not here, and return why that failed; empty if it did not."""
    try:
        require_package(load_recipe(name), name)
    except UsageError:
        command = [sys.executable, "-m", "tbench", "agent", "pull", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        return "" if done.returncode == 0 else done.stderr.strip()
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


def trajectory(folder: Path, task: str = "small-task") -> dict[str, Any]:
    path = folder / "run" / "trials" / task / "seed-0" / "trajectory.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found
