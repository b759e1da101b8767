"""Public names for custom agents; docs/python.md shows how to write one."""

from harness.custom import AgentModel, Assignment, CustomAgent
from harness.errors import ContextLimitReached, TerminalLost
from harness.limits import Limits
from harness.protocols.base import CommandResult, Keys, ScreenView
from harness.trajectory import Message, Outcome, Reply, ToolCall

__all__ = [
    "AgentModel",
    "Assignment",
    "CommandResult",
    "ContextLimitReached",
    "CustomAgent",
    "Keys",
    "Limits",
    "Message",
    "Outcome",
    "Reply",
    "ScreenView",
    "TerminalLost",
    "ToolCall",
]
