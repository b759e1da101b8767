"""`tbench doctor` as a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tbench.demo.server import DemoEndpoint
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN

TBENCH = str(Path(sys.executable).with_name("tbench"))


def start(*arguments: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **variables}
    environment.pop("OPENAI_BASE_URL", None)
    return subprocess.Popen(
        [TBENCH, "doctor", *arguments], cwd=cwd, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.engine
def test_a_good_machine_passes_and_nothing_is_left_behind(engine: Engine, tools_volume: str, tmp_path: Path) -> None:
    with DemoEndpoint({}) as demo:
        process = start("--json", "--base-url", demo.base_url, cwd=tmp_path, OPENAI_API_KEY="sk-planted")
        out, errors = process.communicate(timeout=120)
    found = json.loads(out)
    assert (process.returncode, errors, found["ok"]) == (0, "", True), out
    checks = {check["name"]: check for check in found["checks"]}
    must = ("engine", "storage", "containers", "limits", "tools", "disk of engine", "endpoint", "model")
    assert {checks[name]["status"] for name in must} <= {"ok", "warn"}
    assert {"network", "dns", "disk of runs", "certificates", "clock", "endpoint's clock"} <= set(checks)
    assert all(check["advice"] for check in found["checks"] if check["status"] in ("warn", "fail"))
    assert "sk-planted" not in out
    mine = {"label": f"{LABEL_RUN}=doctor-{process.pid}"}
    assert engine.api.containers(all=True, filters=mine) == []
    assert list(tmp_path.iterdir()) == []


def test_a_failure_says_what_to_do_and_the_command_ends_with_2(tmp_path: Path) -> None:
    process = start(cwd=tmp_path, DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (2, "")
    lines = out.splitlines()
    assert lines[0].split() == f"fail engine no engine runs: {tmp_path}/none.sock does not exist".split()
    assert lines[1].strip().startswith("-> start that engine, leave out its address")
    assert lines[-1].endswith("skipped")
