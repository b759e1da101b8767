"""Data classes for the record of an agent's work: replies, steps, the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

TRAJECTORY_SCHEMA_VERSION = 1

OnOverflow = Literal["stop", "drop-oldest-outputs", "summarize"]
"""Policy for a history that fills the model's context."""


class Frozen(BaseModel):
    """Base of the project's data classes: immutable, unknown keys refused."""

    # pydantic before 2.10 warns of every field that begins with model_.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ToolCall(Frozen):
    """A function call as the model wrote it."""

    id: str
    name: str
    arguments: str
    """The server's JSON text, which may be invalid JSON, or not an object."""


class Message(Frozen):
    """One chat message of the history."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str | None = None
    """The assistant's thinking, if separate from `content`; sent back according to `Rendering.send_reasoning`."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The assistant's calls that stay in the history; each is answered by a tool message."""
    tool_call_id: str | None = None
    """Id of the call that a tool message answers."""


class Usage(Frozen):
    """Token counts as the endpoint reported them (never counted locally)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens served from the prefix cache; None if not reported."""
    uncounted: int = 0
    """Number of replies that the server did not count, so that the sums are lower bounds."""

    def __add__(self, other: Usage) -> Usage:
        cached = [u.cached_tokens for u in (self, other) if u.cached_tokens is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=sum(cached) if cached else None,
            uncounted=self.uncounted + other.uncounted,
        )


class ReplyTokens(Frozen):
    """Token ids of a request and its reply as reported by the server: tokenizing the text again may differ."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    """Sampled tokens, including the one that ended the reply."""
    logprobs: tuple[float, ...]
    """Natural logarithm of each sampled token's probability; as long as `completion`, or empty."""


class Reply(Frozen):
    """One answer of the model."""

    content: str
    reasoning: str | None = None
    """Thinking that the server returned separately from `content`."""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    cut: bool = False
    """Whether it was cut at max_tokens or at the end of the context, whatever finish_reason says."""
    usage: Usage = Usage()
    model: str | None = None
    """Model id reported by the server."""
    fingerprint: str | None = None
    """The reply's `system_fingerprint`; it changes with the server's configuration or weights."""
    weights: str | None = None
    """Version of the weights reported by the server (vLLM's `weight_versions`)."""
    signs: tuple[str, ...] = ()
    """Kinds of oddities seen in this reply (harness.reply_stats)."""
    base_url: str | None = None
    """Server that answered, if there are several."""
    latency_sec: float = 0.0
    """Wall seconds of the successful request."""
    waited_sec: float = 0.0
    """Wall seconds of failed requests and pauses before it."""
    attempts: int = 1
    max_tokens: int | None = Field(default=None, exclude=True, repr=False)
    """The request's reduced max_tokens, if the server refused the original; never stored."""
    tokens: ReplyTokens | None = Field(default=None, exclude=True, repr=False)
    """Token ids, if requested; never stored."""


class Outcome(StrEnum):
    """The way an agent ended. Outcomes are scored; errors are not."""

    SUBMITTED = "submitted"
    FINISHED = "finished"
    """An agent that submits nothing (oracle, nop, a user's own) ended."""
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    CONTEXT_LIMIT = "context_limit"
    AGENT_TIMEOUT = "agent_timeout"
    FORMAT_LIMIT = "format_limit"
    TERMINAL_LOST = "terminal_lost"
    DISK_LIMIT = "disk_limit"
    """The agent wrote more than its container may hold."""


class Step(Frozen):
    """One model reply, its actions, and the message sent back."""

    index: int
    """Counted from 1."""
    reply: Reply
    actions: tuple[str, ...] = ()
    """Typed text, one entry per action."""
    format_error: str | None = None
    warnings: tuple[str, ...] = ()
    observation: str = ""
    """The message that answered this reply; empty if there was none."""
    exit_code: int | None = None
    """Exit code of the last finished command, if the shell reported it."""
    model_sec: float = 0.0
    command_sec: float = 0.0


class Compaction(Frozen):
    """One shortening of the history because the context was full."""

    step: int
    """Index of the step whose query or cut reply reached the end of the context."""
    policy: OnOverflow
    """Policy applied: `drop-oldest-outputs` even if a summary was requested, when that was unusable."""
    outputs_dropped: int = 0
    """Number of outputs that were replaced by one line each."""
    messages_before: int
    messages_after: int
    tokens_before: int
    """Length of the history before, estimated from the server's counts like `tokens_after`."""
    tokens_after: int
    summary: Reply | None = None
    """The model's reply to the summary request; its tokens are included in the trajectory's usage."""
    model_sec: float = 0.0


class Intervention(Frozen):
    """An intervention of a person, or of their rule, in an agent's work."""

    step: int
    """Index of the step that it preceded or affected."""
    kind: Literal["message", "changed", "refused", "typed", "approved"]
    text: str
    """By kind: the message to the model (`message`), the replaced reply (`changed`), the reason given to the model
    (`refused`), the typed text and the screen (`typed`), the approver (`approved`)."""


class Branch(Frozen):
    """A further conversation of an agent that calls the model itself, besides `Trajectory.messages`.

    It is one that the agent replaced by a shorter one, or a separate request, such as for a title.
    """

    replies: tuple[int, ...]
    """Indexes of the steps whose replies belong to it, in order."""
    has_tools: bool
    """Whether its requests offered functions."""
    kept: int = 0
    """Number of messages at its start that it shares with the previous branch."""
    messages: tuple[Message, ...]
    """The other messages, as last sent, with the last reply."""


class Trajectory(Frozen):
    """The steps of one trial, or of one task step, in order."""

    schema_version: int = TRAJECTORY_SCHEMA_VERSION
    protocol: str
    messages: tuple[Message, ...] = ()
    """The history as last sent, including replies; append-only except for compactions."""
    inherited: int = 0
    """Number of messages before the first reply of a conversation that continues an earlier one, the new instruction
    included; 0 for a new conversation."""
    steps: tuple[Step, ...] = ()
    outcome: Outcome | None = None
    usage: Usage = Usage()
    warnings: dict[str, int] = {}
    """Number of warnings by kind, over all steps."""
    compactions: tuple[Compaction, ...] = ()
    """All compactions of the history; without any, `messages` is the whole conversation."""
    interventions: tuple[Intervention, ...] = ()
    """Interventions of people and rules, in order."""
    branches: tuple[Branch, ...] = ()
    """Other conversations of an agent with a loop of its own, in the order of their first replies."""
    tools: tuple[dict[str, Any], ...] = ()
    """Functions that an agent with its own loop offered with `messages`, in OpenAI's format."""
    waited_sec: float = 0.0
    """Seconds not charged to the agent: failed requests, pauses, outages of endpoint or terminal."""
    model_sec: float = 0.0
    command_sec: float = 0.0

    @property
    def replies(self) -> Iterator[Reply]:
        """All replies of the model, then its summaries."""
        yield from (step.reply for step in self.steps)
        yield from (done.summary for done in self.compactions if done.summary is not None)

    @property
    def replies_from(self) -> Counter[str]:
        """Number of replies by server; empty if there is only one server."""
        return Counter(reply.base_url for reply in self.replies if reply.base_url is not None)
