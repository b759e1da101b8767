"""What a trajectory tells of the times that its history was made shorter."""

from __future__ import annotations

from collections.abc import Mapping

from harness.text import strip_thinking
from harness.trajectory import Compaction, Message, Step, Trajectory

_WARNING = "context_compacted:"
_NOTES = "\n\nThe conversation so far was shortened. Your notes on it:\n\n"
"""What joins a summary to the message that opened the conversation (harness.overflow)."""


def compactions_before(step: Step) -> int:
    """How often the history was made shorter between the reply before this one and this one."""
    return sum(warning.startswith(_WARNING) for warning in step.warnings)


def opening_of(trajectory: Trajectory) -> tuple[Message, ...]:
    """The messages before the first reply, as they were before any summary was joined to them."""
    roles = [message.role for message in trajectory.messages]
    opening = trajectory.messages[: roles.index("assistant") if "assistant" in roles else len(roles)]
    for done in reversed(trajectory.compactions):
        if done.policy == "summarize" and opening:
            kept = opening[-1].content.partition(_NOTES + _summary(done))[0]
            return (*opening[:-1], opening[-1].model_copy(update={"content": kept}))
    return opening


def _summary(done: Compaction) -> str:
    return strip_thinking(done.summary.content).strip() if done.summary is not None else ""


def notes_of(trajectory: Trajectory) -> Mapping[int, str]:
    """The text that each summary put into the history, without the last output behind it, by `id` of the compaction."""
    return {
        id(done): (_NOTES + _summary(done)).strip() for done in trajectory.compactions if done.policy == "summarize"
    }
