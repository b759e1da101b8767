"""shellcheck passes every shell script of the project without a word, where it is installed (`make lint` does)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = [path for folder in ("tbench", "harness", "reports", "images") for path in (ROOT / folder).rglob("*.sh")]
SHARE = ROOT / "images" / "tools" / "share"
TOOLS = {
    # A backslash that ends a mark; a tty that cannot fail there; a directory that may be gone.
    "shell": ("dash", "SC1003,SC2155,SC2164"),
    # What it sources is in the container.
    "shrc": ("dash", "SC1090"),
    # The same; a hook in quotes, which is read at each prompt; a variable that is a list in some versions of bash.
    "bashrc": ("bash", "SC1003,SC1090,SC2016,SC2089,SC2090,SC2128,SC2154,SC2178"),
    # Sourced by deliver.sh, whose variables it reads; a number in a glob.
    "await-substitutions": ("bash", "SC2154,SC2231"),
    # The same; what is for eval.
    "in-pieces": ("bash", "SC2016,SC2034,SC2154"),
    "tell-of-signals": ("dash", ""),
    "no-editor": ("dash", ""),
    "witness": ("bash", ""),
}
"""Dialect, and codes to leave out: their bytes name the tools volume, so a comment there would have it built again."""
NO_SCRIPTS = {"tmux.conf"}


def said_by_shellcheck(script: Path, dialect: str, left_out: str = "") -> str:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    argv = ["shellcheck", "-s", dialect, *(["-e", left_out] if left_out else []), str(script)]
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout


@pytest.mark.parametrize("script", OURS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    assert said_by_shellcheck(script, "dash") == ""


@pytest.mark.parametrize("name", TOOLS)
def test_shellcheck_has_nothing_new_to_say_of_the_tools(name: str) -> None:
    assert said_by_shellcheck(SHARE / name, *TOOLS[name]) == ""


def test_no_script_is_forgotten() -> None:
    assert {path.name for path in OURS} >= {"verifier.sh", "deliver.sh", "engine.sh", "base.sh"}
    assert {path.name for path in SHARE.iterdir()} - NO_SCRIPTS == TOOLS.keys()


def test_a_fault_is_reported(tmp_path: Path) -> None:
    (tmp_path / "script.sh").write_text("rm $1\n")
    assert "SC2086" in said_by_shellcheck(tmp_path / "script.sh", "dash")
