"""What rewards from two containers come to, beside what is known of the oracle."""

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
from tbench.verify.policy import _joined, is_kept, like_oracle, verify_by, weighed
from tbench.verify.verifier import Verdict, VerifierFailed

STRONG, WEAK = "tests-changed: x", "failed-tests: x"
REPLACED = {"/usr/bin/cmp": "0123"}


def known(passes_fresh: bool | None, replaced: dict[str, str] | None = None, **more: Any) -> Calibration:
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
def test_a_pass_in_the_agents_container_beside_a_failure_in_a_fresh_one_counts_where_no_strong_sign_speaks_against_it(
    rewards: tuple[float, float], signs: tuple[str, ...], expected: tuple[float, list[str]]
) -> None:
    shared, fresh = rewards
    found = _joined(verdict(shared, *signs), verdict(fresh, rewards={"isolated": fresh}))
    assert (found.reward, kinds(found)) == expected
    assert found.integrity.rewards == {"shared": shared, "isolated": fresh}
    assert found.metrics == {"m": found.reward} and "isolated/verifier/stdout.txt" in found.files


@pytest.mark.parametrize(
    ("fresh", "oracle", "expected"),
    [
        (0.0, known(True), (0.0, ["disagreement"])),
        (0.5, known(True), (0.5, ["disagreement"])),
        (0.0, known(False), (1.0, ["needs-system"])),
        (None, known(False), (1.0, ["needs-system"])),
    ],
)
def test_a_pass_in_the_agents_container_is_worth_what_the_oracle_says(
    fresh: float | None, oracle: Calibration, expected: tuple[float, list[str]]
) -> None:
    other = None if fresh is None else verdict(fresh)
    found = weighed(verdict(1.0), other, oracle, needs_system=True)
    assert (found.reward, kinds(found)) == expected


@pytest.mark.parametrize(
    ("oracle", "expected"),
    [
        (None, ["needs-system"]),
        (known(False), ["needs-system", "system-replaced"]),
        (known(False, {"/usr/bin/cmp": "4567"}), ["needs-system", "system-replaced"]),
        (known(False, REPLACED), ["needs-system"]),
        (known(False, {f"/usr/bin/{number}": "" for number in range(100)}), ["needs-system"]),
    ],
)
def test_what_replaces_the_system_speaks_against_a_pass_where_the_oracle_does_without(
    oracle: Calibration | None, expected: list[str]
) -> None:
    found = weighed(verdict(1.0, replaced=REPLACED), verdict(0.0), oracle, needs_system=True)
    assert (found.reward, kinds(found)) == (1.0, expected)
    assert ("/usr/bin/cmp" in "".join(found.integrity.tamper)) is (expected != ["needs-system"] or oracle is None)


@pytest.mark.parametrize(
    ("reward", "sign", "oracle", "expected"),
    [
        (1.0, STRONG, known(True, signs=(STRONG,)), ["cleared"]),
        (1.0, STRONG, known(True), [STRONG.partition(":")[0]]),
        (0.0, STRONG, known(True, signs=(STRONG,)), [STRONG.partition(":")[0]]),
        (1.0, "unconfirmed: no verdict in a fresh container: x", known(True), ["disagreement"]),
        (1.0, "unconfirmed: no verdict in a fresh container: x", known(False), ["unconfirmed"]),
        (1.0, WEAK, known(True, tests={"": {"t::a": "passed"}}), ["failed-tests", "unlike-oracle"]),
    ],
)
def test_a_pass_is_held_to_the_oracles(
    make_task: Any, reward: float, sign: str, oracle: Calibration, expected: list[str]
) -> None:
    assert kinds(like_oracle(verdict(reward, sign), oracle, Task.read(make_task()))) == expected


@pytest.mark.parametrize(("policy", "expected"), [("shared", "cleared"), ("both", STRONG.partition(":")[0])])
def test_a_sign_that_a_fresh_container_cleared_of_the_oracle_is_usual_only_where_none_is_asked(
    make_task: Any, policy: Verify, expected: str
) -> None:
    found = like_oracle(verdict(1.0, STRONG, verify=policy), known(True, cleared=(STRONG,)), Task.read(make_task()))
    assert kinds(found) == [expected]


# -- which containers are asked ------------------------------------------------------------------

INFRA = TrialError("engine_unreachable", "gone")
AGENTS = VerifierFailed("verifier_timeout", "too long", {}, Integrity(tamper=(WEAK,)))
Given = float | TrialError | None
"""A reward, or what is raised; None for a container that must not be asked."""


@pytest.fixture
def judged(make_task: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The verdict where a fresh container and the agent's own say what is given, and whatever is raised."""

    async def judge(policy: Verify, fresh: Given, own: Given, oracle: Calibration | None, *signs: str) -> Verdict:
        class Judging:
            def __init__(self, _task: Task, _sandbox: FakeSandbox, again: bool, oracle: OracleSystem) -> None:
                assert not again and not oracle.is_own, "no verifier ran there before, and the work is no oracle's"

            async def in_fresh(self) -> Verdict:
                return said(fresh)

            async def in_own(self) -> Verdict:
                return said(own, *signs)

        monkeypatch.setattr("tbench.verify.policy.Judging", Judging)
        return await verify_by(policy, Task.read(make_task()), FakeSandbox(), oracle=oracle)

    def said(given: Given, *signs: str) -> Verdict:
        assert given is not None, "this container must not be asked"
        if isinstance(given, TrialError):
            raise given
        return verdict(given, *signs, replaced=REPLACED)

    return judge


@pytest.mark.parametrize(
    ("policy", "fresh", "own", "oracle", "reward", "signs"),
    [
        ("shared", None, 1.0, None, 1.0, ["unconfirmed"]),
        ("shared", None, 0.0, None, 0.0, []),
        ("shared", None, 1.0, known(True), 1.0, ["unconfirmed"]),
        ("shared", None, 1.0, known(False), 1.0, ["unconfirmed"]),
        ("isolated", 1.0, None, None, 1.0, []),
        ("isolated", 0.0, None, known(False), 0.0, []),
        ("both", 1.0, None, None, 1.0, []),
        ("both", 1.0, None, known(None), 1.0, []),
        ("both", 0.0, 0.0, None, 0.0, []),
        ("both", 0.5, 0.0, None, 0.5, []),
        ("both", 0.5, 0.5, None, 0.5, []),
        ("both", 0.0, 1.0, None, 1.0, ["needs-system"]),
        ("both", 0.0, AGENTS, None, 0.0, []),
        ("both", AGENTS, 1.0, None, 1.0, ["failed-tests", "unconfirmed"]),
        ("both", AGENTS, 0.0, None, 0.0, []),
        ("both", 0.0, None, known(True), 0.0, []),
        ("both", 0.5, None, known(True), 0.5, []),
        ("both", None, 1.0, known(False), 1.0, ["needs-system", "system-replaced"]),
        ("both", None, 0.0, known(False), 0.0, []),
    ],
)
async def test_the_agents_container_is_asked_where_the_fresh_one_does_not_decide(
    judged: Any, policy: Verify, fresh: Given, own: Given, oracle: Calibration | None, reward: float, signs: list[str]
) -> None:
    found = await judged(policy, fresh, own, oracle)
    assert (found.reward, kinds(found), found.integrity.verify) == (reward, signs, policy)
    if policy == "both" and isinstance(fresh, float):
        assert found.integrity.rewards["isolated"] == fresh
    if (fresh, own) == (0.0, AGENTS):
        assert "agent's own container: verifier_timeout: too long" in found.integrity.remarks[0]


async def test_a_strong_sign_takes_a_pass_of_the_agents_container_alone_away(judged: Any) -> None:
    found = await judged("both", 0.0, 1.0, None, STRONG)
    assert (found.reward, kinds(found)) == (0.0, ["tests-changed", "disagreement"])


@pytest.mark.parametrize(
    ("policy", "fresh", "own", "oracle", "raised"),
    [
        ("shared", None, AGENTS, None, AGENTS),
        ("isolated", AGENTS, None, None, AGENTS),
        ("both", INFRA, None, None, INFRA),
        ("both", AGENTS, None, known(True), AGENTS),
        ("both", INFRA, None, known(True), INFRA),
        ("both", 0.0, INFRA, None, INFRA),
        ("both", AGENTS, INFRA, None, INFRA),
        ("both", INFRA, 1.0, None, INFRA),
        ("both", None, AGENTS, known(False), AGENTS),
    ],
)
async def test_a_container_that_has_to_say_something_and_cannot_is_an_error(
    judged: Any, policy: Verify, fresh: Given, own: Given, oracle: Calibration | None, raised: TrialError
) -> None:
    with pytest.raises(TrialError) as caught:
        await judged(policy, fresh, own, oracle)
    assert caught.value is raised


async def test_where_both_containers_come_to_no_verdict_the_agents_own_error_is_told(judged: Any) -> None:
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
