"""The model behind an OpenAI-compatible endpoint: requests, retries, and the classification of failures."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from harness.endpoint.address import Proxy, full_url, likely_urls, usable_key, without_password
from harness.endpoint.answers import (
    ModelCard,
    RawReply,
    TokenCount,
    read_completion,
    read_models,
    read_raw_reply,
    read_reasoning_field,
    read_token_count,
    retry_after_sec,
    server_message,
    shorten,
)
from harness.endpoint.bodies import RawAnswer
from harness.endpoint.completion import is_empty
from harness.endpoint.outage import Outage, OutagePolicy, OutageTooLongError
from harness.endpoint.refusals import BODY_REMEDY, Reason, Refusal, classify_refusal
from harness.endpoint.retry import (
    BudgetSpentError,
    OnWait,
    OutageHandler,
    RetryPolicy,
    Success,
    TransientError,
    with_retries,
)
from harness.endpoint.server_state import (
    MAX_IN_A_ROW,
    MaxTokensReduction,
    ModelIdentity,
    ReasoningPolicy,
    ServerLimits,
    TimeLimit,
    TooManyTokensError,
    listing_difference,
)
from harness.endpoint.transport import StatusError, Transport, encode
from harness.errors import (
    ContextLimitReached,
    EndpointError,
    EndpointUnavailable,
    ReplyTimeout,
    RequestRefused,
    RequestTooLarge,
)
from harness.model import Rendering, Sampling, ServedModel
from harness.rendering import ReasoningFormat, render_prompt, stop_strings, wire_messages
from harness.trajectory import Message, Reply

T = TypeVar("T")

TOKENIZE = "/tokenize"
"""The path of vLLM's tokenizer, next to its `/v1`."""
LISTING_TIMEOUT_SEC = 30.0
"""Time limit of one `GET /v1/models`, which needs no inference."""
_CHECK_EVERY_SEC = 60.0
"""Interval of checks of the model list while replies arrive."""
_SAY_OK = Message(role="user", content="Say ok.")
_SHORT_TOKENS = 16
_WORD = "word "
"""A text that is one token for nearly every tokenizer."""
_MARGIN = 1.2
"""Ratio of the length of a test prompt to the estimated length of the prompt that it stands for."""
_SERVER_IS_UP = {408, 409, 429}
"""Statuses of a server that is up and asks for a retry."""
_NOTHING = "HTTP 200 with finish_reason length and not one token: the prompt is too long for the context"
_NO_SUCH_PATH = {403, 404, 405, 501}
_ABOUT_THE_KEY = {401, 403}
_LENGTH_REFUSED = {400, 413, 416, 422}
"""Statuses with which servers refuse requests that are too long."""
_GAVE_UP_WAITING = {408, 504, 524, 598, 599}
"""Statuses with which a server or gateway reports that an answer takes too long."""
_NAME_IT = "a server without a list of models needs --model NAME"
_LEARNED = "; its context length will be learned from its refusals"
_ELSEWHERE_SEC = 2.0
"""Time limit for finding out whether the endpoint is at another URL."""
_LONG_WAIT_SEC = 10.0
"""A status of _GAVE_UP_WAITING means a slow reply after so many seconds; earlier, an unreachable server."""
NEAR_TIME_LIMIT = "near_time_limit"
"""Sign of a reply that took more than four fifths of its time limit."""
_MORE_TIME = "; the server is there: give a reply more time (--request-timeout), or fewer tokens (--max-tokens)"
_TOOL_FLAG = "--tool-call-parser"  # in the message of a vLLM that was started without it


class ChatModel:
    """A model behind an OpenAI-compatible endpoint, safe to share between concurrent trials.

    `base_url` may lack its `/v1` (`http://host:8000`); any other path is used unchanged.
    `request_timeout_sec` bounds one attempt, including the server's queue; None derives it from `max_tokens` and the
    pace of this server's replies (harness.endpoint.server_state).
    `rendering` selects `/chat/completions`, or `/completions` with a prompt rendered here.
    `max_outage` is the policy for waiting, outside the retry budget, for an endpoint that is down; by default there is
    only the budget. `on_outage` receives messages about the beginning and end of outages, limits learned from refusals,
    and changes in the form of requests.
    Raises EndpointError for an invalid base URL or key, and for contradictory template settings.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None,
        sampling: Sampling,
        *,
        api_key: str | None,
        request_timeout_sec: float | None = None,
        retry: RetryPolicy | None = None,
        on_wait: OnWait | None = None,
        max_outage: OutagePolicy | None = None,
        on_outage: Callable[[str], None] | None = None,
        rendering: Rendering | None = None,
    ) -> None:
        url = full_url(base_url)
        self._scheme, self._likely_urls = urlsplit(url).scheme, likely_urls(url)
        self.url = without_password(url)
        self._root = url.removesuffix("/v1")
        self._tokenizes = True
        self.model = model
        self.sampling = sampling
        self.rendering = rendering or Rendering()
        _check_template_settings(sampling, self.rendering)
        self._reasoning = ReasoningPolicy(self.rendering)
        self.limits = ServerLimits(on_outage or (lambda _: None))
        self._key = usable_key(api_key)
        self._password = urlsplit(url).password
        self._limit = TimeLimit(request_timeout_sec)
        self._retry = retry or RetryPolicy()
        self._retry_elsewhere = self._retry.model_copy(update={"max_costly_attempts": 1})
        self._on_wait = on_wait
        self._on_notice = on_outage or (lambda _: None)
        self.outage = Outage(self._probe, max_outage or OutagePolicy(max_sec=0), self._on_notice)
        self._transport = Transport(url, self._key)
        self.model_identity = ModelIdentity(self._on_notice)
        self._served: ServedModel | None = None
        self.unlisted: str | None = None
        """Message about a model that replies although the endpoint does not list it; None for a listed model."""
        self._broken_list: str | None = None
        """Status of the failing model list of a server that replies nevertheless."""
        self._checked_at = time.monotonic()
        self._checking: asyncio.Task[None] | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """URL of the only server."""
        return (self.url,)

    @property
    def chats(self) -> tuple[ChatModel, ...]:
        """This object, as the client of the only server."""
        return (self,)

    @property
    def proxy(self) -> Proxy | None:
        """Proxy for all requests."""
        return self._transport.proxy

    @property
    def context_tokens(self) -> int | None:
        """Maximum tokens of prompt and reply together, according to the endpoint's list of models or a refusal."""
        return self.limits.context_tokens

    @property
    def most_tokens(self) -> int | None:
        """Largest max_tokens that the endpoint accepts; None as long as no refusal has stated it."""
        return self.limits.most_tokens

    @property
    def patience_sec(self) -> float:
        """Retry budget, plus an attempt that begins at its end, plus the longest outage."""
        longest_sec = self._limit.longest_sec
        return self._retry.total_sec + longest_sec + self.outage.policy.patience_sec(longest_sec)

    def __repr__(self) -> str:
        return f"ChatModel({self.url!r}, {self.model!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})
        await self.outage.close()
        await self._transport.close()

    def at_temperature(self, temperature: float) -> ChatModel:
        """Return the same model and endpoint at another temperature; closed together with this one."""
        other = copy.copy(self)
        other.sampling = self.sampling.model_copy(update={"temperature": temperature})
        return other

    async def connect(self, *, budget_sec: float | None = None) -> ServedModel:
        """Query the served model, and set `model` and `context_tokens`.

        `budget_sec` replaces the retry budget: short to detect a wrong URL, long for a loading server. A model that is
        not listed is accepted if it replies. Raises RequestRefused if it does not, or if no model was named and the
        list does not have exactly one.
        """
        policy = self._retry if budget_sec is None else self._retry.model_copy(update={"total_sec": budget_sec})
        cards = (await self._retry_request("/models", self._list_or_redirect, policy)).value
        served = _as_served(await self._choose_model(cards), cards)
        others = (card.id for card in cards if served.root and card.root == served.root and card.id != served.id)
        served = served.model_copy(update={"names": tuple(dict.fromkeys(others))})
        self.expect(served)
        return served

    def expect(self, served: ServedModel) -> None:
        """Set the served model, which must stay the same from now on."""
        self.model, self.limits.listed_tokens, self._served = served.id, served.context_tokens, served
        self.model_identity.names = served.all_names

    async def query(
        self,
        messages: Sequence[Message],
        *,
        seed: int | None,
        max_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
        has_alternative: bool = False,
    ) -> Reply:
        """Return one reply to `messages`, with retries, and with a lower max_tokens if the server refuses it.

        `has_alternative`: the caller has another endpoint, so it does not wait for this one during an outage. Raises
        EndpointUnavailable, ReplyTimeout, RequestRefused or ContextLimitReached.
        """
        began, refused_sec, attempts = time.monotonic(), 0.0, 0
        lowering = MaxTokensReduction(self.limits, max_tokens)
        tried: list[ReasoningFormat | None] = []
        learned = ""
        while True:
            asked = lowering.max_tokens
            path, body = self.request(messages, seed=seed, max_tokens=asked, tools=tools)
            content = encode(body)
            tried.append(self._reasoning.sent)
            read = partial(self._read, max_tokens=asked, takes_calls=bool(tools))
            absence = self.outage.request(waits=not has_alternative)
            try:
                done = await self._ask(path, content, read, absence, has_alternative=has_alternative, max_tokens=asked)
                break
            except TooManyTokensError as error:
                try:
                    lowering.lower(error)
                except TooManyTokensError:
                    await self._confirm_too_long(error)
                    error.waited_sec = time.monotonic() - began
                    raise
                tried.clear()
            except RequestRefused as refused:
                if (words := self._adapt_reasoning(refused, tried)) is None:
                    if not await self._may_be_length(refused, len(content)):
                        raise
                    full = ContextLimitReached(str(refused))
                    full.waited_sec = time.monotonic() - began
                    raise full from None
                learned = words or learned
            attempts, refused_sec = attempts + 1, time.monotonic() - began
        lowering.record_accepted()
        if learned:
            self._on_notice(learned)
        reply = done.value
        if is_empty(reply):
            raise ContextLimitReached(_NOTHING, reply.usage.prompt_tokens or None)
        self.limits.record_answer(reply.usage, len(content))
        is_near = done.latency_sec > 0.8 * self._limit.seconds_for(asked)
        self._limit.record(reply.usage.completion_tokens, done.latency_sec)
        return reply.model_copy(
            update={
                "latency_sec": done.latency_sec,
                "waited_sec": refused_sec + done.waited_sec,
                "attempts": attempts + done.attempts,
                "max_tokens": asked if asked < max_tokens else None,
                "signs": (*reply.signs, NEAR_TIME_LIMIT) if is_near else reply.signs,
            }
        )

    def _read(self, data: object, *, max_tokens: int, takes_calls: bool) -> Reply:
        context = self.context_tokens
        reply = read_completion(data, max_tokens=max_tokens, context_tokens=context, takes_calls=takes_calls)
        self._require_same(reply)
        if reply.reasoning:
            self._reasoning.note_field(read_reasoning_field(data))
        return reply

    def _read_raw(self, data: object, *, max_tokens: int) -> RawReply:
        self._require_same(read_completion(data, max_tokens=max_tokens, context_tokens=self.context_tokens))
        return read_raw_reply(data)

    def _adapt_reasoning(self, refused: RequestRefused, tried: list[ReasoningFormat | None]) -> str | None:
        """Change the form in which reasoning is sent back, if a refusal is about that.

        Returns a message about the change, empty if another conversation made it; None if nothing new can be tried.
        """
        learned = self._reasoning.learn(refused, tried[-1]) if self._reasoning.sent == tried[-1] else ""
        if learned is None or self._reasoning.sent in tried:
            if len(tried) > 1:
                self._reasoning.sent = tried[0]  # no other form has helped
            return None
        return learned

    async def _may_be_length(self, refused: RequestRefused, sent_bytes: int) -> bool:
        """Test whether a refusal of the longest request so far is about its length, whatever its message says."""
        is_longest = 0 < self.limits.longest_bytes < sent_bytes
        return refused.status in _LENGTH_REFUSED and is_longest and await self._is_too_long(sent_bytes)

    def request(
        self,
        messages: Sequence[Message],
        *,
        seed: int | None,
        max_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[str, dict[str, Any]]:
        """Return the path below the base URL and the body of the request that `query` sends. Raises RequestRefused."""
        path, history = self._history(messages, tools)
        return path, self.sampling.wire_fields({**self._parameters(seed, max_tokens), **history})

    async def complete(
        self, fields: Mapping[str, Any], *, seed: int | None = None, has_alternative: bool = False
    ) -> RawReply:
        """Return one uninterpreted reply to `messages` or a `prompt` that are sent unchanged, with retries.

        `fields` are top-level fields of the request, overridden by sampling settings. `has_alternative` is as in
        `query`. Raises like `query`.
        """
        path = "/chat/completions" if "messages" in fields else "/completions"
        max_tokens = self.sampling.max_tokens
        body = encode(self.sampling.wire_fields({**fields, **self._parameters(seed, max_tokens)}))
        absence = self.outage.request(waits=not has_alternative)
        read = partial(self._read_raw, max_tokens=max_tokens)
        done = await self._ask(path, body, read, absence, has_alternative=has_alternative, max_tokens=max_tokens)
        self._limit.record(done.value.completion_tokens or 0, done.latency_sec)
        return done.value.model_copy(
            update={"latency_sec": done.latency_sec, "waited_sec": done.waited_sec, "attempts": done.attempts}
        )

    async def metrics(self) -> object:
        """Return the body of `/metrics`, next to `/v1`, without retries. Raises EndpointError."""
        try:
            return await self._transport.get_text(f"{self._root}/metrics")
        except TransientError as failure:
            words = failure.reason
        except StatusError as error:
            words = f"HTTP {error.status}"
        raise EndpointUnavailable(self._redact(words))

    async def count_tokens(self, fields: Mapping[str, Any]) -> TokenCount | None:
        """Count the prompt's tokens with the server's tokenizer; None if it has no such endpoint.

        Raises EndpointError if it does not answer, ContextLimitReached if it refuses a prompt of this length.
        """
        if not self._tokenizes:
            return None
        policy = self._retry.model_copy(update={"total_sec": min(self._retry.total_sec, LISTING_TIMEOUT_SEC)})
        body = encode({"model": self.model, **fields})
        try:
            done = await self._ask(TOKENIZE, body, read_token_count, None, policy)
        except RequestRefused as refused:
            if refused.status not in _NO_SUCH_PATH:
                raise
            self._tokenizes = False
            return None
        return done.value

    async def _ask(
        self,
        path: str,
        content: bytes,
        read: Callable[[object], T],
        absence: OutageHandler | None,
        policy: RetryPolicy | None = None,
        *,
        has_alternative: bool = False,
        max_tokens: int | None = None,
    ) -> Success[T]:
        url = self._root + path if path == TOKENIZE else path
        error_for = partial(self._error_for, path, content, max_tokens)
        times_cut = 0

        async def attempt() -> T:
            nonlocal times_cut
            limit_sec = self._limit.seconds_for(max_tokens, times_cut) if max_tokens else self._limit.least_sec
            try:
                answer = self._transport.post(url, content)
                return read(await self._send(answer, limit_sec, error_for, has_alternative=has_alternative))
            except TransientError as failure:
                times_cut += failure.over_time
                raise

        # If there is another server, the second attempt at a reply that takes too long is made there.
        policy = policy or (self._retry_elsewhere if has_alternative else self._retry)
        done = await self._retry_request(path, attempt, policy, absence)
        self.outage.note_answer()
        self._check_weights()
        return done

    def _place_text(self, path: str) -> str:
        through = "" if self.proxy is None else f" through {self.proxy}"
        return f"{without_password(self._root) if path == TOKENIZE else self.url}{path}{through}"

    def _parameters(self, seed: int | None, max_tokens: int) -> dict[str, Any]:
        if self.model is None:
            raise RuntimeError("no model: name one or call connect() first")
        seed = self.sampling.seed if seed is None else seed
        return {
            "model": self.model,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "max_tokens": max_tokens,
            **({} if seed is None else {"seed": seed}),
            **self.sampling.extra_body,
        }

    def _history(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
        """Return the path and the fields of the request for this history."""
        rendering = self.rendering
        if rendering.template == "server":
            fields: dict[str, Any] = {"messages": wire_messages(messages, rendering, self._reasoning.sent)}
            if rendering.chat_template_kwargs:
                fields["chat_template_kwargs"] = rendering.chat_template_kwargs
            if tools:  # an empty list is refused by vLLM
                fields["tools"] = list(tools)
            return "/chat/completions", fields
        if tools:  # refused here, as /completions would ignore them
            words = f"tool calls need the server's own template, and the prompt is rendered as {rendering.template}"
            raise RequestRefused(f"{self.url}/completions: {words}", status=400)
        extra = self.sampling.extra_body
        stop = extra.get("stop") or ()
        return "/completions", {
            "prompt": render_prompt(messages, rendering),
            "stop": [*stop_strings(rendering), *([stop] if isinstance(stop, str) else stop)],
            # Otherwise vLLM drops special tokens before it searches for stop strings, which are special tokens.
            "skip_special_tokens": extra.get("skip_special_tokens", False),
        }

    # -- identity and availability ---------------------------------------------------------------

    async def _probe(self) -> None:
        """Check that the server answers, if only with a refusal. Raises TransientError, also for other weights."""
        try:
            cards = await self.list_models()
        except TransientError as failure:
            failure.reason = self._redact(failure.reason)
            if self._broken_list is None or failure.reason[: len(self._broken_list)] != self._broken_list:
                raise
            cards = []
        except (RequestRefused, ContextLimitReached):
            cards = []
        if (words := self._other_weights(cards)) is not None:
            raise TransientError(words)
        if self.model_identity.is_in_doubt:
            with contextlib.suppress(EndpointError, ContextLimitReached):
                await self._await_known_reply()

    async def _await_known_reply(self) -> None:
        """Query a short reply, or several if a fleet may answer. Raises TransientError if all are of other weights."""
        for _ in range(MAX_IN_A_ROW):
            reply = await self._short_reply()
            try:
                self._require_same(reply)
                return
            except TransientError as failure:
                other = failure
            if not self.model_identity.may_be_fleet:
                break
        raise other

    def _other_weights(self, cards: Sequence[ModelCard]) -> str | None:
        """Return a message if the model list shows another model than at the start; else None."""
        card = next((card for card in cards if card.id == self.model), None)
        if card is None or self._served is None or not self.model_identity.is_strict:
            return None
        words = listing_difference(self._served, _as_served(card, cards))
        return self._redact(f"other weights under the same name: {words}; --other-weights take them") if words else None

    def _require_same(self, reply: Reply) -> None:
        """Raise TransientError for a reply of other weights than before."""
        if (words := self.model_identity.difference(reply)) is not None:
            raise TransientError(self._redact(f"other weights under the same name: {words}; --other-weights take them"))

    def _check_weights(self) -> None:
        """Check now and then that the model list has not changed, as a restart may go unnoticed."""
        now = time.monotonic()
        if now - self._checked_at > _CHECK_EVERY_SEC and self.outage.policy.max_sec > 0:
            self._checked_at = now
            self._checking = asyncio.create_task(self._compare_model_list(), name="check the weights")

    async def _compare_model_list(self) -> None:
        with contextlib.suppress(TransientError, EndpointError, ContextLimitReached):
            if self._other_weights(await self.list_models()) is not None:
                await self.outage.check()

    async def _confirm_too_long(self, error: TooManyTokensError) -> None:
        """Test whether a prompt was refused for its length, unless the refusal says so. Raises RequestRefused."""
        refusal = error.refusal
        if refusal.is_sure:
            return
        if not await self._is_too_long(error.sent_bytes, refusal.prompt_tokens or 0):
            raise error.refused
        self.limits.learn_context(refusal)

    async def _is_too_long(self, sent_bytes: int, tokens: int = 0) -> bool:
        """Whether the server accepts a short prompt, but not a meaningless one of this length."""
        tokens = max(tokens, round(sent_bytes * self.limits.tokens_per_byte))
        words = max(tokens, sent_bytes // len(_WORD))
        as_long = Message(role="user", content=_WORD * round(words * _MARGIN))
        return await self._accepts(_SAY_OK) and not await self._accepts(as_long)

    async def _accepts(self, message: Message) -> bool:
        """Whether the server replies to a message."""
        try:
            await self._short_reply(message, self._limit.seconds_for(_SHORT_TOKENS))
        except (TransientError, EndpointError, ContextLimitReached):
            return False
        return True

    async def _short_reply(self, message: Message = _SAY_OK, limit_sec: float = LISTING_TIMEOUT_SEC) -> Reply:
        """Query a reply of a few tokens in one attempt. Raises TransientError, RequestRefused and the like."""
        path, body = self.request([message], seed=None, max_tokens=_SHORT_TOKENS)
        content = encode(body)
        error_for = partial(self._error_for, path, content, _SHORT_TOKENS)
        answer = await self._send(self._transport.post(path, content), limit_sec, error_for)
        return read_completion(answer, max_tokens=_SHORT_TOKENS, context_tokens=None, takes_calls=False)

    async def _list_or_redirect(self) -> list[ModelCard]:
        """Return the listed models. Raises RequestRefused if the endpoint answers at a similar URL instead."""
        try:
            return await self._list_or_reply()
        except (TransientError, RequestRefused) as failure:
            if isinstance(failure, RequestRefused):
                may_be_elsewhere = failure.status not in _ABOUT_THE_KEY
            else:  # a server that sends an HTTP status is there, but starting or busy
                may_be_elsewhere = not (failure.refused or failure.over_time or failure.status)
            if not may_be_elsewhere or (url := await self._other_url()) is None:
                raise
        words = f"{self.url} has no endpoint, but {without_password(url)} has one: use that URL"
        raise RequestRefused(words, status=404)

    async def _other_url(self) -> str | None:
        """Return a similar URL where models are listed; searched once, since a server may only be starting."""
        urls, self._likely_urls = self._likely_urls, []
        for url in urls:
            if await self._is_endpoint(url):
                return url
        return None

    async def _is_endpoint(self, url: str) -> bool:
        """Whether another URL of the same server is an endpoint; a key given for https is not sent over http."""
        is_as_safe = urlsplit(url).scheme in (self._scheme, "https")
        transport = Transport(url, self._key if is_as_safe else None)
        try:
            async with asyncio.timeout(_ELSEWHERE_SEC):
                return bool(read_models(await transport.get("/models")))
        except StatusError as error:
            return error.status in _ABOUT_THE_KEY and not is_as_safe
        except (TransientError, EndpointError, TimeoutError):
            return False
        finally:
            await transport.close()

    async def _list_or_reply(self) -> list[ModelCard]:
        """Return the listed models; none if the list fails but the named model replies."""
        try:
            return await self.list_models()
        except (TransientError, RequestRefused) as failure:
            is_gone = isinstance(failure, TransientError) and (failure.refused or failure.broke or failure.over_time)
            if is_gone:
                raise
            if self.model is None and isinstance(failure, RequestRefused):
                raise RequestRefused(f"{failure} ({_NAME_IT})", failure.status) from None
            if self.model is None and isinstance(failure, TransientError):
                failure.reason = f"{failure.reason[:200]} ({_NAME_IT})"
                raise
            self._broken_list = str(failure)[: len("HTTP 500")]
            try:
                await self._short_reply()
            except (TransientError, EndpointError, ContextLimitReached) as also:
                if isinstance(also, RequestRefused) and also.status not in _NO_SUCH_PATH:
                    raise
                raise failure from None
            why = self._redact(str(failure))
            self._report_unlisted(f"has no list of models ({why})")
            return []

    def _report_unlisted(self, words: str) -> None:
        self.unlisted = f"{words}, and {self.model!r} replies{_LEARNED}"
        self._on_notice(self.unlisted)

    async def list_models(self) -> list[ModelCard]:
        """Return the models that the endpoint lists, in one attempt. Raises TransientError or RequestRefused."""
        timeout_sec = min(self._limit.least_sec, LISTING_TIMEOUT_SEC)
        error_for = partial(self._error_for, "/models", b"", None)
        return read_models(await self._send(self._transport.get("/models"), timeout_sec, error_for))

    async def _choose_model(self, cards: Sequence[ModelCard]) -> ModelCard:
        ids = [card.id for card in cards]
        listed = shorten(", ".join(ids)) or "no model"
        if self.model is None:
            if len(cards) == 1:
                return cards[0]
            raise RequestRefused(f"{self.url} lists {listed}: name the model to use", status=404)
        if self.model in ids:
            return cards[ids.index(self.model)]
        if not cards and self._broken_list is not None:
            return ModelCard(id=self.model)
        with contextlib.suppress(TransientError, EndpointError, ContextLimitReached):
            reply = await self._short_reply()
            # A server that accepts any name reports its own name of the model.
            if not ids or (reply.model is not None and reply.model not in ids):
                self._report_unlisted(f"lists {listed}")
                return ModelCard(id=self.model)
        raise RequestRefused(f"{self.url} does not serve {self.model!r}; it lists {listed}", status=404)

    async def _retry_request(
        self, path: str, attempt: Callable[[], Awaitable[T]], policy: RetryPolicy, absence: OutageHandler | None = None
    ) -> Success[T]:
        kind: type[EndpointError] = EndpointUnavailable
        try:
            return await with_retries(attempt, policy, self._report_wait, absence)
        except BudgetSpentError as error:
            times = "1 attempt" if error.attempts == 1 else f"{error.attempts} attempts"
            words = f"{self._redact(error.failure.reason)} (gave up after {times})"
            if error.failure.over_time and await self.outage.is_reachable():
                kind = ReplyTimeout
                words += _MORE_TIME
        except OutageTooLongError as error:
            words = str(error)
        raise kind(f"{self._place_text(path)}: {words}")

    def _report_wait(self, reason: str, seconds: float) -> None:
        if self._on_wait is not None:
            self._on_wait(self._redact(reason), seconds)

    async def _send(
        self,
        answer: Awaitable[object],
        timeout_sec: float,
        error_for: Callable[[StatusError], Exception],
        *,
        has_alternative: bool = False,
    ) -> object:
        """Make one attempt and return the decoded body of a 200. Raises one of our exceptions otherwise."""
        began = time.monotonic()
        try:
            async with self.outage.attempt(timeout_sec, has_alternative=has_alternative) as pending:
                body = await answer
            if not (isinstance(body, dict) and body.get("error") and not body.get("choices")):
                return body
            failure = error_for(StatusError(RawAnswer(200, json.dumps(body).encode())))
        except TimeoutError:
            if pending.lost:
                failure = TransientError("the server was down for a while, and the request is lost", lost=True)
            else:
                failure = TransientError(f"no answer within {timeout_sec:.4g} s", over_time=True)
        except StatusError as error:
            failure = _gave_up_error(error, time.monotonic() - began) or error_for(error)
        # Raised outside the handlers: the original exception may quote the key.
        raise failure

    def _error_for(self, path: str, content: bytes, max_tokens: int | None, error: StatusError) -> Exception:
        """Return the exception for an answer that refuses a request."""
        size = len(content)
        refusal = classify_refusal(error.status, error.body, sent=content, max_tokens=max_tokens)
        words = f"HTTP {error.status}: {refusal.words or 'no message'}"
        if refusal.reason in {Reason.RATE, Reason.TROUBLE}:
            asked = retry_after_sec(error.retry_after)
            is_up = error.status in _SERVER_IS_UP
            return TransientError(words, retry_after_sec=asked, answered=is_up, status=error.status)
        where = f"{self._place_text(path)}: {self._redact(words)}"
        if content and refusal.reason is Reason.BODY:
            return RequestTooLarge(f"{where} (the request has {_size_text(size)}; {BODY_REMEDY})")
        refused = RequestRefused(f"{where}{_advice(error.status, words, refusal, size)}", error.status)
        if not content or refusal.reason in {Reason.BODY, Reason.OTHER}:
            return refused
        if self.limits.contradicts(refusal, size):
            return RequestRefused(
                f"{where} (it has answered longer prompts, so the length is not the reason)", error.status
            )
        return TooManyTokensError(self._redact(words), refusal, size, refused)

    def _redact(self, text: str) -> str:
        """Shorten foreign text, and remove key and password, which some servers repeat."""
        for secret, shown in ((self._key, "[key]"), (self._password, "[password]")):
            text = text.replace(secret, shown) if secret else text
        return shorten(text)


def _as_served(card: ModelCard, cards: Sequence[ModelCard]) -> ServedModel:
    base = next((each for each in cards if each.id == card.parent), card)  # a LoRA adapter's own card has no length
    return ServedModel(id=card.id, context_tokens=card.max_model_len or base.max_model_len, root=card.root)


def _check_template_settings(sampling: Sampling, rendering: Rendering) -> None:
    if "chat_template_kwargs" not in sampling.extra_body:
        return
    if rendering.template != "server":
        raise EndpointError(f"chat_template_kwargs are for the server's template, not for {rendering.template}")
    if rendering.chat_template_kwargs:
        raise EndpointError("chat_template_kwargs are set twice, also in extra_body; set them in one place")


def _size_text(size: int) -> str:
    return f"{size / 1000:,.0f} kB" if size >= 1000 else f"{size} bytes"


def _advice(status: int, words: str, refusal: Refusal, size: int) -> str:
    if not refusal.is_sure and refusal.reason is Reason.OTHER:
        return f" (probably its size, {_size_text(size)}: {BODY_REMEDY})"
    if status in _ABOUT_THE_KEY:
        return " (check OPENAI_API_KEY)"
    if _TOOL_FLAG in words:
        return f" (start vLLM with --enable-auto-tool-choice {_TOOL_FLAG} NAME, or use a protocol without tool calls)"
    return ""


def _gave_up_error(error: StatusError, waited_sec: float) -> TransientError | None:
    """Return the error for an answer saying that a server or gateway gave up waiting; None for any other."""
    if error.status not in _GAVE_UP_WAITING or waited_sec < _LONG_WAIT_SEC:
        return None
    is_gateway = error.is_page or error.status != 408
    who = f"a gateway ({error.server.partition('/')[0]})" if error.server and is_gateway else "a gateway"
    who = who if is_gateway else "the server"
    message = shorten(server_message(error.body)) or "no message"
    words = f"HTTP {error.status} from {who} after {waited_sec:.0f} s: it gave up waiting for the reply ({message}); "
    remedy = "raise its own time limit (nginx: proxy_read_timeout; LiteLLM: request_timeout)"
    return TransientError(words + remedy, over_time=True)
