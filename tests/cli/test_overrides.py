"""Overrides: they reach containers and results, and a resume can give a slow build more time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import in_process
import pytest
from conftest import MakeTask

from tbench.sandbox.build_context import build_tag
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

pytestmark = pytest.mark.engine
TBENCH = str(Path(sys.executable).with_name("tbench"))


def tbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        [TBENCH, *arguments], capture_output=True, text=True, timeout=300, check=False, env=environment
    )


@pytest.fixture
def run_dir(engine: Engine, tools_volume: str, tmp_path: Path) -> Iterator[Path]:
    """Directory of a run, whose containers are removed at the end."""
    directory = tmp_path / f"overrides-{uuid.uuid4().hex[:8]}"
    yield directory
    for left in engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={directory.name}"}):
        engine.api.remove_container(left["Id"], force=True)


def stored(run_dir: Path) -> tuple[Any, list[Any]]:
    lines = (run_dir / "results.jsonl").read_text().splitlines()
    return json.loads((run_dir / "run.json").read_text()), [json.loads(line) for line in lines]


@pytest.mark.slow
def test_containers_have_what_is_overridden_and_it_stands_beside_the_score(
    engine: Engine, make_task: MakeTask, run_dir: Path
) -> None:
    toml = "[agent]\ntimeout_sec = 1\n[environment]\ncpus = 9999\nmemory_mb = 256\nallow_internet = false\n"
    path = make_task(toml=toml, solve="sleep 3; touch /app/done\n")
    overrides = ("--override-cpus", "0.5", "--override-memory", "300", "--agent-timeout-multiplier", "60")
    done = tbench("run", str(path), "-a", "oracle", "--keep", "all", "-o", str(run_dir), *overrides)
    assert done.returncode == 0, done
    words = ["agent timeout x60", "0.5 cpus instead of each task's", "300 MB of memory instead of each task's"]
    assert f"\noverridden: {', '.join(words)}\n" in done.stdout
    assert json.loads(in_process.tbench("summary", str(run_dir), "--json").stdout)["overrides"] == words
    document, (result,) = stored(run_dir)
    assert result["reward"] == 1.0 and result["outcome"] == "finished"
    assert document["config"]["overrides"]["cpus"] == 0.5
    assert result["image_id"] == document["tasks"][0]["image_id"]
    assert result["image_origin"]["reference"] == build_tag(agent_environment(Task.read(path)))
    kept = json.loads((run_dir / "trials/small-task/seed-0/kept.json").read_text())["container"]
    limits = engine.api.inspect_container(kept)["HostConfig"]
    assert (limits["NanoCpus"], limits["Memory"]) == (500_000_000, 300 << 20)
    assert "larger than the machine" not in done.stderr


@pytest.mark.slow
def test_a_task_larger_than_the_machine_is_reported_once_and_scored(make_task: MakeTask, run_dir: Path) -> None:
    path = make_task(toml="[environment]\ncpus = 9999\nmemory_mb = 1e9\nallow_internet = false\n")
    dry = in_process.tbench("run", str(path), "-a", "oracle", "--dry-run", COLUMNS="200").stdout
    # Twice what the task requests, because the verifier runs in a copy of the container.
    assert "room" in dry and "small-task (9999 cpus, 1,953,125.0 GB)" in " ".join(dry.split())
    done = tbench("run", str(path), "-a", "oracle", "-k", "2", "-o", str(run_dir))
    assert done.stderr.count("larger than the machine, which has ") == 1
    assert [result["reward"] for result in stored(run_dir)[1]] == [1.0, 1.0], done


@pytest.mark.slow
def test_a_run_goes_on_with_more_time_for_its_builds(engine: Engine, make_task: MakeTask, run_dir: Path) -> None:
    toml = "[environment]\nbuild_timeout_sec = 1\nmemory_mb = 256\nallow_internet = false\n"
    path = make_task(
        toml=toml, dockerfile=f"FROM debian:bookworm-slim\nRUN sleep 2; echo {uuid.uuid4()}\nWORKDIR /app\n"
    )
    done = tbench("run", str(path), "-a", "oracle", "--retries", "0", "-o", str(run_dir))
    assert done.returncode == 3 and "image_build_timeout" in done.stdout, done
    try:
        resumed = tbench("resume", str(run_dir), "--build-timeout-multiplier", "120")
        assert resumed.returncode == 0, resumed
    finally:
        engine.api.remove_image(build_tag(agent_environment(Task.read(path))), force=True)
    document, results = stored(run_dir)
    assert [(result["reward"], result["final"]) for result in results] == [(None, False), (1.0, True)]
    assert results[0]["trial"] == results[1]["trial"]
    assert document["config"]["overrides"]["build_timeout_multiplier"] == 120
    refused = in_process.tbench("resume", str(run_dir), "--timeout-multiplier", "2")
    assert refused.returncode == 2 and "--timeout-multiplier" in refused.stderr
