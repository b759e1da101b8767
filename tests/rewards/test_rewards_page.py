"""docs/python.md: every script with an output runs, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
SCRIPTS = {
    name: (code, printed)
    for code, name, printed in re.findall(
        r"^```python\n(\"\"\"(\w+)\.py: (?:(?!^```).)*)^```\n\n```text\n(.*?)^```$",
        PAGE.read_text("utf-8"),
        re.M | re.S,
    )
}


def printed_by(code: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, cwd=cwd
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_script_of_the_page_is_among_them() -> None:
    assert SCRIPTS.keys() == {"grpo_loop", "trainer_rewards", "executed", "agent_reward"}
    assert PAGE.read_text("utf-8").count("```text") == len(SCRIPTS)


@pytest.mark.parametrize("name", ["grpo_loop", "trainer_rewards"])
def test_a_script_prints_what_the_page_says(name: str, tmp_path: Path) -> None:
    code, printed = SCRIPTS[name]
    assert printed_by(code, tmp_path) == printed


@pytest.mark.engine
@pytest.mark.parametrize("name", ["executed", pytest.param("agent_reward", marks=pytest.mark.slow)])
def test_a_script_with_containers_prints_what_the_page_says(name: str, tools_volume: str, tmp_path: Path) -> None:
    code, printed = SCRIPTS[name]
    assert printed_by(code, tmp_path) == printed
