"""The errors of the agent side. Some of them become outcomes, which are scored."""

from __future__ import annotations


class HarnessError(Exception):
    """Base of all exceptions that the harness raises on purpose."""

    waited_sec: float = 0.0
    """Seconds of failed requests and pauses before the request that led to this error."""


class EndpointError(HarnessError):
    """The endpoint gave no usable answer. The message has the URL and the server's message."""


class EndpointUnavailable(EndpointError):
    """The endpoint could not be reached or kept failing until the retry budget was spent, or was down for too long.

    Failures are refused, reset and timed out connections, and the statuses 408, 409, 429 and 5xx.
    """


class ReplyTimeout(EndpointError):
    """The reply took longer than the timeout, here or at a gateway, while the server was up."""


class RequestRefused(EndpointError):
    """The request was refused (4xx), nearly always by the server, and would be refused again."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ContextLimitReached(HarnessError):
    """The prompt (with max_tokens) no longer fits the model's context: an outcome.

    `prompt_tokens` is the prompt's length if the server's refusal states it, else None.
    """

    def __init__(self, message: str, prompt_tokens: int | None = None) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens


class RequestTooLarge(ContextLimitReached):
    """Something between here and the model refuses requests of this size, whatever the model's context.

    An error if the conversation cannot be shortened.
    """


class NeverAnswered(HarnessError):
    """The agent ended without a single reply of the model: not scored."""


class TerminalLost(HarnessError):
    """The terminal is gone and could not be brought back: an outcome."""


class TerminalUnreachable(HarnessError):
    """The connection to the terminal is lost: an engine or network that does not recover. Not scored."""


class FormatError(HarnessError):
    """A reply that does not follow the protocol.

    `kind` is a short stable word for counting (`no_json`, `several_blocks`, …); the message is shown to the model.
    `warnings` about the reply, each `kind: what happened`, are counted, too.
    """

    def __init__(self, kind: str, message: str, warnings: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.warnings = warnings


class AgentCrashed(HarnessError):
    """A user's own agent raised an exception or returned something other than an outcome.

    `trace` is the traceback, if any.
    """

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace
