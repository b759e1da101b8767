"""What Harbor calls the ways in which a trial ends early.

Names and groups are those of harbor/models/trial/error_policy.py (0.25). An error that has no name there keeps its own.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from harness.trajectory import Outcome
from tbench.results import ErrorInfo, TaskStepResult, TrialResult

_OUTCOMES = {
    Outcome.AGENT_TIMEOUT: ("AgentTimeoutError", "the agent's time was over"),
    Outcome.CONTEXT_LIMIT: ("ContextLengthExceededError", "the context was full"),
    Outcome.TOKEN_LIMIT: ("OutputTokenExceededError", "all tokens of the trial were used up"),
}
"""Ends of an agent that are exceptions in Harbor, beside which a reward counts."""
_ERRORS = {
    "image_build_failed": "SandboxBuildFailedError",
    "healthcheck_failed": "HealthcheckError",
    "endpoint_unavailable": "ApiConnectionError",
    "endpoint_refused": "BadRequestError",
    "request_too_large": "BadRequestError",
    "never_answered": "BadRequestError",
    "agent_crashed": "NonZeroAgentExitCodeError",
    "verifier_timeout": "VerifierTimeoutError",
    "verifier_no_reward": "RewardFileNotFoundError",
    "verifier_bad_reward": "VerifierOutputParseError",
}


def exception_info(
    ended: TrialResult | TaskStepResult, occurred_at: datetime, directory: Path
) -> dict[str, Any] | None:
    """The record of what ended a trial, or a step of its task, early; None where nothing did."""
    type_, message = _exception(ended.error, ended.outcome)
    if not type_:
        return None
    return {
        "exception_type": type_,
        "exception_message": message,
        "exception_traceback": _traceback(directory),
        "occurred_at": occurred_at.isoformat(),
    }


def _exception(error: ErrorInfo | None, outcome: Outcome | None) -> tuple[str, str]:
    if error is not None:
        return _ERRORS.get(error.type, error.type), f"{error.type}: {error.message}"
    return _OUTCOMES.get(outcome, ("", "")) if outcome is not None else ("", "")


def _traceback(directory: Path) -> str:
    try:
        return (directory / "traceback.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
