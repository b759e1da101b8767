"""Combination of the verdicts of two containers, and comparison with the oracle's passes."""

from __future__ import annotations

from typing import Any

import pytest

from tbench.config.settings import Keep, Verify
from tbench.errors import TrialError
from tbench.results import Integrity
from tbench.sandbox.fake import FakeSandbox
from tbench.tasks.task import Task
from tbench.verify.calibration import Calibration
from tbench.verify.changes.facts import OracleSystem
from tbench.verify.policy import _merge_verdicts, compare_pass, is_kept, verify_by, weigh_verdicts
from tbench.verify.verifier import Verdict, VerifierFailed

STRONG, WEAK = "tests-changed: x", "failed-tests: x"
REPLACED = {"/usr/bin/cmp": "0123"}


def calibrated(passes_fresh: bool | None, replaced: dict[str, str] | None = None, **more: Any) -> Calibration:
    fresh = {} if passes_fresh is None else {"isolated": float(passes_fresh)}
    trial = {"agent": "oracle", "repetition": 0, "reward": 1.0, "rewards": {"shared": 1.0, **fresh}}
    about = {"task": "t", "task_hash": "h", "image": "i", "architecture": "a", "measured_at": "2026-01-01T00:00Z"}
    return Calibration.model_validate(about | {"trials": [trial | {"replaced": replaced or {}} | more]})


def verdict(reward: float, *signs: str, **integrity: Any) -> Verdict:
    return Verdict(reward, {"verifier/stdout.txt": b""}, Integrity(tamper=signs, **integrity), metrics={"m": reward})


def kinds(found: Verdict) -> list[str]:
    return [sign.partition(":")[0] for sign in found.integrity.tamper]


@pytest.mark.parametrize(
    ("rewards", "signs", "expected"),
    [
        ((0.0, 0.0), (), (0.0, [])),
        ((0.5, 0.7), (STRONG,), (0.7, ["tests-changed"])),
        ((1.0, 0.0), (), (1.0, ["needs-system"])),
        ((1.0, 0.0), (WEAK,), (1.0, ["failed-tests", "needs-system"])),
        ((1.0, 0.0), (STRONG,), (0.0, ["tests-changed", "disagreement"])),
    ],
)
def test_a_pass_only_in_the_agents_container_counts_without_strong_signs(
    rewards: tuple[float, float], signs: tuple[str, ...], expected: tuple[float, list[str]]
) -> None:
    shared, fresh = rewards
    found = _merge_verdicts(verdict(shared, *signs), verdict(fresh, rewards={"isolated": fresh}))
    assert (found.reward, kinds(found)) == expected
    assert found.integrity.rewards == {"shared": shared, "isolated": fresh}
    assert found.metrics == {"m": found.reward} and "isolated/verifier/stdout.txt" in found.files


@pytest.mark.parametrize(
    ("fresh", "oracle", "expected"),
    [
        (0.0, calibrated(True), (0.0, ["disagreement"])),
        (0.5, calibrated(True), (0.5, ["disagreement"])),
        (0.0, calibrated(False), (1.0, ["needs-system"])),
        (None, calibrated(False), (1.0, ["needs-system"])),
    ],
)
def test_a_pass_only_in_the_agents_container_counts_if_the_oracle_fails_in_a_fresh_one(
    fresh: float | None, oracle: Calibration, expected: tuple[float, list[str]]
) -> None:
    other = None if fresh is None else verdict(fresh)
    found = weigh_verdicts(verdict(1.0), other, oracle, needs_system=True)
    assert (found.reward, kinds(found)) == expected


@pytest.mark.parametrize(
    ("oracle", "expected"),
    [
        (None, ["needs-system"]),
        (calibrated(False), ["needs-system", "system-replaced"]),
        (calibrated(False, {"/usr/bin/cmp": "4567"}), ["needs-system", "system-replaced"]),
        (calibrated(False, REPLACED), ["needs-system"]),
        (calibrated(False, {f"/usr/bin/{number}": "" for number in range(100)}), ["needs-system"]),
    ],
)
def test_replaced_system_files_are_a_sign_unless_the_oracle_replaces_them_too(
    oracle: Calibration | None, expected: list[str]
) -> None:
    found = weigh_verdicts(verdict(1.0, replaced=REPLACED), verdict(0.0), oracle, needs_system=True)
    assert (found.reward, kinds(found)) == (1.0, expected)
    assert ("/usr/bin/cmp" in "".join(found.integrity.tamper)) is (expected != ["needs-system"] or oracle is None)


@pytest.mark.parametrize(
    ("reward", "sign", "oracle", "expected"),
    [
        (1.0, STRONG, calibrated(True, signs=(STRONG,)), ["cleared"]),
        (1.0, STRONG, calibrated(True), [STRONG.partition(":")[0]]),
        (0.0, STRONG, calibrated(True, signs=(STRONG,)), [STRONG.partition(":")[0]]),
        (1.0, "unconfirmed: no verdict in a fresh container: x", calibrated(True), ["disagreement"]),
        (1.0, "unconfirmed: no verdict in a fresh container: x", calibrated(False), ["unconfirmed"]),
        (1.0, WEAK, calibrated(True, tests={"": {"t::a": "passed"}}), ["failed-tests", "unlike-oracle"]),
    ],
)
def test_a_pass_is_compared_with_the_oracles(
    make_task: Any, reward: float, sign: str, oracle: Calibration, expected: list[str]
) -> None:
    assert kinds(compare_pass(verdict(reward, sign), oracle, Task.read(make_task()))) == expected


@pytest.mark.parametrize(("policy", "expected"), [("shared", "cleared"), ("both", STRONG.partition(":")[0])])
def test_a_sign_that_was_cleared_for_the_oracle_is_usual_only_without_a_fresh_container(
    make_task: Any, policy: Verify, expected: str
) -> None:
    found = compare_pass(
        verdict(1.0, STRONG, verify=policy), calibrated(True, cleared=(STRONG,)), Task.read(make_task())
    )
    assert kinds(found) == [expected]


# -- choice of containers ------------------------------------------------------------------------

INFRA = TrialError("engine_unreachable", "gone")
AGENTS = VerifierFailed("verifier_timeout", "too long", {}, Integrity(tamper=(WEAK,)))
Given = float | TrialError | None
"""A reward, or an error to raise; None for a container that must not be used."""


@pytest.fixture
def judged(make_task: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Verify with given results of a fresh container and of the agent's own."""

    async def judge(policy: Verify, fresh: Given, own: Given, oracle: Calibration | None, *signs: str) -> Verdict:
        class Judge:
            def __init__(self, _task: Task, _sandbox: FakeSandbox, again: bool, oracle: OracleSystem) -> None:
                assert not again and not oracle.is_own

            async def judge_in_fresh_container(self) -> Verdict:
                return verdict_of(fresh)

            async def judge_in_agent_container(self) -> Verdict:
                return verdict_of(own, *signs)

            async def try_control_in_agent_container(self, found: Verdict) -> Verdict:
                return found.with_integrity(rewards={"control": 0.0}) if found.reward == 1 else found

        monkeypatch.setattr("tbench.verify.policy.Judge", Judge)
        return await verify_by(policy, Task.read(make_task()), FakeSandbox(), oracle=oracle)

    def verdict_of(given: Given, *signs: str) -> Verdict:
        assert given is not None, "this container must not be used"
        if isinstance(given, TrialError):
            raise given
        return verdict(given, *signs, replaced=REPLACED)

    return judge


@pytest.mark.parametrize(
    ("policy", "fresh", "own", "oracle", "reward", "signs"),
    [
        ("shared", None, 1.0, None, 1.0, ["unconfirmed"]),
        ("shared", None, 0.0, None, 0.0, []),
        ("shared", None, 1.0, calibrated(True), 1.0, ["unconfirmed"]),
        ("shared", None, 1.0, calibrated(False), 1.0, ["unconfirmed"]),
        ("isolated", 1.0, None, None, 1.0, []),
        ("isolated", 0.0, None, calibrated(False), 0.0, []),
        ("both", 1.0, None, None, 1.0, []),
        ("both", 1.0, None, calibrated(None), 1.0, []),
        ("both", 0.0, 0.0, None, 0.0, []),
        ("both", 0.5, 0.0, None, 0.5, []),
        ("both", 0.5, 0.5, None, 0.5, []),
        ("both", 0.0, 1.0, None, 1.0, ["needs-system"]),
        ("both", 0.0, AGENTS, None, 0.0, []),
        ("both", AGENTS, 1.0, None, 1.0, ["failed-tests", "unconfirmed"]),
        ("both", AGENTS, 0.0, None, 0.0, []),
        ("both", 0.0, None, calibrated(True), 0.0, []),
        ("both", 0.5, None, calibrated(True), 0.5, []),
        ("both", None, 1.0, calibrated(False), 1.0, ["needs-system", "system-replaced"]),
        ("both", None, 0.0, calibrated(False), 0.0, []),
    ],
)
async def test_the_agents_container_is_used_if_the_fresh_one_does_not_decide(
    judged: Any, policy: Verify, fresh: Given, own: Given, oracle: Calibration | None, reward: float, signs: list[str]
) -> None:
    found = await judged(policy, fresh, own, oracle)
    assert (found.reward, kinds(found), found.integrity.verify) == (reward, signs, policy)
    if policy == "both" and isinstance(fresh, float):
        assert found.integrity.rewards["isolated"] == fresh
    # Without a fresh container that decides, control tests run in the agent's own.
    assert ("control" in found.integrity.rewards) is (policy == "both" and own == 1.0)
    if (fresh, own) == (0.0, AGENTS):
        assert "agent's own container: verifier_timeout: too long" in found.integrity.remarks[0]


async def test_a_pass_only_in_the_agents_container_does_not_count_with_a_strong_sign(judged: Any) -> None:
    found = await judged("both", 0.0, 1.0, None, STRONG)
    assert (found.reward, kinds(found)) == (0.0, ["tests-changed", "disagreement"])


@pytest.mark.parametrize(
    ("policy", "fresh", "own", "oracle", "raised"),
    [
        ("shared", None, AGENTS, None, AGENTS),
        ("isolated", AGENTS, None, None, AGENTS),
        ("both", INFRA, None, None, INFRA),
        ("both", AGENTS, None, calibrated(True), AGENTS),
        ("both", INFRA, None, calibrated(True), INFRA),
        ("both", 0.0, INFRA, None, INFRA),
        ("both", AGENTS, INFRA, None, INFRA),
        ("both", INFRA, 1.0, None, INFRA),
        ("both", None, AGENTS, calibrated(False), AGENTS),
    ],
)
async def test_a_missing_verdict_of_a_required_container_is_an_error(
    judged: Any, policy: Verify, fresh: Given, own: Given, oracle: Calibration | None, raised: TrialError
) -> None:
    with pytest.raises(TrialError) as caught:
        await judged(policy, fresh, own, oracle)
    assert caught.value is raised


async def test_if_both_containers_fail_the_error_of_the_agents_own_is_raised(judged: Any) -> None:
    own = VerifierFailed("verifier_no_reward", "none", {})
    with pytest.raises(VerifierFailed) as caught:
        await judged("both", AGENTS, own, None)
    assert caught.value is own


@pytest.mark.parametrize(
    ("keep", "reward", "kept"),
    [
        ("none", 0.0, False), ("none", None, False), ("all", 1.0, True), ("all", None, True),
        ("failed", 1.0, False), ("failed", 0.99, True), ("failed", None, True),
    ],
)  # fmt: skip
def test_containers_are_kept_by_reward(keep: Keep, reward: float | None, kept: bool) -> None:
    assert is_kept(keep, reward) is kept
