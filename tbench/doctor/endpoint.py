"""Checks that the endpoint serves the model, that it answers fast, and that its clock agrees with ours."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import partial

from harness.endpoint.chat import ChatModel, RetryPolicy, Sampling
from harness.errors import ContextLimitReached, EndpointError, RequestRefused
from harness.trajectory import Message
from tbench.doctor import Check, CheckResult, fail, ok, skipped, warn
from tbench.threads import in_thread
from tbench.web import Unanswered, WebRequest

NAMES = ("endpoint", "model", "endpoint's clock")
_CONNECT_SEC, _ANSWER_SEC = 5.0, 60.0
_SLOW_SEC = 20.0
_CLOCKS_APART_SEC = 60.0
_SMALL_CONTEXT = 8192
_DEFAULT = Sampling().max_tokens
_SAY_OK = [Message(role="user", content="Say ok.")]


def checks(base_url: str, model: str | None, api_key: str | None) -> list[Check]:
    make = partial(_chat, base_url, model, api_key)
    return [
        Check(NAMES[0], partial(look_at_listing, make), 30),
        Check(NAMES[1], partial(look_at_completion, make), 2 * _ANSWER_SEC + 30),
        Check(NAMES[2], partial(look_at_date, base_url), 15),
    ]


def _chat(base_url: str, model: str | None, api_key: str | None) -> ChatModel:
    return ChatModel(
        base_url, model, Sampling(temperature=0.0, top_p=1.0), api_key=api_key,
        request_timeout_sec=_ANSWER_SEC, retry=RetryPolicy(total_sec=_CONNECT_SEC),
    )  # fmt: skip


async def served_model(base_url: str, model: str | None, api_key: str | None) -> str | None:
    """The id of that model, or of the only one; None where it cannot be told."""
    try:
        async with _chat(base_url, model, api_key) as chat:
            return (await chat.connect(budget_sec=_CONNECT_SEC)).id
    except EndpointError:
        return None


async def look_at_listing(make: Callable[[], ChatModel]) -> CheckResult:
    try:
        async with make() as chat:
            served = await chat.connect(budget_sec=_CONNECT_SEC)
            through = "" if chat.proxy is None else f"; through {chat.proxy}"
    except EndpointError as error:
        return fail(str(error), _advice(error))
    if chat.unlisted is not None:
        return ok(f"the server {chat.unlisted}{through}")
    if served.context_tokens is None:
        return ok(f"{served.id}; it does not say how long its context is{through}")
    words = f"{served.id}, context of {served.context_tokens:,} tokens{through}"
    if served.context_tokens < _SMALL_CONTEXT:
        return warn(words, "that is short for a terminal: serve it with a longer one (vLLM: --max-model-len)")
    return _with_room(words, served.context_tokens)


async def look_at_completion(make: Callable[[], ChatModel]) -> CheckResult:
    try:
        async with make() as chat:
            await chat.connect(budget_sec=_CONNECT_SEC)
            reply = await chat.query(_SAY_OK, seed=0, max_tokens=8)
            room = chat.context_tokens if chat.context_tokens is not None else await _room_for_replies(chat)
    except (EndpointError, ContextLimitReached) as error:
        return fail(str(error), _advice(error))
    words = f"{reply.usage.completion_tokens} tokens in {reply.latency_sec:.2f} s"
    if reply.latency_sec > _SLOW_SEC:
        return warn(words, "the server is loading or has a long queue; agents' time runs while they wait for replies")
    return ok(words) if room is None else _with_room(f"{words}; room for {room:,}", room)


async def _room_for_replies(chat: ChatModel) -> int | None:
    """The tokens that its refusal of the default --max-tokens leaves; None where it does not refuse them."""
    with contextlib.suppress(EndpointError, ContextLimitReached):  # a reply that takes long is no refusal
        await chat.query(_SAY_OK, seed=0, max_tokens=_DEFAULT)
    return min((each for each in (chat.context_tokens, chat.most_tokens) if each is not None), default=None)


def _with_room(words: str, tokens: int) -> CheckResult:
    """The check of an endpoint that has that much room for replies: a warning where the default does not fit."""
    if tokens > _DEFAULT:
        return ok(words)
    return warn(
        words, f"the default --max-tokens {_DEFAULT:,} does not fit: give a lower one, or serve it with more room"
    )


async def look_at_date(base_url: str) -> CheckResult:
    apart = await in_thread(_clock_ahead_sec, base_url)
    if apart is None:
        return skipped("the endpoint cannot be asked, or does not tell its time")
    if abs(apart) > _CLOCKS_APART_SEC:
        return warn(
            f"it is {apart:+.0f} s from ours",
            "one of the two is wrong: set them with NTP, or the server's log and results do not fit together",
        )
    return ok("agrees with ours within a minute")


def _clock_ahead_sec(base_url: str) -> float | None:
    """Seconds by which the endpoint's clock is ahead, from the Date of any answer, also a refusal; None without one.

    No key is sent.
    """
    try:
        answer = WebRequest(f"{base_url.rstrip('/')}/models", _CONNECT_SEC, most_bytes=0).answer()
        date = answer.headers.get("date")
        return None if date is None else parsedate_to_datetime(date).timestamp() - time.time()
    except (Unanswered, ValueError):
        return None


def _advice(error: Exception) -> str:
    if isinstance(error, RequestRefused):
        return "read the server's words; 401 and 403: check OPENAI_API_KEY; 404: check the URL's path and --model"
    return "is the server up, is --base-url its host and port, and can this machine reach it?"
