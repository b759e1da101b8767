"""Whether a reward agrees with what else the tests left."""

from __future__ import annotations

import json

import pytest

from tbench.results import is_weak
from tbench.verify.proof import Proven, prove
from tbench.verify.report import Facts

TOLD_0 = ("+/tests/test.sh:3 echo 0",)
TOLD_1 = ("+/tests/test.sh:3 echo 1",)


def logs(reward: str = "1", **files: str) -> dict[str, bytes]:
    return {"reward.txt": reward.encode()} | {name.replace("_", "."): text.encode() for name, text in files.items()}


def ctrf(failed: int) -> str:
    return json.dumps({"results": {"summary": {"tests": 2, "failed": failed}}})


@pytest.mark.parametrize(
    ("facts", "files", "reward", "kind"),
    [
        (Facts(told=TOLD_0, wrote_last=True), logs(), 0.0, "contradiction"),
        (Facts(exit_code=137, has_watcher=True), logs(), 0.0, "verifier-killed"),
        (Facts(is_cut=True), logs(), 0.0, "trace-cut"),
        (Facts(was_halted=True), logs(), 1.0, "unwitnessed"),
        (Facts(), logs(reward_json='{"reward": 1}', reward_txt="0.5"), 1.0, "other-reward"),
        (Facts(told=TOLD_0), logs(), 1.0, "other-reward"),
        (Facts(), logs(ctrf_json=ctrf(1)), 1.0, "failed-tests"),
        (Facts(), logs(stdout_txt="== 61 failed, 6 passed, 2 errors in 0.1s =="), 1.0, "failed-tests"),
        (Facts(exit_code=137), logs(), 1.0, "verifier-ended"),
        (Facts(outlived=1), logs(), 1.0, "unwitnessed"),
        (Facts(changed_tests=("/tests/x",)), logs(), 1.0, "tests-changed"),
        (Facts(new_tests=("/tests/conftest.py",)), logs(), 1.0, "tests-changed"),
        (Facts(forged=("it was",)), logs(), 1.0, "forgery"),
        (Facts(evidence=("/logs/verifier/reward.txt",)), logs(), 1.0, "planted-reward"),
        (Facts(evidence=("/tests/test.sh",)), logs(), 1.0, "planted-tests"),
    ],
)
def test_what_contradicts_a_reward_is_flagged_and_a_lower_value_counts_only_where_it_is_proven(
    facts: Facts, files: dict[str, bytes], reward: float, kind: str
) -> None:
    proven = prove(facts, files, 1.0)
    assert proven.reward == reward
    assert [sign.partition(":")[0] for sign in proven.signs] == [kind]


@pytest.mark.parametrize(
    ("facts", "kinds"),
    [
        (Facts(exit_code=137, has_watcher=True, leftovers=1), ["verifier-killed"]),
        (Facts(exit_code=137, has_watcher=True), ["verifier-ended"]),
        (Facts(exit_code=137, has_watcher=True, leftovers=1, out_of_memory=True), []),
    ],
    ids=["beside the agent's processes", "beside none", "by the kernel"],
)
def test_a_script_that_was_killed_without_a_reward_is_said_of_the_agent_only_where_its_processes_were(
    facts: Facts, kinds: list[str]
) -> None:
    assert [sign.partition(":")[0] for sign in prove(facts, {}, None).signs] == kinds


@pytest.mark.parametrize(
    ("facts", "files"),
    [
        (Facts(told=TOLD_1, outlived=2), logs()),
        (Facts(exit_code=137, has_watcher=True, has_ended=True), logs()),
        (Facts(), logs(stdout_txt="== 2 failed in 0.1s ==\n== 3 passed in 1s ==\n")),
        (Facts(), logs(ctrf_json=ctrf(0), stdout_txt="== 2 passed in 0.1s ==")),
    ],
)
def test_an_honest_reward_has_no_sign(facts: Facts, files: dict[str, bytes]) -> None:
    assert prove(facts, files, 1.0) == prove(Facts(), logs(), 1.0)


def test_a_part_of_a_reward_may_come_with_failed_tests() -> None:
    assert prove(Facts(), logs("0.5", ctrf_json=ctrf(1)), 0.5).signs == ()


def test_a_pass_of_tests_that_nobody_saw_run_is_flagged() -> None:
    (sign,) = prove(Facts(), logs(), 1.0, calls_pytest=True).signs
    assert sign.startswith("no-test-ran:") and not is_weak(sign)
    assert prove(Facts(), logs(stdout_txt="= 1 passed in 0.1s ="), 1.0, calls_pytest=True).signs == ()


def test_the_word_of_a_test_sh_that_alone_writes_rewards_counts_whatever_it_runs_later() -> None:
    lowered = Proven(0.0, ("contradiction: test.sh wrote 0, but the file says 1",))
    assert prove(Facts(told=TOLD_0), logs(), 1.0, has_witness=True) == lowered
    beside = logs("0", reward_json='{"reward": 1}')
    assert prove(Facts(told=TOLD_0), beside, 1.0, has_witness=True).reward == 0.0
    assert prove(Facts(told=TOLD_0, wrote_last=True), beside, 1.0).reward == 1.0


def test_names_of_files_add_no_line() -> None:
    (sign,) = prove(Facts(changed_tests=("/tests/a\x1b\nforged: b",)), logs(), 1.0).signs
    assert sign.isprintable()


def test_without_a_reward_there_are_signs_all_the_same() -> None:
    proven = prove(Facts(exit_code=137, has_watcher=True), {}, None)
    assert (proven.reward, len(proven.signs)) == (None, 1)


def test_a_reward_whose_writer_was_not_heard_is_flagged() -> None:
    assert prove(Facts(has_watcher=True, told=TOLD_1), logs(), 1.0, has_witness=True).signs == ()
    (sign,) = prove(Facts(has_watcher=True), logs(), 1.0, has_witness=True).signs
    assert sign.startswith("unwitnessed:")
    halted = prove(Facts(has_watcher=True, was_halted=True), logs(), 1.0, has_witness=True)
    assert (halted.reward, halted.signs[0].partition(":")[0]) == (0.0, "trace-cut")
    # A bash that cannot tell is no sign.
    assert prove(Facts(), logs(), 1.0, has_witness=True).signs == ()
