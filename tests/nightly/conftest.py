"""Fixtures for tests of nights."""

from __future__ import annotations

from pathlib import Path

import pytest
from nightly_bench import NightlyBench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NightlyBench:
    monkeypatch.setenv("FAKE_TBENCH", str(tmp_path))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return NightlyBench(tmp_path)
