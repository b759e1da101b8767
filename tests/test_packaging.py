"""The package as others install it: with the oldest versions of its dependencies that it says it works with."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_oldest_versions_that_are_allowed_work(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = [each.replace(">=", "==") for each in project["dependencies"]]
    assert all("==" in each for each in oldest)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    python = tmp_path / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    tools = [each for each in project["optional-dependencies"]["dev"] if each.startswith(("pytest", "hypothesis"))]
    subprocess.run([*pip, *oldest, *tools, "pexpect"], check=True)
    subprocess.run([*pip, "--no-deps", "-e", str(ROOT)], check=True)
    asked = ["tests/config", "tests/scores", "tests/harness", "tests/cli/test_config.py", "tests/cli/test_flags.py"]
    tests = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not engine and not slow", *asked]
    done = subprocess.run(tests, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
