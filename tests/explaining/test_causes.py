"""The rules that give a failed trial its cause: each by itself, and which comes first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.trajectory import Outcome, Reply, Step, ToolCall, Usage
from tbench.errors import KINDS, TrialError
from tbench.explaining.causes import BY_KEY, MODEL, RULES, Evidence, KnownLimits, cause_key, find_cause
from tbench.explaining.trials import Trial
from tbench.results import ErrorInfo, HostSample

PAGE = Path(__file__).parents[2] / "docs" / "explaining.md"
LIMITS = KnownLimits(32768, 4096, 100, 5, 60_000, 120.0)
PRESSED, CALM = HostSample(load_max=3.5), HostSample(load_max=0.4)


def a_step(index: int, **known: Any) -> Step:
    reply = {
        name: known.pop(name)
        for name in ("content", "reasoning", "cut", "signs", "usage", "tool_calls")
        if name in known
    }
    return Step(index=index, reply=Reply(**{"content": "x", **reply}), **known)


def failed(written: Sequence[Step] = (), test: str = "", *, error: str | None = None, **known: Any) -> Evidence:
    """A failed trial; `error` is the type of its error."""
    info = ErrorInfo.of(TrialError(error, "what went wrong")) if error is not None else None
    values = {
        "outcome": None if error else Outcome.SUBMITTED,
        "reward": None if error else 0.0,
        "steps": 9,
        "replies": 9,
    }
    trial = Trial(run=0, task="t", seed=0, attempt=1, error=info, **{**values, **known})
    return Evidence(trial, LIMITS, lambda: written, lambda: test)


CASES: dict[str, Evidence] = {
    "no_result": Evidence(Trial(run=0, task="t", seed=0)),
    "not_counted": failed(error="aborted"),
    "tampering": failed(tamper=("reward-written: /logs/verifier/reward.txt",)),
    "machine": failed(outcome=Outcome.AGENT_TIMEOUT, host=PRESSED),
    "request_timeout": failed(error="reply_timeout"),
    "endpoint": failed(error="endpoint_unavailable"),
    "infrastructure": failed(error="sandbox_lost"),
    "setup": failed(error="internal"),
    "task": failed(error="verifier_timeout", host=CALM),
    "out_of_memory": failed(out_of_memory=True),
    "disk_limit": failed(outcome=Outcome.DISK_LIMIT),
    "context_full": failed(outcome=Outcome.CONTEXT_LIMIT),
    "reply_cut": failed(outcome=Outcome.STEP_LIMIT, signs={"cut": 3}),
    "parser": failed(outcome=Outcome.FORMAT_LIMIT, signs={"raw_tool_call": 6}),
    "format_errors": failed(outcome=Outcome.FORMAT_LIMIT),
    "token_limit": failed(outcome=Outcome.TOKEN_LIMIT),
    "step_limit": failed(outcome=Outcome.STEP_LIMIT),
    "agent_timeout": failed(outcome=Outcome.AGENT_TIMEOUT, host=CALM),
    "command_limit": failed([a_step(1, actions=("make test",), command_sec=120.0)], command_sec=130.0),
    "no_submission": failed([a_step(1)], steps=1),
    MODEL: failed(),
}
"""A trial for each rule."""


@pytest.mark.parametrize("key", BY_KEY)
def test_each_rule_holds_for_its_trial_and_proves_it(key: str) -> None:
    found = find_cause(CASES[key])
    assert found.key == key
    assert found.words.strip() and "\n" not in found.words


def test_every_rule_has_a_trial_and_the_model_is_the_last() -> None:
    assert list(CASES) == [rule.key for rule in RULES]
    assert RULES[-1].key == MODEL
    assert len(BY_KEY) == len(RULES)


@pytest.mark.parametrize("error", [kind for kind in KINDS if kind != "verifier_tampered"])
def test_every_error_has_a_cause_other_than_the_model_unless_it_is_the_agents(error: str) -> None:
    assert (cause_key(failed(error=error)) == MODEL) is (str(KINDS[error].blame) == "agent")


@pytest.mark.parametrize("outcome", [each for each in Outcome if each not in (Outcome.SUBMITTED, Outcome.FINISHED)])
def test_every_limit_has_a_cause_of_its_own(outcome: Outcome) -> None:
    assert cause_key(failed(outcome=outcome, host=CALM)) != MODEL


@pytest.mark.parametrize(
    ("evidence", "key"),
    [
        (failed(error="verifier_timeout", host=PRESSED), "machine"),
        (failed(outcome=Outcome.AGENT_TIMEOUT, host=HostSample(clock_jump_sec=60.0)), "machine"),
        (failed(outcome=Outcome.AGENT_TIMEOUT, host=CALM, signs={"cut": 9}), "reply_cut"),
        (failed(outcome=Outcome.CONTEXT_LIMIT, signs={"cut": 9}), "context_full"),
        (failed(outcome=Outcome.CONTEXT_LIMIT, out_of_memory=True), "out_of_memory"),
        (failed(tamper=("reward-written: x",), outcome=Outcome.STEP_LIMIT), "tampering"),
        (failed(signs={"prompt_truncated": 2}), "context_full"),
        (failed(remarks=("tool-failure: a download failed",)), "infrastructure"),
        (failed(error="request_too_large"), "endpoint"),
        (failed(outcome=Outcome.FORMAT_LIMIT, signs={"cut": 2}), "format_errors"),
        (failed(outcome=Outcome.FORMAT_LIMIT, signs={"cut": 3}), "reply_cut"),
    ],
)
def test_the_first_rule_that_holds_decides(evidence: Evidence, key: str) -> None:
    assert cause_key(evidence) == key


@pytest.mark.parametrize(
    "evidence",
    [
        failed(host=PRESSED),
        failed(signs={"cut": 9}),
        failed(signs={"raw_tool_call": 9}),
        failed([a_step(1, actions=("sleep 1",), command_sec=1.0)] * 4, command_sec=400.0),
        failed([a_step(1, actions=("ls",))], steps=1),
    ],
    ids=["under load", "cut", "unparsed", "long commands", "one step"],
)
def test_what_a_submitted_trial_had_to_put_up_with_is_not_guessed_to_be_the_cause(evidence: Evidence) -> None:
    assert cause_key(evidence) == MODEL


def test_the_last_unusable_replies_decide_whether_cut_replies_ended_the_trial() -> None:
    cut = [a_step(at, cut=True, format_error="reply_cut") for at in range(1, 4)]
    other = [a_step(at, format_error="no_json") for at in range(4, 9)]
    known = {"outcome": Outcome.FORMAT_LIMIT, "signs": {"cut": 3}}
    assert cause_key(failed([*cut, *other], **known)) == "format_errors"
    found = find_cause(failed([*other, *cut], **known))
    assert (found.key, found.step) == ("reply_cut", 3)
    assert "3 of 9 replies were cut at 4,096 tokens" in found.words


def test_steps_are_read_only_where_a_rule_needs_them() -> None:
    def forbidden() -> Sequence[Step]:
        raise AssertionError("read")

    for evidence in (CASES["machine"], CASES["request_timeout"], CASES["step_limit"], failed(signs={"cut": 1})):
        assert cause_key(Evidence(evidence.trial, LIMITS, forbidden))
    unread = Evidence(CASES["reply_cut"].trial, LIMITS, forbidden, may_read=False)
    assert find_cause(unread).key == "reply_cut"


def test_the_proof_names_numbers_and_the_step() -> None:
    usage = Usage(prompt_tokens=32_000, completion_tokens=768)
    found = find_cause(failed([a_step(7, usage=usage)], outcome=Outcome.CONTEXT_LIMIT, steps=7))
    assert (found.step, "32,768" in found.words, "32,000" in found.words) == (7, True, True)
    assert find_cause(failed(test="test_sum: 3 is not 4")).words.endswith("reward 0; test_sum: 3 is not 4")
    assert find_cause(CASES["no_submission"]).words == "submitted without typing anything"
    assert "make test" in find_cause(CASES["command_limit"]).words
    spoken = failed([a_step(2, signs=("raw_tool_call",), tool_calls=(ToolCall(id="1", name="x", arguments="{}"),))],
                    outcome=Outcome.STEP_LIMIT, signs={"raw_tool_call": 9})  # fmt: skip
    assert find_cause(spoken).step == 2


def test_the_page_has_every_rule_in_order_with_its_party() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    shown = [(row[0], row[1], row[3]) for row in cells if len(row) == 5]
    assert shown == [(rule.key, rule.title, rule.party) for rule in RULES]
