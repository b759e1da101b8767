"""What a trial of Harbor, or a step of its task, came to: a reward, or an error where there is none."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from harness.trajectory import Outcome
from tbench.exchange.importing.harbor.exceptions import (
    OUTCOMES,
    error,
    error_of,
    is_out_of_memory,
    voids_a_zero,
    words,
)
from tbench.exchange.importing.harbor.records import HarborTrial, Raised, StepRecord
from tbench.results import ErrorInfo, is_reward
from tbench.text import names_shown
from tbench.verifier_logs import Logs, last_line, tests_ran, tool_failure

DEFAULT_METRIC = "reward"
_CALLS_PYTEST = re.compile(rb"\b(?:pytest|uvx?|ctrf)\b")


@dataclass(frozen=True, slots=True)
class HarborVerdict:
    """What is stored of a verdict; without a reward there is an error."""

    reward: float | None
    metrics: dict[str, float]
    outcome: Outcome | None
    error: ErrorInfo | None
    remarks: tuple[str, ...] = ()
    out_of_memory: bool = False


def judge(record: HarborTrial | StepRecord, raised: Raised | None, metric: str | None, logs: Logs) -> HarborVerdict:
    """The verdict about a trial or a step. `raised` is its exception, and `metric` the reward that counts.

    The reward stands wherever Harbor has one, so that the mean stays what it was: but a 0 that says nothing about the
    agent, because no test ran or because something else ended the trial, is an error.
    """
    rewards = record.verifier_result.rewards if record.verifier_result is not None else None
    outcome = OUTCOMES.get(raised.exception_type) if raised is not None else None
    metrics, reward, problem = _counted(rewards, metric)
    if reward == 0.0:
        problem = _why_a_zero_is_none(record, raised, logs)
    if reward is None or problem is not None:
        error_ = problem if rewards else _why_no_reward(record, raised)
        return HarborVerdict(None, metrics, outcome, error_, out_of_memory=is_out_of_memory(raised))
    return HarborVerdict(reward, metrics, outcome, None, _remarks(raised, reward, logs), is_out_of_memory(raised))


def numbers(rewards: Mapping[str, Any]) -> dict[str, float]:
    """The rewards that can be computed with, by name."""
    found = {}
    for name, value in rewards.items():
        if isinstance(value, int | float) and math.isfinite(value) and is_reward(value):
            found[name] = float(value) + 0.0  # a -0 is a 0
    return found


def name_that_counts(names: Collection[str], metric: str | None) -> str | None:
    """The reward that counts of several names: the one asked for, else `reward`, else the only one; None if unclear."""
    if metric is not None:
        return metric
    if DEFAULT_METRIC in names:
        return DEFAULT_METRIC
    return next(iter(names)) if len(names) == 1 else None


def _counted(
    rewards: Mapping[str, Any] | None, metric: str | None
) -> tuple[dict[str, float], float | None, ErrorInfo | None]:
    """The metrics, the one that counts, and what is wrong where none can be counted."""
    if not rewards:
        return {}, None, None
    known = numbers(rewards)
    metrics = {} if known.keys() <= {DEFAULT_METRIC} else known
    name = name_that_counts(rewards.keys(), metric)
    if name is not None and name in known:
        return metrics, known[name], None
    if name is not None and name in rewards:
        return metrics, None, error("verifier_bad_reward", f"the reward {name!r} is {rewards[name]!r}, no number")
    told = names_shown([repr(each[:60]) for each in sorted(rewards)])
    return metrics, None, error("verifier_bad_reward", f"no reward {name or DEFAULT_METRIC!r}, but {told}")


def _why_a_zero_is_none(record: HarborTrial | StepRecord, raised: Raised | None, logs: Logs) -> ErrorInfo | None:
    if raised is not None and voids_a_zero(raised):
        return error_of(raised, record)
    failure = tool_failure(logs)
    if failure is None or tests_ran(logs) or not _CALLS_PYTEST.search(logs.get("stdout.txt", b"")):
        return None
    return error("verifier_never_ran", f"the reward is 0 but no test ran: {failure}; {last_line(logs)}")


def _why_no_reward(record: HarborTrial | StepRecord, raised: Raised | None) -> ErrorInfo:
    if raised is not None and raised.exception_type not in OUTCOMES:
        return error_of(raised, record)
    after = f" ({words(raised)})" if raised is not None else ""
    if record.verifier_result is not None:
        return error("verifier_no_reward", f"Harbor has a verdict without a reward{after}")
    if isinstance(record, HarborTrial) and _unverified(record.config):
        return error("verifier_no_reward", "it was run without verification")
    if record.verifier is None:
        return error("verifier_failed", f"lost: no verdict, no exception, and the verifier never began{after}")
    return error("verifier_failed", f"lost: no verdict and no exception of a verifier that had begun{after}")


def _unverified(config: Mapping[str, Any]) -> bool:
    verifier = config.get("verifier")
    return bool(config.get("install_only")) or (isinstance(verifier, dict) and verifier.get("disable") is True)


def _remarks(raised: Raised | None, reward: float, logs: Logs) -> tuple[str, ...]:
    """What makes a reward doubtful though it stands."""
    found = []
    if raised is not None and raised.exception_type not in OUTCOMES:
        found.append(f"exception: {words(raised)}")
    if reward == 0.0 and not tests_ran(logs) and (failure := tool_failure(logs)) is not None:
        found.append(f"tool-failure: {failure}")
    return tuple(found)
