"""confirming: causes of failed trials that forks prove, in real containers, and what cannot be confirmed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from compared_runs import store_run
from run_trees import a_result, write_run

import tbench
from harness.model import ServedModel
from harness.trajectory import Outcome
from tbench.api.confirming import confirm
from tbench.demo.server import DemoEndpoint
from tbench.explaining.confirmations import store_confirmation
from tbench.explaining.explanation import Confirmation
from tbench.sandbox.docker.engine import Engine
from tbench.storage.run_files import CONFIRMED_NAME

FEW, ENOUGH = 1, 50
"""Steps with which the demo fails at tidy-notes, and with which it passes."""


@pytest.fixture
def demo() -> Iterator[DemoEndpoint]:
    with DemoEndpoint({task.name: task.instruction for task in tbench.read_tasks("bundled").tasks}) as demo:
        yield demo


async def run_tidy_notes(demo: DemoEndpoint, directory: Path, steps: int) -> Path:
    """Run the bundled task with two seeds and a step limit."""
    (task,) = tbench.read_tasks("bundled", include=["tidy-notes"]).tasks
    config = tbench.RunConfig().with_values(
        model={"base_url": demo.base_url}, limits={"steps": steps}, verify={"mode": "shared"}
    )
    async with tbench.Runner(config, directory=directory) as runner:
        for seed in (0, 1):
            await runner.trial(task, seed=seed)
    return directory


@pytest.mark.slow
@pytest.mark.engine
async def test_forks_without_the_cause_pass_and_with_it_fail_again(
    demo: DemoEndpoint, engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    old = await run_tidy_notes(demo, tmp_path / "old", ENOUGH)
    new = await run_tidy_notes(demo, tmp_path / "new", FEW)
    found = tbench.explain(new, old)
    said: list[str] = []
    confirmed = await confirm(found, 5, directory=tmp_path / "forks", say=said.append)
    assert confirmed.difference is not None
    (part,) = confirmed.difference.parts
    outcome = part.confirmed
    assert outcome is not None and part.cause == outcome.cause == "step_limit"
    assert (outcome.trials, outcome.forks, outcome.passed) == (2, 2, 2)
    assert (outcome.unchanged_forks, outcome.unchanged_passed, outcome.failed) == (2, 0, ())
    assert outcome.words == "of 2 such trials 2 pass (1 to 2) when limits.steps is 50, and 0 without this change"
    assert said[0].startswith("confirming with 4 forks, one after the other; as in their runs")
    assert said[1] == "  step limit: 2 of 2 trials, when limits.steps is 50 and as many without this change"
    # It is kept with the run, and costs nothing to see again: alone, where the remedy is another, and in a comparison.
    assert tbench.explain(new, old) == confirmed
    assert [each.confirmed for each in tbench.explain(new).lost] == [outcome]


@pytest.mark.slow
@pytest.mark.engine
async def test_forks_that_fail_are_one_line_and_the_explanation_stays(
    demo: DemoEndpoint, engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    new = await run_tidy_notes(demo, tmp_path / "new", FEW)
    found = tbench.explain(new)
    demo.stop()
    said: list[str] = []
    confirmed = await confirm(found, 4, directory=tmp_path / "forks", say=said.append)
    words = "step limit: no fork of 2 such trials could be judged when limits.steps is 2"
    assert words in said
    (failure,) = [line for line in said if "a fork failed" in line]
    assert failure.startswith("step limit: a fork failed: endpoint: ")
    assert confirmed == found


def failing_run(folder: Path, rows: Mapping[str, Outcome], **settings: Any) -> Path:
    results = [a_result(task, 0, 0.0, outcome=outcome, steps=3) for task, outcome in rows.items()]
    return write_run(folder, results, dict.fromkeys(rows, "h"), (0,), **settings)


async def test_causes_that_nothing_removes_are_said_and_nothing_starts(tmp_path: Path) -> None:
    served = ServedModel(id="m", context_tokens=8192)
    rows = {"a": Outcome.TERMINAL_LOST, "b": Outcome.SUBMITTED}
    run = failing_run(tmp_path / "run", rows, served=served, base_url="http://127.0.0.1:9/v1")
    said: list[str] = []
    with pytest.raises(tbench.UsageError, match="no cause can be confirmed with 4 forks"):
        await confirm(tbench.explain(run), 4, say=said.append)
    assert said == [
        "infrastructure: not confirmed: no setting or server removes this cause",
        "verifier's tests: not confirmed: it needs another server; start one without this cause, and give "
        "--base-url URL",
    ]
    assert not (run / CONFIRMED_NAME).exists()


async def test_imported_results_cannot_be_forked(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"task": "t", "seed": 0, "reward": 0}\n')
    with pytest.raises(tbench.UsageError, match="imported results cannot be forked"):
        await confirm(tbench.explain(tmp_path / "r.jsonl"), 2)


async def test_a_server_without_more_context_removes_nothing(demo: DemoEndpoint, tmp_path: Path) -> None:
    rows = {"a": Outcome.CONTEXT_LIMIT}
    old = write_run(
        tmp_path / "old", [a_result("a", 0, 1.0)], {"a": "h"}, (0,), served=ServedModel(id="m", context_tokens=65536)
    )
    run = failing_run(tmp_path / "run", rows, served=ServedModel(id="scripted-demo", context_tokens=32768))
    said: list[str] = []
    with pytest.raises(tbench.UsageError):
        await confirm(tbench.explain(run, old), 4, base_url=demo.base_url, say=said.append)
    assert said == [f"context full: not confirmed: {demo.base_url} serves 32768 tokens, the run had 32768; serve more"]


def test_a_confirmation_is_read_again_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    run = store_run(tmp_path / "run", {"a": (0.0,)})
    known = Confirmation(
        cause="model",
        when="another answers",
        of=20,
        trials=11,
        forks=11,
        passed=7,
        low=0.354,
        high=0.848,
        directory="d",
    )
    store_confirmation(run, known)
    (lost,) = tbench.explain(run).lost
    assert lost.confirmed == known
    assert known.words == "of 11 such trials 7 pass (4 to 9) when another answers"
    (run / CONFIRMED_NAME).write_text("{")
    (lost,) = tbench.explain(run).lost
    assert lost.confirmed is None
