"""Reads the reward that a verifier wrote, and tells a 0 from tests that never ran.

The reward file is the only truth: the script's exit code means nothing, and no words in its output overturn a number,
as they may be the agent's programs'.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from tbench.errors import TrialError

Logs = Mapping[str, bytes]
"""Files of /logs/verifier by name."""

_PYTEST_SUMMARY = re.compile(
    r"\b\d+ (?:passed|failed|error(?:s)?|skipped|xfailed|xpassed)\b.* in [\d.]+\s?s", re.IGNORECASE
)
_OTHER_RUNNERS = re.compile(
    r"^(?:ok|not ok) \d+|^Ran [1-9]\d* tests? in|\bcollected [1-9]\d* items?|^(?:PASS(?:ED)?|FAIL(?:ED)?)\b",
    re.MULTILINE,
)
_TOOL_FAILURES = (
    (re.compile(r"Could not get lock /var/lib/(?:dpkg|apt)"), "another process holds the dpkg lock"),
    (re.compile(r"dpkg was interrupted"), "dpkg was interrupted and is half configured"),
    (re.compile(r"No space left on device"), "the disk is full"),
    (re.compile(r"Temporary failure (?:in name resolution|resolving)|Could not resolve"), "names cannot be resolved"),
    (re.compile(r"(?i)certificate.verify.failed|SSL certificate problem"), "no trusted CA certificate"),
    (re.compile(r"getcwd: cannot access parent directories|cannot access parent"), "the working directory was deleted"),
    (re.compile(r"(?:curl|uvx?|pytest|python3?): (?:command )?not found"), "a tool of the verifier is missing"),
    (re.compile(r"Unable to (?:fetch|locate)|Failed to (?:fetch|download)|error sending request"), "a download failed"),
)  # fmt: skip


def read_reward(logs: Logs, *, calls_pytest: bool = False) -> float:
    """The reward from reward.json (wins) or reward.txt. Raises TrialError where they hold none.

    reward.json is a flat object of finite numbers; its `reward` counts, or its only number. A 0 of a script that calls
    pytest has to come with a sign that tests ran.
    """
    if "reward.json" in logs:
        reward = _json_reward(logs)
    elif "reward.txt" in logs:
        reward = _text_reward(logs)
    else:
        raise TrialError("verifier_no_reward", f"no reward.json or reward.txt; {_last_line(logs)}")
    if not math.isfinite(reward):
        raise TrialError("verifier_bad_reward", f"the reward is {reward}")
    if reward == 0.0 and calls_pytest and not _tests_ran(logs):
        why = _tool_failure(logs) or f"no ctrf.json and no pytest summary; {_last_line(logs)}"
        raise TrialError("verifier_never_ran", f"the reward is 0 but no test ran: {why}")
    return reward


def remarks(logs: Logs, reward: float) -> tuple[str, ...]:
    """Doubts about a verdict that stands, `kind: what was seen` each: a 0 that a failed tool may have caused."""
    if reward != 0.0 or _tests_ran(logs) or (failure := _tool_failure(logs)) is None:
        return ()
    return (f"tool-failure: {failure}",)


def _text_reward(logs: Logs) -> float:
    text = logs["reward.txt"].decode("utf-8", "replace").strip()
    if not text:
        raise TrialError("verifier_no_reward", f"reward.txt is empty; {_last_line(logs)}")
    try:
        return float(text)
    except ValueError:
        raise TrialError("verifier_bad_reward", f"reward.txt holds {text[:60]!r}, not one number") from None


def _json_reward(logs: Logs) -> float:
    raw = logs["reward.json"]
    if not raw.strip():
        raise TrialError("verifier_no_reward", f"reward.json is empty; {_last_line(logs)}")
    try:
        rewards = json.loads(raw)
    except (ValueError, RecursionError):
        raise TrialError("verifier_bad_reward", "reward.json is not valid JSON") from None
    if not isinstance(rewards, dict) or not all(_is_finite_number(value) for value in rewards.values()):
        raise TrialError("verifier_bad_reward", "reward.json is not a flat object of finite numbers")
    if "reward" in rewards:
        return float(rewards["reward"])
    if len(rewards) == 1:
        return float(next(iter(rewards.values())))
    raise TrialError("verifier_bad_reward", "reward.json has several numbers and none is named 'reward'")


def _is_finite_number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        # An integer beyond every float.
        return False


def _tests_ran(logs: Logs) -> bool:
    """Whether there is a sign that tests ran: a ctrf.json with tests, or a test runner's words in the output."""
    output = _output(logs)
    found = _PYTEST_SUMMARY.search(output) or _OTHER_RUNNERS.search(output)
    return found is not None or _ctrf_has_tests(logs.get("ctrf.json"))


def _tool_failure(logs: Logs) -> str | None:
    output = _output(logs)
    return next((meaning for pattern, meaning in _TOOL_FAILURES if pattern.search(output)), None)


def _output(logs: Logs) -> str:
    return logs.get("stdout.txt", b"").decode("utf-8", "replace")


def _ctrf_has_tests(raw: bytes | None) -> bool:
    try:
        summary = json.loads(raw or b"{}")["results"]["summary"]
        return int(summary["tests"]) > 0
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _last_line(logs: Logs) -> str:
    last = next((line.strip() for line in reversed(_output(logs).split("\n")) if line.strip()), "")
    return f"its last words: {last[:200]!r}" if last else "it printed nothing"
