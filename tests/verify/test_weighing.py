"""What rewards from two containers come to, beside what is known of the oracle."""

from __future__ import annotations

from typing import Any

import pytest

from tbench.results import Integrity
from tbench.tasks.task import Task
from tbench.verify.calibration import Calibration
from tbench.verify.policy import _joined, like_oracle, weighed
from tbench.verify.verifier import Verdict

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
