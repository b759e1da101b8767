"""What a user decides about an agent beside its model: its limits, its shell, how it waits, how much it sees."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.trajectory import Frozen, OnOverflow

ShellMode = Literal["persistent", "fresh"]
"""Whether the commands of a bash protocol share one shell, or each has a process of its own."""
Settling = Literal["adaptive", "strict"]
"""Whether a wait ends when the shell has settled, or always takes its whole duration."""
SMALLEST_REPLY_TOKENS = 64
"""Tokens of the smallest reply that there has to be room for: no protocol's reply fits into less."""
OUTPUT_LIMIT_BYTES = 10_000
"""Longer observations lose their middle."""


class LimitSettings(Frozen, use_attribute_docstrings=True):
    """The limits that the user decides about. None means no limit."""

    steps: int | None = Field(default=100, ge=1)
    """Most replies of the model per trial."""
    format_errors: int = Field(default=5, ge=1)
    """Most replies in a row that could not be used."""
    completion_tokens: int | None = Field(default=None, ge=1)
    """Most generated tokens over all steps of a trial."""
    context_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of prompt and reply together, where the server allows more."""
    on_overflow: OnOverflow = "stop"
    """In a full context: stop, drop-oldest-outputs or summarize."""
    command_sec: float = Field(default=120.0, gt=0)
    """Longest run of one command in the bash protocols, in seconds."""


class Limits(LimitSettings):
    """All limits of an agent in one trial."""

    timeout_sec: float | None = Field(default=None, gt=0)
    """Longest wall time of the whole agent: the task's own limit."""
