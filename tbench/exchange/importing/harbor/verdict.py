"""Converts the end of a Harbor trial or task step to a reward or an error of tbench."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from harness.trajectory import Outcome
from tbench.errors import KINDS
from tbench.exchange.importing.harbor.records import HarborTrial, Raised, StepRecord
from tbench.results import Blame, ErrorInfo, Stage, is_reward
from tbench.text import names_text, one_line
from tbench.verifier_logs import Logs, last_line, tests_ran, tool_failure

# Meaning of Harbor's exceptions: an outcome of the agent, or an error that prevented the verdict
#
# Names and groups are from harbor/models/trial/error_policy.py (0.26).

OUTCOMES = {
    "AgentTimeoutError": Outcome.AGENT_TIMEOUT,
    "ContextWindowExceededError": Outcome.CONTEXT_LIMIT,
    "ContextLengthExceededError": Outcome.CONTEXT_LIMIT,
    "OutputTokenExceededError": Outcome.TOKEN_LIMIT,
    "OutputLengthExceededError": Outcome.TOKEN_LIMIT,
    "AgentSafetyRefusalError": Outcome.FINISHED,
    "ContentPolicyViolationError": Outcome.FINISHED,
}
"""Exceptions that are an outcome of the agent, so that its reward counts."""

_TYPES = {
    "image_build_failed": "SandboxBuildFailedError",
    "sandbox_failed": "EnvironmentStartTimeoutError AgentSetupTimeoutError",
    "healthcheck_failed": "HealthcheckError",
    "sandbox_lost": """SandboxLikelyOutOfMemoryError MemoryLimitExceededError SSHAccessError GKEExecStreamClosedError
        GKEPodNotFoundError RuntimeRequestError""",
    "endpoint_unavailable": """ApiError ApiRateLimitError ApiInternalServerError ApiOverloadedError
        ApiConnectionClosedError ApiResponseStalledError UnknownApiError NetworkConnectionError ApiConnectionError
        ApiUsageLimitError RateLimitError InternalServerError ServiceUnavailableError APIConnectionError APIError
        Timeout""",
    "endpoint_refused": """BadRequestError UnprocessableEntityError UnsupportedParamsError APIResponseValidationError
        BudgetExceededError AgentAuthenticationError ModelNotFoundError ApiProviderResourceNotFoundError
        AuthenticationError PermissionDeniedError NotFoundError UnsupportedModelParametersError""",
    "verifier_failed": "AddTestsDirError DownloadVerifierDirError",
    "verifier_timeout": "VerifierTimeoutError",
    "verifier_no_reward": "RewardFileNotFoundError RewardFileEmptyError",
    "verifier_bad_reward": "VerifierOutputParseError",
    "agent_crashed": "NonZeroAgentExitCodeError",
}
_TYPE_OF = {name: type_ for type_, names in _TYPES.items() for name in names.split()}
_OUT_OF_MEMORY = {"SandboxLikelyOutOfMemoryError", "MemoryLimitExceededError"}
_NOT_THE_AGENT = {"image_build_failed", "sandbox_failed", "healthcheck_failed", "sandbox_lost"} | {
    *("endpoint_unavailable", "endpoint_refused", "verifier_failed"),
}
_CANCELLED = "CancelledError"
_BLAMES = {Stage.SANDBOX: Blame.INFRA, Stage.AGENT: Blame.HARNESS, Stage.VERIFIER: Blame.INFRA}
"""Party most likely at fault for an unknown exception; during the agent's phase, the code around the model."""


def _voids_a_zero(raised: Raised) -> bool:
    """Whether a 0 with this exception says nothing about the agent, because something else ended the trial."""
    return raised.exception_type == _CANCELLED or _TYPE_OF.get(raised.exception_type) in _NOT_THE_AGENT


def is_out_of_memory(raised: Raised | None) -> bool:
    return raised is not None and raised.exception_type in _OUT_OF_MEMORY


def describe_exception(raised: Raised) -> str:
    """Describe the exception on one line."""
    return one_line(f"{raised.exception_type}: {raised.exception_message}".rstrip(": "))


def convert_error(raised: Raised, record: HarborTrial | StepRecord) -> ErrorInfo:
    """Convert an exception to an error.

    An unknown exception keeps its name, with the stage in which it occurred. Before the agent began it becomes a
    sandbox error, because exceptions of engines have no specific names.
    """
    if (type_ := _TYPE_OF.get(raised.exception_type)) is not None:
        return error(type_, describe_exception(raised))
    stage = _stage(record)
    if stage is Stage.SANDBOX and raised.exception_type != _CANCELLED:
        return error("sandbox_failed", describe_exception(raised))
    blame = Blame.USER if raised.exception_type == _CANCELLED else _BLAMES[stage]
    retryable = raised.policy is None or raised.policy.should_retry is not False
    return ErrorInfo(
        stage=stage, type=raised.exception_type, blame=blame, retryable=retryable, message=describe_exception(raised)
    )


def error(type_: str, message: str) -> ErrorInfo:
    """Create an error of a tbench type."""
    kind = KINDS[type_]
    return ErrorInfo(
        stage=kind.stage, type=type_, blame=kind.blame, retryable=kind.retryable, message=one_line(message)
    )


def _stage(record: HarborTrial | StepRecord) -> Stage:
    """Return the last stage that had begun."""
    if record.verifier is not None:
        return Stage.VERIFIER
    return Stage.AGENT if record.agent_execution is not None else Stage.SANDBOX


DEFAULT_METRIC = "reward"
_CALLS_PYTEST = re.compile(rb"\b(?:pytest|uvx?|ctrf)\b")


@dataclass(frozen=True, slots=True)
class HarborVerdict:
    """The stored part of a verdict: a reward, or else an error."""

    reward: float | None
    metrics: dict[str, float]
    outcome: Outcome | None
    error: ErrorInfo | None
    remarks: tuple[str, ...] = ()
    out_of_memory: bool = False


def judge(record: HarborTrial | StepRecord, raised: Raised | None, metric: str | None, logs: Logs) -> HarborVerdict:
    """Convert the verdict of a trial or task step. `raised` is its exception, `metric` the reward that counts.

    Harbor's reward is kept, so that the mean stays the same. Only a 0 that says nothing about the agent, because no
    test ran or something else ended the trial, becomes an error.
    """
    rewards = record.verifier_result.rewards if record.verifier_result is not None else None
    outcome = OUTCOMES.get(raised.exception_type) if raised is not None else None
    metrics, reward, problem = _read_rewards(rewards, metric)
    if reward == 0.0:
        problem = _why_zero_is_void(record, raised, logs)
    if reward is not None and not _is_valid(record, raised):
        problem = problem or _why_invalid(record, raised)
    if reward is None or problem is not None:
        error_ = problem if rewards else _why_no_reward(record, raised)
        return HarborVerdict(None, metrics, outcome, error_, out_of_memory=is_out_of_memory(raised))
    return HarborVerdict(reward, metrics, outcome, None, _remarks(raised, reward, logs), is_out_of_memory(raised))


def numbers(rewards: Mapping[str, Any]) -> dict[str, float]:
    """Return the valid rewards by name."""
    found = {}
    for name, value in rewards.items():
        if isinstance(value, int | float) and math.isfinite(value) and is_reward(value):
            found[name] = float(value) + 0.0  # a -0 is a 0
    return found


def name_that_counts(names: Collection[str], metric: str | None) -> str | None:
    """Choose the reward that counts: the given one, else `reward`, else the only one; None if ambiguous."""
    if metric is not None:
        return metric
    if DEFAULT_METRIC in names:
        return DEFAULT_METRIC
    return next(iter(names)) if len(names) == 1 else None


def _read_rewards(
    rewards: Mapping[str, Any] | None, metric: str | None
) -> tuple[dict[str, float], float | None, ErrorInfo | None]:
    """Return the metrics, the reward that counts, and the error if no reward can be used."""
    if not rewards:
        return {}, None, None
    known = numbers(rewards)
    metrics = {} if known.keys() <= {DEFAULT_METRIC} else known
    name = name_that_counts(rewards.keys(), metric)
    if name is not None and name in known:
        return metrics, known[name], None
    if name is not None and name in rewards:
        return metrics, None, error("verifier_bad_reward", f"the reward {name!r} is {rewards[name]!r}, not a number")
    known_names = names_text([repr(each[:60]) for each in sorted(rewards)])
    return metrics, None, error("verifier_bad_reward", f"no reward {name or DEFAULT_METRIC!r}, but {known_names}")


def _why_zero_is_void(record: HarborTrial | StepRecord, raised: Raised | None, logs: Logs) -> ErrorInfo | None:
    if raised is not None and _voids_a_zero(raised):
        return convert_error(raised, record)
    failure = tool_failure(logs)
    if failure is None or tests_ran(logs) or not _CALLS_PYTEST.search(logs.get("stdout.txt", b"")):
        return None
    return error("verifier_never_ran", f"the reward is 0 but no test ran: {failure}; {last_line(logs)}")


def _is_valid(record: HarborTrial | StepRecord, raised: Raised | None) -> bool:
    """Whether a reward counts: a trial's record has a field for it, a step's only the policy of its exception."""
    if isinstance(record, HarborTrial):
        return record.reward_valid is not False
    return raised is None or raised.policy is None or raised.policy.has_valid_reward is not False


def _why_invalid(record: HarborTrial | StepRecord, raised: Raised | None) -> ErrorInfo:
    if raised is not None:
        return convert_error(raised, record)
    trials_steps = record.step_results or () if isinstance(record, HarborTrial) else ()
    steps = [step for step in trials_steps if step.exception_info is not None]
    if steps and steps[0].exception_info is not None:
        return convert_error(steps[0].exception_info, steps[0])
    return error("verifier_failed", "Harbor's record says that the reward is not valid")


def _why_no_reward(record: HarborTrial | StepRecord, raised: Raised | None) -> ErrorInfo:
    if raised is not None and raised.exception_type not in OUTCOMES:
        return convert_error(raised, record)
    after = f" ({describe_exception(raised)})" if raised is not None else ""
    if record.verifier_result is not None:
        return error("verifier_no_reward", f"Harbor has a verdict without a reward{after}")
    if isinstance(record, HarborTrial):
        verifier = record.config.get("verifier")
        is_disabled = isinstance(verifier, dict) and verifier.get("disable") is True
        if is_disabled or record.config.get("install_only"):
            return error("verifier_no_reward", "the trial was run without verification")
    if record.verifier is None:
        return error("verifier_failed", f"no verdict and no exception, and the verifier never began{after}")
    return error("verifier_failed", f"no verdict and no exception, although the verifier had begun{after}")


def _remarks(raised: Raised | None, reward: float, logs: Logs) -> tuple[str, ...]:
    """Return doubts about a reward that counts."""
    found = []
    if raised is not None and raised.exception_type not in OUTCOMES:
        found.append(f"exception: {describe_exception(raised)}")
    if reward == 0.0 and not tests_ran(logs) and (failure := tool_failure(logs)) is not None:
        found.append(f"tool-failure: {failure}")
    return tuple(found)
