"""`tbench run -n` as a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import in_process
import pytest


@pytest.mark.engine
def test_auto_stays_at_a_fixed_number_where_no_server_tells_its_load(
    tmp_path: Path, tools_volume: str, make_task: Any
) -> None:
    run = tmp_path / "run"
    done = in_process.tbench("run", str(make_task()), "-a", "nop", "-n", "auto", "-o", str(run), "--verify", "shared")
    assert done.returncode == 0 and "-n auto: stays at 16 concurrent trials" in done.stdout + done.stderr
    document = json.loads((run / "run.json").read_text())
    assert document["config"]["schedule"]["concurrency"] == "auto"
    assert document["paced"] == {"first": 16, "min": 16, "median": 16, "max": 16}
    assert in_process.tbench("resume", str(run)).returncode == 0
    for number in ("0", "-1", "many"):
        refused = in_process.tbench("run", "-a", "nop", "-n", number, "-o", str(run))
        assert refused.returncode == 2 and "--concurrency: " in refused.stderr, refused.stderr
