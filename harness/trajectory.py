"""The record of an agent's work: replies, steps, the outcome. Data only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

TRAJECTORY_SCHEMA_VERSION = 1

OnOverflow = Literal["stop", "drop-oldest-outputs", "summarize"]
"""What is done when the history fills the model's context."""


class Frozen(BaseModel):
    """Base of all data that this project owns: immutable, unknown keys refused."""

    # pydantic before 2.10 warns of every field that begins with model_.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ToolCall(Frozen):
    """One call of a function, as the model wrote it."""

    id: str
    name: str
    arguments: str
    """The JSON text that the server handed over, which may be no object, or no JSON at all."""


class Message(Frozen):
    """One chat message of the history."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str | None = None
    """The assistant's thinking that came apart from `content`; sent back as `Rendering.send_reasoning` says."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The assistant's calls that stay in the history: each is answered by a tool message."""
    tool_call_id: str | None = None
    """The call that a tool message answers."""


class Usage(Frozen):
    """Token counts as the endpoint reported them (never counted locally)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens served from the prefix cache; None where the server does not say."""
    uncounted: int = 0
    """Replies whose tokens the server did not count: the sums lack them, and are at least what they say."""

    def __add__(self, other: Usage) -> Usage:
        cached = [u.cached_tokens for u in (self, other) if u.cached_tokens is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=sum(cached) if cached else None,
            uncounted=self.uncounted + other.uncounted,
        )


class ReplyTokens(Frozen):
    """The tokens of a request and its reply as the server has them: text that is tokenized again may be others."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    """What was sampled, with the token that ended it."""
    logprobs: tuple[float, ...]
    """The natural logarithm of each sampled token's probability; as long as `completion`, or empty."""


class Reply(Frozen):
    """One answer of the model."""

    content: str
    reasoning: str | None = None
    """The thinking that came apart from `content`, under whatever name."""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    cut: bool = False
    """Whether it was cut at max_tokens or at the end of the context, whatever finish_reason says."""
    usage: Usage = Usage()
    model: str | None = None
    """The model id that the server says it used."""
    fingerprint: str | None = None
    """The reply's `system_fingerprint`: another one is another configuration of the server, or other weights."""
    weights: str | None = None
    """The version of the weights that the server says it used (vLLM's `weight_versions`)."""
    signs: tuple[str, ...] = ()
    """What is odd about the reply by what it says of itself, a kind each (harness.replies)."""
    base_url: str | None = None
    """The server that answered, where there are several."""
    latency_sec: float = 0.0
    """Wall seconds of the successful request."""
    waited_sec: float = 0.0
    """Wall seconds of failed requests and pauses before it."""
    attempts: int = 1
    max_tokens: int | None = Field(default=None, exclude=True, repr=False)
    """The max_tokens of the request, where the server refused those asked for; on no disk."""
    tokens: ReplyTokens | None = Field(default=None, exclude=True, repr=False)
    """Where they were asked for; they are on no disk."""


class Outcome(StrEnum):
    """How the agent ended. Outcomes are scored; errors are not."""

    SUBMITTED = "submitted"
    FINISHED = "finished"
    """An agent without a submission (oracle, nop) came to its end."""
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    CONTEXT_LIMIT = "context_limit"
    AGENT_TIMEOUT = "agent_timeout"
    FORMAT_LIMIT = "format_limit"
    TERMINAL_LOST = "terminal_lost"


class Step(Frozen):
    """One model reply, its actions, and the message that went back."""

    index: int
    """Counted from 1."""
    reply: Reply
    actions: tuple[str, ...] = ()
    """What was typed, one entry per action."""
    format_error: str | None = None
    warnings: tuple[str, ...] = ()
    observation: str = ""
    """The message that answered this reply; empty after the last step."""
    exit_code: int | None = None
    """Exit code of the last finished command, where the shell told it."""
    model_sec: float = 0.0
    command_sec: float = 0.0


class Compaction(Frozen):
    """One time that the history was made shorter, because the context was full."""

    step: int
    """Index of the step whose query, or whose cut reply, met the end of the context."""
    policy: OnOverflow
    """What was done; `drop-oldest-outputs` also where a summary was asked for and could not be used."""
    outputs_dropped: int = 0
    """Number of outputs that were replaced by a line each."""
    messages_before: int
    messages_after: int
    tokens_before: int
    """The history's length before, estimated from the server's counts as `tokens_after` is."""
    tokens_after: int
    summary: Reply | None = None
    """The model's answer to the request for a summary; its tokens are in the trajectory's usage."""
    model_sec: float = 0.0


class Intervention(Frozen):
    """Something that a person, or a rule of theirs, did to an agent."""

    step: int
    """Index of the step before which, or to which, it was done."""
    kind: Literal["message", "changed", "refused", "typed", "approved"]
    text: str
    """The message; the reply that another one was followed instead of; what the model was told of a refusal or of what
    a person typed; who approved."""


class Trajectory(Frozen):
    """The ordered steps of one trial."""

    schema_version: int = TRAJECTORY_SCHEMA_VERSION
    protocol: str
    messages: tuple[Message, ...] = ()
    """The history as last sent, replies included: append-only, but for the compactions."""
    steps: tuple[Step, ...] = ()
    outcome: Outcome | None = None
    usage: Usage = Usage()
    warnings: dict[str, int] = {}
    """Number of warnings by kind, over all steps."""
    compactions: tuple[Compaction, ...] = ()
    """Each time the history was made shorter; where it never was, `messages` is the whole conversation."""
    interventions: tuple[Intervention, ...] = ()
    """What others than the model did, in order."""
    waited_sec: float = 0.0
    """Seconds that were not charged to the agent: failed requests, pauses, outages of endpoint or terminal."""
    model_sec: float = 0.0
    command_sec: float = 0.0

    @property
    def replies(self) -> Iterator[Reply]:
        """All replies of the model, then the summaries that it gave."""
        yield from (step.reply for step in self.steps)
        yield from (done.summary for done in self.compactions if done.summary is not None)

    @property
    def replies_from(self) -> Counter[str]:
        """Replies by the server that gave them; empty where there is one server only."""
        return Counter(reply.base_url for reply in self.replies if reply.base_url is not None)
