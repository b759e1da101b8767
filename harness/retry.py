"""How long to go on with a request that keeps failing, and how long to pause in between.

Knows nothing of HTTP: the caller says with `TransientError` that another attempt may help.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from pydantic import Field
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    RetryError,
    retry_if_exception_type,
    stop_before_delay,
    wait_random_exponential,
)

from harness.trajectory import Frozen

T = TypeVar("T")
OnWait = Callable[[str, float], None]
"""Told before each pause: the reason in words, and the length of the pause in seconds."""


class RetryPolicy(Frozen):
    """Long and patient by default: a vLLM restart or a rate limit must not end hours of work."""

    total_sec: float = Field(default=900.0, ge=0)
    """No attempt starts later than this after the first one. An attempt under way is never cut by it,
    so the whole can take `total_sec` plus one request timeout. 0 means a single attempt."""
    initial_sec: float = Field(default=1.0, ge=0)
    """Longest possible first pause; doubles with every attempt. The pause is random below its bound."""
    max_sec: float = Field(default=60.0, gt=0)
    """Longest pause of our own choosing."""
    reset_sec: float = Field(default=0.1, ge=0)
    """Longest first pause when the connection broke: a server closing an idle connection is no outage."""
    max_retry_after_sec: float = Field(default=300.0, ge=0)
    """Longest pause that a server's Retry-After can ask for."""


class TransientError(Exception):
    """One attempt failed in a way that another attempt may mend."""

    def __init__(self, reason: str, *, retry_after_sec: float | None = None, broke: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_sec = retry_after_sec
        self.broke = broke
        """The connection was there and broke."""


class BudgetSpentError(Exception):
    """The budget is spent."""

    def __init__(self, reason: str, attempts: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.attempts = attempts


class Success(NamedTuple, Generic[T]):
    """What the successful attempt gave, and what it took to get there."""

    value: T
    attempts: int
    latency_sec: float
    """Wall time of the successful attempt."""
    waited_sec: float
    """Wall time of the failed attempts and the pauses."""


async def persist(
    attempt_once: Callable[[], Awaitable[T]], policy: RetryPolicy, on_wait: OnWait | None = None
) -> Success[T]:
    """Call until it succeeds. Raises BudgetSpentError; other exceptions pass through at once."""
    started = time.monotonic()
    try:
        async for attempt in _retrying(policy, on_wait):
            with attempt:
                began = time.monotonic()
                value = await attempt_once()
                latency = time.monotonic() - began
                return Success(value, attempt.retry_state.attempt_number, latency, began - started)
    except RetryError as error:
        last = error.last_attempt
    # Raised here and not above: an exception chain could carry request headers into a log.
    raise BudgetSpentError(str(last.exception()), last.attempt_number)


def _retrying(policy: RetryPolicy, on_wait: OnWait | None) -> AsyncRetrying:
    def before_sleep(state: RetryCallState) -> None:
        if on_wait is not None:
            on_wait(_failure(state).reason, state.upcoming_sleep)

    return AsyncRetrying(
        retry=retry_if_exception_type(TransientError),
        wait=_pauses(policy),
        stop=stop_before_delay(policy.total_sec),
        before_sleep=before_sleep,
    )


def _pauses(policy: RetryPolicy) -> Callable[[RetryCallState], float]:
    backoff = wait_random_exponential(multiplier=policy.initial_sec, max=policy.max_sec)

    def pause(state: RetryCallState) -> float:
        failure = _failure(state)
        if failure.retry_after_sec is not None:
            # Spread, so that many trials told the same second do not come back together.
            asked = min(failure.retry_after_sec, policy.max_retry_after_sec)
            return asked + random.uniform(0, policy.initial_sec)
        if failure.broke and state.attempt_number == 1:
            return random.uniform(0, policy.reset_sec)
        return backoff(state)

    return pause


def _failure(state: RetryCallState) -> TransientError:
    failure = state.outcome.exception() if state.outcome else None
    assert isinstance(failure, TransientError)
    return failure
