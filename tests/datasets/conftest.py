"""A cache of each test's own, and a mirror with a few tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_mirrors import Mirror


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's directory; git has no settings but those that a test gives it."""
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    monkeypatch.delenv("TBENCH_TASKS_REGISTRY", raising=False)
    return tmp_path / "cache" / "datasets"


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """Three tasks in `tasks/` with their published digests, one of the same name elsewhere, and other files."""
    made = Mirror(tmp_path / "mirrors")
    for name in ("alpha", "beta", "gamma"):
        made.task(name)
    made.task("alpha", "other", instruction="Another one.\n")
    (made.work / "large").write_bytes(bytes(1 << 16))
    made.publish()
    made.commit()
    return made
