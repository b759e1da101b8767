"""docs/reference/protocols.md: a protocol that is added by following the page, in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PAGE = ROOT / "docs" / "reference" / "protocols.md"
NAME = "xml-bash"
COPIED = ("docs", "harness", "tbench", "tests")
_STEP = re.compile(r"(?:^`([\w/.]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def follow(page: str, checkout: Path) -> None:
    """Write each file that the page shows, and apply each change, to the file that was named last."""
    name = ""
    for named, language, block in _STEP.findall(page):
        name = named or name
        if language == "diff":
            apply(block.splitlines(), checkout / name)
        elif named:
            assert not (checkout / name).exists()
            (checkout / name).write_text(block, encoding="utf-8")


def apply(change: list[str], file: Path) -> None:
    before, after = ("\n".join(line[1:] for line in change if line[:1] != sign) for sign in "+-")
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1, (file, before)
    file.write_text(text.replace(before, after), encoding="utf-8")


def run(checkout: Path, *words: str) -> str:
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "tests")])}
    argv = [sys.executable, "-P", "-m", *words]
    done = subprocess.run(
        argv, cwd=checkout, env=surroundings, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "data"))
    for name in ("images", "reports", "tasks", "tests/data", "README.md", "CHANGELOG.md", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.slow
def test_a_protocol_that_is_added_as_the_page_says_passes_all_tests_of_protocols(checkout: Path) -> None:
    follow(PAGE.read_text(encoding="utf-8"), checkout)
    run(checkout, "settings_tables")
    tested = [*map(str, (checkout / "tests" / "harness").glob("test_*.py")), "tests/demo", "tests/exchange"]
    said = run(checkout, "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not engine", "-k", NAME, *tested)
    assert int(re.findall(r"(\d+) passed", said)[0]) >= 10
    documented = ["-k", "protocol or settings or name_that_can_be_looked_up", "tests/test_docs.py"]
    run(checkout, "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *documented)
    assert NAME in run(checkout, "tbench", "run", "--help")
    assert NAME in run(checkout, "tbench", "config", "schema")


@pytest.mark.slow
def test_a_protocol_without_a_description_is_noticed(checkout: Path) -> None:
    page = PAGE.read_text(encoding="utf-8").partition("\n## The description\n")[0]
    follow(page, checkout)
    with pytest.raises(AssertionError, match="test_every_protocol_has_a_row_and_a_paragraph"):
        run(checkout, "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "every_protocol", "tests/test_docs.py")
