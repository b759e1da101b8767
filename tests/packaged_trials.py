"""Trials of packaged agents, each run in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Pull = Callable[[str], None]


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
