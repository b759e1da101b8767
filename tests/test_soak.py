"""The soak of `make soak`, short: many trials while endpoint and containers are harmed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRIALS = 40


@pytest.mark.engine
@pytest.mark.slow
def test_harmed_trials_all_have_a_verdict_and_nothing_is_left_behind(tools_volume: str) -> None:
    soak = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("soak")), str(TRIALS)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert soak.returncode == 0, soak.stdout + soak.stderr
    assert f"verdicts: {TRIALS}/{TRIALS}" in soak.stdout
    assert "left behind: containers 0, descriptors 0, networks 0, tasks 0, threads 0, volumes 0" in soak.stdout
