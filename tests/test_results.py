"""What a result says about the control tests of its verdict."""

from __future__ import annotations

import pytest

from tbench.results import DISARMED, NO_CONTROL_VERDICT, Integrity, control_lines, is_control


@pytest.mark.parametrize(
    "integrity, words",
    [
        (Integrity(), []),
        (Integrity(rewards={"isolated": 1.0, "shared": 0.0}), []),
        (Integrity(rewards={"control": 0.0}), ["fail, as they must: reward 0"]),
        (Integrity(rewards={"control": 1.0}, tamper=(f"{DISARMED}: x",)), ["pass, although they must fail: reward 1"]),
        (Integrity(rewards={"control-one": 1.0, "control-asserted": 0.5}), ["(one) pass", "(asserted) fail"]),
        (Integrity(rewards={"a/control": 0.0, "b/control": 1.0}), ["step a: ", "step b: "]),
        (Integrity(rewards={"control": 0.0, "a/intact": 0.0}), ["fail, as they must", "step a: the tests with hidden"]),
        (Integrity(tamper=(f"{NO_CONTROL_VERDICT}: verifier_failed",)), ["no verdict, so the pass is unconfirmed"]),
        (Integrity(tamper=(f"{DISARMED}: x",)), ["a test that always fails was added"]),
    ],
)
def test_a_result_says_which_control_tests_ran_and_what_came_of_them(integrity: Integrity, words: list[str]) -> None:
    lines = list(control_lines(integrity))
    assert len(lines) == len(words)
    assert all(each in line for each, line in zip(words, lines, strict=True))


def test_rewards_of_other_modes_are_not_those_of_control_tests() -> None:
    assert not any(map(is_control, ("isolated", "shared", "step/isolated", "controlled", "control/isolated")))
