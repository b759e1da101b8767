"""The public interface: its names, the cost of their import, and the error if they are hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tbench
import tbench.agent

ROOT = Path(tbench.__file__).parents[1]


def python(code: str, where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python as a user starts it in a directory, which comes first on its path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *(["-c", code] if code else arguments)],
        cwd=where, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_every_public_name_exists_and_has_a_docstring() -> None:
    assert tbench.__all__ == sorted(tbench.__all__) == dir(tbench)
    for name in tbench.__all__:
        assert name == "__version__" or (getattr(tbench, name).__doc__ or "").strip(), name
    assert all(hasattr(tbench.agent, name) for name in tbench.agent.__all__)


def test_these_names_are_promised() -> None:
    promised = {"read_tasks", "RunConfig", "Runner", "TrialFailed", "TrialRecord", "summarise", "read_run"}
    assert promised <= set(tbench.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tbench' has no attribute 'Runnner'"):
        tbench.Runnner  # type: ignore[attr-defined]  # noqa: B018


def test_importing_tbench_loads_nothing_heavy(tmp_path: Path) -> None:
    done = python("import sys, tbench; print(*sys.modules)", tmp_path)
    assert not {"pydantic", "docker", "openai", "tbench.config"} & set(done.stdout.split())


@pytest.mark.parametrize("name", ["harness", "reports"])
def test_a_folder_that_hides_a_package_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    done = python("", tmp_path, "-m", "tbench", "summary", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"tbench: {tmp_path / name} hides tbench's own package '{name}'; rename it, or start from another directory\n"
    )
    imported = python("import tbench; tbench.Runner", tmp_path)
    assert imported.stderr.splitlines()[-1] == f"ImportError: {done.stderr.strip()}"


def test_a_folder_that_is_no_package_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    assert python("", tmp_path, "-m", "tbench", "--version").returncode == 0
