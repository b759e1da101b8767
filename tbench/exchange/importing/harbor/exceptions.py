"""What an exception that Harbor recorded means here: how the agent ended, or what kept the trial from a verdict.

Names and groups are those of harbor/models/trial/error_policy.py (0.25).
"""

from __future__ import annotations

from harness.trajectory import Outcome
from tbench.errors import KINDS
from tbench.exchange.importing.harbor.records import HarborTrial, Raised, StepRecord
from tbench.results import Blame, ErrorInfo, Stage
from tbench.text import one_line

OUTCOMES = {
    "AgentTimeoutError": Outcome.AGENT_TIMEOUT,
    "ContextWindowExceededError": Outcome.CONTEXT_LIMIT,
    "ContextLengthExceededError": Outcome.CONTEXT_LIMIT,
    "OutputTokenExceededError": Outcome.TOKEN_LIMIT,
    "OutputLengthExceededError": Outcome.TOKEN_LIMIT,
    "AgentSafetyRefusalError": Outcome.FINISHED,
    "ContentPolicyViolationError": Outcome.FINISHED,
}
"""Exceptions by which the agent itself came to an end: its reward is a measurement."""

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
"""Whose fault an unknown exception most likely is: in the agent's time that of the code around the model."""


def voids_a_zero(raised: Raised) -> bool:
    """Whether a 0 beside the exception says nothing about the agent: something else ended its trial."""
    return raised.exception_type == _CANCELLED or _TYPE_OF.get(raised.exception_type) in _NOT_THE_AGENT


def is_out_of_memory(raised: Raised | None) -> bool:
    return raised is not None and raised.exception_type in _OUT_OF_MEMORY


def words(raised: Raised) -> str:
    """The exception in a line."""
    return one_line(f"{raised.exception_type}: {raised.exception_message}".rstrip(": "))


def error_of(raised: Raised, record: HarborTrial | StepRecord) -> ErrorInfo:
    """The error that an exception is here.

    One that is not known keeps its name, with the stage that it fell in; before the agent began it is the sandbox's, as
    what engines raise has no name of its own.
    """
    if (type_ := _TYPE_OF.get(raised.exception_type)) is not None:
        return error(type_, words(raised))
    stage = _stage(record)
    if stage is Stage.SANDBOX and raised.exception_type != _CANCELLED:
        return error("sandbox_failed", words(raised))
    blame = Blame.USER if raised.exception_type == _CANCELLED else _BLAMES[stage]
    return ErrorInfo(stage=stage, type=raised.exception_type, blame=blame, retryable=True, message=words(raised))


def error(type_: str, message: str) -> ErrorInfo:
    """An error of one of tbench's own types."""
    kind = KINDS[type_]
    return ErrorInfo(
        stage=kind.stage, type=type_, blame=kind.blame, retryable=kind.retryable, message=one_line(message)
    )


def _stage(record: HarborTrial | StepRecord) -> Stage:
    """The stage that had begun last."""
    if record.verifier is not None:
        return Stage.VERIFIER
    return Stage.AGENT if record.agent_execution is not None else Stage.SANDBOX
