"""The programs that the documentation names run, each with as little to do as it can have.

`soak`, `bench` and `beside_harbor` have tests of their own, the pictures of nights those of the demo's nights.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from browsing import executable
from conftest import ROOT

TESTS = ROOT / "tests"
SETTINGS = ("docs/reference/settings.md", "docs/reference/nightly-settings.md", "tests/settings_tables.py")


def output_of(script: Path, *arguments: object, codes: Sequence[int] = (0,)) -> str:
    """What a program prints that ends as it should."""
    argv = [sys.executable, str(script), *map(str, arguments)]
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(ROOT)])}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False, cwd=ROOT, env=surroundings)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("house.py", (), "below 60 lines with one importer"),
        ("gate_histories.py", ("5",), "| 2 tasks |"),
        ("interval_coverage.py", ("1",), "| partial rewards"),
        ("view_bench.py", ("--trials", "4", "--seconds", "1", "--step", "0.2"), "one stream: "),
    ],
)
def test_a_script_runs_and_says_what_it_found(script: str, arguments: Sequence[str], said: str) -> None:
    assert said in output_of(TESTS / script, *arguments)


@pytest.mark.slow
def test_changes_of_a_file_are_tried_and_counted() -> None:
    tried = output_of(TESTS / "mutants.py", "reward", "--every", "60", codes=(0, 1))
    assert re.search(r"^reward: \d+ of [1-9]\d* changes survive$", tried, re.MULTILINE), tried


@pytest.mark.engine
@pytest.mark.slow
def test_a_cheat_is_tried_from_the_command_line(tools_volume: str) -> None:
    table = output_of(TESTS / "verify/cheat_trials.py", "--mode", "plain", "--only", "python-script-first-in-path")
    assert table.splitlines()[-1].split() == ["cheats", "1", "1", "0"]


@pytest.mark.slow
def test_the_tables_of_settings_are_written_as_they_are(tmp_path: Path) -> None:
    for name in SETTINGS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    output_of(tmp_path / SETTINGS[-1])
    assert [(tmp_path / name).read_text() for name in SETTINGS] == [(ROOT / name).read_text() for name in SETTINGS]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.skipif(executable() is None or shutil.which("tmux") is None, reason="needs chromium and tmux")
def test_pictures_are_taken_of_a_demo_and_of_what_moves(tools_volume: str, tmp_path: Path) -> None:
    output_of(TESTS / "pictures.py", "live", "debug", "attach", "why", "--seeds", 2, "--after", 4, "--output", tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"live.png", "live.svg", "debug.svg", "attach.svg", "why.svg"}
