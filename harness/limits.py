"""The limits of an agent."""

from __future__ import annotations

from pydantic import Field

from harness.trajectory import Frozen, OnOverflow


class Limits(Frozen):
    """The limits of an agent. None means no limit."""

    steps: int | None = Field(default=100, ge=1)
    format_errors: int = Field(default=5, ge=1)
    """Most replies in a row that could not be used."""
    completion_tokens: int | None = Field(default=None, ge=1)
    """Most generated tokens over all steps."""
    context_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of prompt and reply together, where the server allows more."""
    on_overflow: OnOverflow = "stop"
    """What is done when the history fills the context."""
    command_sec: float = Field(default=120.0, gt=0)
    """Longest run of one command in the bash protocols."""
    timeout_sec: float | None = Field(default=None, gt=0)
    """Longest wall time of the whole agent: the task's own limit."""
