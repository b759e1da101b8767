"""The bench of `make bench`: the one group that runs itself in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.engine
@pytest.mark.slow
def test_the_memory_of_a_trial_is_measured_in_a_process_of_its_own(tools_volume: str, tmp_path: Path) -> None:
    argv = [sys.executable, str(Path(__file__).with_name("bench")), "memory"]
    bench = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert bench.returncode == 0, bench.stdout + bench.stderr
    figures = json.loads((tmp_path / "bench.json").read_text())["figures"]
    assert 0 < figures["memory_per_trial_mb"]["value"] < 20
