"""Settling: stored verdicts beside the oracle's passes, whenever and however often these were measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_trees import a_result
from step_tasks import step_task

from tbench.results import Integrity, TaskStepResult, TrialResult
from tbench.runs.resume import settle_result
from tbench.tasks.task import Task
from tbench.verify.calibration import Calibration, MeasuredTrial

MakeTask = Any
FRESH, NOT_FRESH = {"shared": 1.0, "isolated": 1.0}, {"shared": 1.0, "isolated": 0.0}
LOWER = "0 in a fresh container, 1 in the agent's own"
UNKNOWN = f"needs-system: {LOWER}; it is not known whether the oracle passes in a fresh one"
NEEDS = f"needs-system: {LOWER}; the oracle's work fails in a fresh one"
DISAGREES = f"disagreement: {LOWER}; the oracle's work passes in a fresh one"
PASSES_FRESH = "; the oracle's work passes in a fresh one"
NO_VERDICT = "no verdict in a fresh container: sandbox_failed: gone"
STRONG = "path-shadowed: /usr/local/bin/python"


def oracle(*, tests: dict[str, Any] | None = None, step: str = "", **more: Any) -> Calibration:
    trial = {"agent": "oracle", "reward": 1.0, "rewards": FRESH, "tests": {step: tests or {}}, **more}
    trials = [MeasuredTrial.model_validate(trial | {"repetition": number}) for number in range(2)]
    known = {"task": "t", "task_hash": "h", "image": "i", "architecture": "a", "measured_at": "2026-01-01T00:00Z"}
    return Calibration.model_validate(known | {"trials": trials})


def a_pass(*tamper: str, verify: Any = "both", reward: float = 1.0, **more: Any) -> TrialResult:
    integrity = Integrity(verify=verify, tamper=tamper, rewards=more.pop("rewards", {}))
    return a_result("small-task", 0, reward, integrity=integrity, **more)


@pytest.fixture
def settle(make_task: MakeTask, tmp_path: Path) -> Any:
    """Settles a result with these verifier files; twice, which must make no difference."""
    task = Task.read(make_task())

    def settle(result: TrialResult, known: Calibration, files: dict[str, str] | None = None) -> TrialResult:
        for name, text in (files or {}).items():
            (tmp_path / "trial" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "trial" / name).write_text(text)
        after = settle_result(result, known, task, tmp_path / "trial")
        assert settle_result(after, known, task, tmp_path / "trial") == after
        return after

    return settle


@pytest.mark.parametrize(
    ("before", "known", "reward", "tamper"),
    [
        # A lower reward from a fresh container, by whether the oracle's work passes there.
        (a_pass(UNKNOWN, rewards=NOT_FRESH), oracle(), 0.0, (DISAGREES,)),
        (a_pass(UNKNOWN, rewards=NOT_FRESH), oracle(rewards=NOT_FRESH), 1.0, (NEEDS,)),
        (a_pass(UNKNOWN, rewards=NOT_FRESH), oracle(reward=0.0, rewards={}), 1.0, (UNKNOWN,)),
        (a_pass(UNKNOWN, rewards=NOT_FRESH), oracle(rewards={}), 1.0, (UNKNOWN,)),
        # A decision based on fewer of its passes is made again.
        (a_pass(DISAGREES, rewards=NOT_FRESH, reward=0.0), oracle(rewards=NOT_FRESH), 1.0, (NEEDS,)),
        (a_pass(NEEDS, rewards=NOT_FRESH), oracle(), 0.0, (DISAGREES,)),
        (
            a_pass(STRONG, DISAGREES, rewards=NOT_FRESH, reward=0.0),
            oracle(rewards=NOT_FRESH), 0.0, (STRONG, f"disagreement: {LOWER}"),
        ),
        # One for which strong signs were the reason has nothing to do with the oracle.
        (
            a_pass(STRONG, f"disagreement: {LOWER}", rewards=NOT_FRESH, reward=0.0),
            oracle(), 0.0, (STRONG, f"disagreement: {LOWER}"),
        ),
        # A sign that each of its passes has says nothing: in its own container also one that a fresh one cleared.
        (a_pass(STRONG), oracle(signs=(STRONG,)), 1.0, (f"cleared: {STRONG}, as with the oracle",)),
        (a_pass(STRONG), oracle(cleared=(STRONG,)), 1.0, (STRONG,)),
        (a_pass(STRONG, verify="shared"), oracle(cleared=(STRONG,)), 1.0, (f"cleared: {STRONG}, as with the oracle",)),
        (a_pass(f"cleared: {STRONG}, as with the oracle"), oracle(), 1.0, (STRONG,)),
        (a_pass("unlike-oracle: of 1 test", verify="shared"), oracle(), 1.0, ("unlike-oracle: of 1 test",)),
        # A pass without a verdict in a fresh container keeps the reason, whatever is known of the oracle.
        (a_pass(f"unconfirmed: {NO_VERDICT}"), oracle(), 1.0, (f"disagreement: {NO_VERDICT}{PASSES_FRESH}",)),
        (
            a_pass(f"disagreement: {NO_VERDICT}{PASSES_FRESH}"),
            oracle(rewards=NOT_FRESH), 1.0, (f"unconfirmed: {NO_VERDICT}",),
        ),
    ],
)  # fmt: skip
def test_the_oracle_decides_about_a_verdict_that_came_before_it(
    settle: Any, before: TrialResult, known: Calibration, reward: float, tamper: tuple[str, ...]
) -> None:
    after = settle(before, known)
    assert (after.reward, after.integrity.tamper) == (reward, tamper)
    assert after.integrity.rewards == before.integrity.rewards


def test_a_pass_has_to_show_the_oracles_tests_in_each_place(settle: Any) -> None:
    known = oracle(tests={"t::test_a": "passed"})
    junit = '<testsuite><testcase classname="t" name="test_b"/></testsuite>'
    ctrf = '{"results": {"tests": [{"name": "t.py::test_a", "status": "passed"}]}}'
    words = "unlike-oracle: of 1 tests that the oracle passes 1 not shown (t::test_a)"
    assert settle(a_pass(), known).integrity.tamper == ()
    shown = settle(a_pass(rewards=FRESH), known, {"verifier/ctrf.json": ctrf, "isolated/verifier/r.xml": junit})
    assert shown.integrity.tamper == (words,)
    # Where the files tell more by now, what was said of them before is nothing.
    files = {"isolated/verifier/ctrf.json": ctrf}
    assert settle(a_pass("unlike-oracle: before", rewards=FRESH), known, files).integrity.tamper == ()


def test_the_numbers_beside_the_reward_are_those_of_the_container_that_decides(settle: Any) -> None:
    files = {"verifier/reward.json": '{"reward": 1, "f": 9}', "isolated/verifier/reward.json": '{"reward": 0, "f": 4}'}
    before = a_pass(UNKNOWN, rewards=NOT_FRESH, metrics={"reward": 1.0, "f": 9.0})
    lower = settle(before, oracle(), files)
    assert (lower.reward, lower.metrics) == (0.0, {"reward": 0.0, "f": 4.0})
    assert settle(lower, oracle(rewards=NOT_FRESH)).metrics == before.metrics


def test_each_step_is_held_to_its_own(make_task: MakeTask, tmp_path: Path) -> None:
    task = Task.read(step_task(make_task, "one", "two"))
    tamper = (f"{UNKNOWN} (step one)", f"{STRONG} (step two)")
    rewards = {"one/shared": 1.0, "one/isolated": 0.0, "two/shared": 1.0, "two/isolated": 1.0}
    before = a_pass(*tamper, rewards=rewards).model_copy(
        update={"task_steps": (TaskStepResult(name="one", reward=1.0), TaskStepResult(name="two", reward=1.0))}
    )
    known = oracle(signs=(f"{STRONG} (step two)",))
    after = settle_result(before, known, task, tmp_path)
    assert [step.reward for step in after.task_steps] == [0.0, 1.0]
    assert (after.reward, after.reward_all_steps) == (0.5, 0.5)
    cleared = f"cleared: {STRONG}, as with the oracle (step two)"
    assert after.integrity.tamper == (f"{DISAGREES} (step one)", cleared)
    assert settle_result(after, known, task, tmp_path) == after
    assert settle_result(before, oracle(rewards={}), task, tmp_path) == before
