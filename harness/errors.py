"""The errors of the agent side.

HarnessError
├── EndpointError          the endpoint gave no usable answer
│   ├── EndpointUnavailable    refused, reset, timed out, 408/409/429/5xx until the retry budget was spent, or away
│   ├── ReplyTimeout           the reply takes longer than one request may, and the server is there
│   └── RequestRefused         4xx: the server said no and would say it again
├── ContextLimitReached    the prompt no longer fits the model's context: an outcome, not an error
│   └── RequestTooLarge        it does not fit through the way to the model: an error, where it cannot be made shorter
├── NeverAnswered          an agent came to its end without a single reply: nobody's verdict
├── TerminalLost           the terminal's stream ended and could not be had again: an outcome
├── TerminalUnreachable    where the terminal lives cannot be reached any more: nobody's verdict
├── FormatError            a reply that does not follow the protocol: goes back to the model
└── AgentCrashed           a user's own agent raised an exception, or returned what is no outcome
"""

from __future__ import annotations


class HarnessError(Exception):
    """Base of everything the harness raises on purpose."""

    waited_sec: float = 0.0
    """Seconds of failed requests and pauses that a query spent before the request that was answered with this."""


class EndpointError(HarnessError):
    """The endpoint gave no usable answer. The message names the URL and the server's own words."""


class EndpointUnavailable(EndpointError):
    """The endpoint could not be reached or kept failing until the retry budget was spent, or was away for too long."""


class ReplyTimeout(EndpointError):
    """The reply took longer than one request may, here or at a gateway on the way, while the server was there."""


class RequestRefused(EndpointError):
    """The request was refused (4xx) and would be refused again; nearly always by the server."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ContextLimitReached(HarnessError):
    """The prompt (with max_tokens) no longer fits the model's context.

    `prompt_tokens` is the prompt's length where the server's refusal tells it, else None.
    """

    def __init__(self, message: str, prompt_tokens: int | None = None) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens


class RequestTooLarge(ContextLimitReached):
    """Something between here and the model takes no request of this size, whatever the model's context has room for."""


class NeverAnswered(HarnessError):
    """The agent came to an end, and the model had no part in it: it never gave a reply."""


class TerminalLost(HarnessError):
    """The terminal is gone and could not be brought back."""


class TerminalUnreachable(HarnessError):
    """The way to the terminal is cut: an engine or a network that does not come back, not the agent's doing."""


class FormatError(HarnessError):
    """A reply that does not follow the protocol.

    `kind` is a short stable word for counting (`no_json`, `several_blocks`, …); the message is what the
    model is told. `warnings` are those of the reply, `kind: what happened` each: they are counted too.
    """

    def __init__(self, kind: str, message: str, warnings: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.warnings = warnings


class AgentCrashed(HarnessError):
    """A user's own agent raised an exception, or returned what is no outcome. `trace` is its traceback, if any."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace
