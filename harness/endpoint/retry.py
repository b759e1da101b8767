"""Repeats a failing request within a time budget, with pauses in between.

Independent of HTTP: the caller raises `TransientError` if another attempt may help.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from pydantic import Field
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    RetryError,
    retry_if_exception_type,
    wait_random_exponential,
)

from harness.errors import HarnessError
from harness.trajectory import Frozen

T = TypeVar("T")
OnWait = Callable[[str, float], None]
"""Called before each pause, with the reason and the length of the pause in seconds."""


class RetryPolicy(Frozen):
    """Limits of retries; patient by default, as a restart or a rate limit must not end hours of work."""

    total_sec: float = Field(default=900.0, ge=0)
    """Longest time from the first attempt to the start of another. It never interrupts an attempt, so all attempts
    together can take `total_sec` plus one request timeout. 0 means a single attempt."""
    initial_sec: float = Field(default=1.0, ge=0)
    """Upper bound of the first pause, which is random. It doubles with every attempt."""
    max_sec: float = Field(default=60.0, gt=0)
    """Longest pause without a Retry-After."""
    reset_sec: float = Field(default=0.1, ge=0)
    """Longest first pause if the connection broke: a server that closes an idle connection is not down."""
    max_retry_after_sec: float = Field(default=300.0, ge=0)
    """Longest pause that a server can request by Retry-After."""
    max_costly_attempts: int = Field(default=2, ge=1)
    """Maximum number of attempts in which the server does its work in vain: see `TransientError.costly`."""


class TransientError(Exception):
    """Raised if an attempt failed and another one may succeed."""

    def __init__(
        self,
        reason: str,
        *,
        retry_after_sec: float | None = None,
        broke: bool = False,
        refused: bool = False,
        answered: bool = False,
        lost: bool = False,
        costly: bool = False,
        over_time: bool = False,
        status: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_sec = retry_after_sec
        self.broke = broke
        """Whether an established connection broke."""
        self.refused = refused
        """Whether the connection was refused, as nothing listens there."""
        self.answered = answered
        """Whether the server is up and asked for a retry."""
        self.lost = lost
        """Whether the request was aborted because its server was or is down."""
        self.costly = costly or over_time
        """Whether the server worked in vain, and probably would again."""
        self.over_time = over_time
        """Whether the reply took longer than the time limit, here or at a gateway."""
        self.status = status
        """HTTP status of an answer that reports a failure; None for any other failure."""


class BudgetSpentError(Exception):
    """Raised when the retry budget is spent."""

    def __init__(self, failure: TransientError, attempts: int) -> None:
        super().__init__(failure.reason)
        self.failure = failure
        """Failure of the last attempt."""
        self.attempts = attempts


class Success(NamedTuple, Generic[T]):
    """The result of the successful attempt, and the time taken."""

    value: T
    attempts: int
    latency_sec: float
    """Wall seconds of the successful attempt."""
    waited_sec: float
    """Wall seconds of failed attempts and pauses."""


class OutageHandler(Protocol):
    """Handles outages for one request (harness.endpoint.outage). Both methods may raise an error to end the request."""

    async def wait_while_away(self) -> None:
        """Wait while the endpoint is known to be down."""

    async def was_away(self, failure: TransientError) -> bool:
        """Return whether an outage made the attempt fail. Waits for the outage's end."""
        ...


async def with_retries(
    attempt_once: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    on_wait: OnWait | None = None,
    absence: OutageHandler | None = None,
) -> Success[T]:
    """Call `attempt_once` until it succeeds. Raises BudgetSpentError; other exceptions propagate at once.

    The `waited_sec` of a propagated HarnessError is the time before its attempt.
    """
    started = time.monotonic()
    if absence is not None:
        await absence.wait_while_away()
    budget = _Budget(policy, on_wait, absence)

    async def attempt_as(number: int) -> Success[T]:
        began = budget.begin_attempt()
        try:
            value = await attempt_once()
        except HarnessError as error:
            error.waited_sec = began - started
            raise
        return Success(value, number, time.monotonic() - began, began - started)

    # Nearly every request succeeds at once. Otherwise tenacity is used, which costs more than everything else here.
    try:
        return await attempt_as(1)
    except TransientError as failure:
        first = failure
    try:
        async for attempt in budget.attempts():
            with attempt:
                number = attempt.retry_state.attempt_number
                if number == 1:
                    raise first
                return await attempt_as(number)
    except RetryError as error:
        last = error.last_attempt
    # Not raised in the handler: an exception chain could carry request headers into a log.
    spent = last.exception()
    assert isinstance(spent, TransientError)
    raise BudgetSpentError(spent, last.attempt_number)


class _Budget:
    """The attempts of one request and their time budget. Attempts that failed because of an outage are free."""

    def __init__(self, policy: RetryPolicy, on_wait: OnWait | None, absence: OutageHandler | None) -> None:
        self._policy = policy
        self._on_wait = on_wait
        self._absence = absence
        self._began = self._started = time.monotonic()
        self._free_sec = 0.0
        self._was_away = False
        self._costly = 0
        self._own_pause = _pauses(policy)

    def attempts(self) -> AsyncRetrying:
        return AsyncRetrying(
            retry=retry_if_exception_type(TransientError),
            after=self._after_attempt,
            wait=self._pause,
            stop=self._is_spent,
            before_sleep=self._before_sleep,
        )

    def begin_attempt(self) -> float:
        self._began = time.monotonic()
        return self._began

    async def _after_attempt(self, state: RetryCallState) -> None:
        # If only a single attempt was requested, there is no retry after an outage either.
        if self._absence is not None and self._policy.total_sec > 0:
            self._was_away = await self._absence.was_away(_failure(state))
        if self._was_away:
            self._free_sec += time.monotonic() - self._began
        else:
            self._costly += _failure(state).costly

    def _pause(self, state: RetryCallState) -> float:
        return 0.0 if self._was_away else self._own_pause(state)

    def _is_spent(self, state: RetryCallState) -> bool:
        if self._was_away:
            return False
        spent = time.monotonic() - self._started - self._free_sec
        return (
            self._costly >= self._policy.max_costly_attempts or spent + state.upcoming_sleep >= self._policy.total_sec
        )

    def _before_sleep(self, state: RetryCallState) -> None:
        if self._on_wait is not None and not self._was_away:
            self._on_wait(_failure(state).reason, state.upcoming_sleep)


def _pauses(policy: RetryPolicy) -> Callable[[RetryCallState], float]:
    backoff = wait_random_exponential(multiplier=policy.initial_sec, max=policy.max_sec)

    def pause(state: RetryCallState) -> float:
        failure = _failure(state)
        if failure.retry_after_sec is not None:
            # Spread, so that many trials with the same Retry-After do not return together.
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
