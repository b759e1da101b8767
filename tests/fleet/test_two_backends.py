"""Docker and Podman beside each other in one run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from own_podman import load_from_docker, own_podman

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed"),
]
MakeTask = Any
TBENCH = str(Path(sys.executable).with_name("tbench"))
DOCKER = "unix:///var/run/docker.sock"
BOUND_SEC = 300.0


def test_both_have_trials_and_it_is_said_that_they_are_not_alike(
    make_task: MakeTask, tmp_path: Path, tools_volume: str
) -> None:
    path, directory = make_task("both"), tmp_path / "run"
    with own_podman() as engine:
        load_from_docker(engine)
        podman = f"unix://{Path(engine.info.root).parent}/podman.sock"
        words = ["--agent", "oracle", "-k", "6", "-n", "6", "--cpu-overcommit", "4", "--verify", "shared"]
        ended = subprocess.run(
            [TBENCH, "run", str(path.parent), *words, "--engine", DOCKER, "--engine", podman, "-o", str(directory)],
            capture_output=True,
            text=True,
            timeout=BOUND_SEC,
        )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    results = [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]
    assert [result["reward"] for result in results] == [1.0] * 6
    assert {result["machine"] for result in results} == {DOCKER, podman}
    assert re.search(rf"{podman}: has Podman .*, and {DOCKER} has Docker", said), said
