"""docs/python.md and README.md: their examples of trials run."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import tbench
from tbench.demo.server import DemoEndpoint

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "python.md", ROOT / "README.md"]


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def demo() -> Any:
    tasks = tbench.read_tasks("bundled").tasks
    with DemoEndpoint({task.name: task.instruction for task in tasks}) as endpoint:
        yield endpoint


@pytest.mark.engine
@pytest.mark.parametrize("page", [pytest.param(PAGES[0], marks=pytest.mark.slow), PAGES[1]], ids=lambda page: page.name)
def test_the_notebook_sized_example_runs(
    page: Path, demo: DemoEndpoint, tools_volume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (code,) = [each for each in examples(page) if "runs/from-python" in each]
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace("http://localhost:8000/v1", demo.base_url), str(page), "exec"), {"__name__": "example"})
    said = capsys.readouterr().out
    assert len(re.findall(r"^\S+ [01]\.0 \w+$", said, re.MULTILINE)) == 3
    assert "->" in said and "\nscore " in said
    assert tbench.read_run(tmp_path / "runs" / "from-python").planned_tasks


@pytest.mark.parametrize("about", ["except tbench.TrialFailed", "RunConfig("])
def test_the_other_examples_can_be_executed(about: str) -> None:
    (code,) = [each for each in examples(PAGES[0]) if about in each and "asyncio.run" not in each]
    names: dict[str, Any] = {}
    exec(compile(code, "python.md", "exec"), names)
    assert names


def test_a_failed_trial_is_masked_in_the_example() -> None:
    names: dict[str, Any] = {}
    (code,) = [each for each in examples(PAGES[0]) if "except tbench.TrialFailed" in each]
    exec(compile(code, "python.md", "exec"), names)

    class Failing:
        async def trial(self, task: str, *, seed: int) -> Any:
            error = {"stage": "sandbox", "type": "sandbox_lost", "blame": "infra", "retryable": True, "message": "gone"}
            known = {"run": "r", "trial": "t", "task": task, "seed": seed, "agent": "a", "reward": None, "error": error}
            times = {"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:00Z"}
            raise tbench.TrialFailed(tbench.TrialResult.model_validate(known | times))

    assert asyncio.run(names["reward_of"](Failing(), "alpha", 0)) is None
    assert sys.modules["tbench"] is tbench
