"""The model behind an OpenAI-compatible endpoint: requests, retries, and what a failure is blamed on."""

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

from harness.endpoint.address import Proxy, full_url, usable_key, without_password
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
    server_words,
    shorten,
)
from harness.endpoint.bodies import RawAnswer
from harness.endpoint.completion import says_nothing
from harness.endpoint.outage import AwayTooLongError, Outage, OutagePolicy
from harness.endpoint.refusals import BODY_REMEDY, Reason, Refusal, judge
from harness.endpoint.retry import Absence, BudgetSpentError, OnWait, RetryPolicy, Success, TransientError, persist
from harness.endpoint.server_state import (
    MOST_IN_A_ROW,
    Lowering,
    ReasoningPolicy,
    Replier,
    ServerLimits,
    TimeLimit,
    TooManyTokens,
    served_otherwise,
)
from harness.endpoint.transport import StatusError, Transport, encoded
from harness.errors import (
    ContextLimitReached,
    EndpointError,
    EndpointUnavailable,
    ReplyTimeout,
    RequestRefused,
    RequestTooLarge,
)
from harness.model import Model, Rendering, Sampling, ServedModel
from harness.rendering import Sent, render_prompt, stop_strings, wire_messages
from harness.trajectory import Message, Reply

__all__ = [
    "ChatModel",
    "Model",
    "OnWait",
    "OutagePolicy",
    "RawReply",
    "Rendering",
    "RetryPolicy",
    "Sampling",
    "ServedModel",
    "TokenCount",
    "without_password",
]

T = TypeVar("T")

TOKENIZE = "/tokenize"
"""The path of vLLM's tokenizer, beside its `/v1`."""
LISTING_TIMEOUT_SEC = 30.0
"""Time limit of one `GET /v1/models`, which takes no model's work."""
_LOOK_EVERY_SEC = 60.0
"""Time between two looks at the list of models while replies come."""
_SAY_OK = Message(role="user", content="Say ok.")
_SHORT_TOKENS = 16
_WORD = "word "
"""A token, nearly everywhere."""
_MARGIN = 1.2
"""By how much a prompt is longer that is tried in the place of one whose tokens are estimated."""
_THERE = {408, 409, 429}
"""Statuses of a server that is there and asks to come again."""
_NOTHING = "HTTP 200 with finish_reason length and not one token: the prompt is too long for the context"
_NO_SUCH_PATH = {403, 404, 405, 501}
_LENGTH_REFUSED = {400, 413, 416, 422}
"""Statuses with which servers refuse what is too long."""
_GAVE_UP_WAITING = {408, 504, 524, 598, 599}
"""Statuses by which a server, or what stands before it, says that an answer takes too long."""
_NAME_IT = "a server without a list of models needs --model NAME"
_LEARNED = "; how long its context is shows in what it refuses"
_LONG_WAIT_SEC = 10.0
"""A wait from which on such a status is about a reply; before, it is about a server that cannot be reached."""
NEAR_TIME_LIMIT = "near_time_limit"
"""Sign of a reply that took more than four fifths of the time that it might have taken."""
_MORE_TIME = "; the server is there: give a reply more time (--request-timeout), or fewer tokens (--max-tokens)"
_TOOL_FLAG = "--tool-call-parser"  # in the words of a vLLM that was started without it


class ChatModel:
    """A model behind an OpenAI-compatible endpoint, safe to share between concurrent trials.

    `base_url` is given with its `/v1` or without (`http://host:8000`); any other path is used as it is.
    `request_timeout_sec` bounds one attempt from outside, the server's queue included; None is by `max_tokens` and
    the pace of this server's replies (harness.endpoint.server_state).
    `rendering` chooses between `/chat/completions` and `/completions` with a prompt rendered here.
    `max_outage` says how long requests wait, at no cost to their budget, for an endpoint that is away altogether;
    by default there is only the budget. `on_outage` is told in words when that begins and ends, of the limits that the
    endpoint's refusals tell, and when the way changes in which it is asked.
    Raises EndpointError for what cannot be used at all: base URL, key, contradictory template settings.
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
        self._retry_elsewhere = self._retry.model_copy(update={"most_costly": 1})
        self._on_wait = on_wait
        self._on_notice = on_outage or (lambda _: None)
        self.outage = Outage(self._probe, max_outage or OutagePolicy(max_sec=0), self._on_notice)
        self._transport = Transport(url, self._key)
        self.replier = Replier(self._on_notice)
        self._served: ServedModel | None = None
        self.unlisted: str | None = None
        """What the endpoint lists instead of the model, which replies nevertheless; None for one that is listed."""
        self._broken_list: str | None = None
        """How the list of models fails at a server that replies nevertheless."""
        self._looked_at = time.monotonic()
        self._looking: asyncio.Task[None] | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """Its URL, as that of the only server."""
        return (self.url,)

    @property
    def chats(self) -> tuple[ChatModel, ...]:
        """Itself, as the client of the only server."""
        return (self,)

    @property
    def proxy(self) -> Proxy | None:
        """The proxy through which it is asked."""
        return self._transport.proxy

    @property
    def context_tokens(self) -> int | None:
        """Tokens of prompt and reply together, as the endpoint's list of models or a refusal tells."""
        return self.limits.context_tokens

    @context_tokens.setter
    def context_tokens(self, listed: int | None) -> None:
        self.limits.listed_tokens = listed

    @property
    def most_tokens(self) -> int | None:
        """The largest max_tokens that the endpoint takes; None where no refusal has told."""
        return self.limits.most_tokens

    @property
    def patience_sec(self) -> float:
        """The retry budget, plus an attempt that begins at its end, plus the longest outage."""
        longest_sec = self._limit.longest_sec
        return self._retry.total_sec + longest_sec + self.outage.policy.patience_sec(longest_sec)

    def __repr__(self) -> str:
        return f"ChatModel({self.url!r}, {self.model!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        await self.outage.close()
        await self._transport.close()

    def at_temperature(self, temperature: float) -> ChatModel:
        """The same model at the same endpoint, asked at another temperature; it is closed with this one."""
        other = copy.copy(self)
        other.sampling = self.sampling.model_copy(update={"temperature": temperature})
        return other

    async def connect(self, *, budget_sec: float | None = None) -> ServedModel:
        """Ask the endpoint what it serves; settles `model` and `context_tokens`.

        `budget_sec` replaces the retry budget: short to find a wrong URL soon, long for a loading server.
        A model that is not listed is taken where it replies. Raises RequestRefused where it does not, or none was named
        and there is a choice.
        """
        policy = self._retry if budget_sec is None else self._retry.model_copy(update={"total_sec": budget_sec})
        cards = (await self._persist("/models", self._listed, policy)).value
        served = _as_served(await self._chosen(cards), cards)
        others = (card.id for card in cards if served.root and card.root == served.root and card.id != served.id)
        served = served.model_copy(update={"names": tuple(dict.fromkeys(others))})
        self.expect(served)
        return served

    def expect(self, served: ServedModel) -> None:
        """Take what is served for known: later it has to be the same."""
        self.model, self.context_tokens, self._served = served.id, served.context_tokens, served
        self.replier.names = served.all_names

    async def query(
        self,
        messages: Sequence[Message],
        *,
        seed: int | None,
        max_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
        elsewhere: bool = False,
    ) -> Reply:
        """One reply to `messages`, with retries, and with less max_tokens where the server refuses so many.

        `elsewhere`: the caller has another endpoint, so this one being away is no reason to wait.
        Raises EndpointUnavailable, ReplyTimeout, RequestRefused or ContextLimitReached.
        """
        began, refused_sec, attempts = time.monotonic(), 0.0, 0
        lowering = Lowering(self.limits, max_tokens)
        tried: list[Sent | None] = []
        learned = ""
        while True:
            asked = lowering.max_tokens
            path, body = self.request(messages, seed=seed, max_tokens=asked, tools=tools)
            content = encoded(body)
            tried.append(self._reasoning.sent)
            read = partial(self._read, max_tokens=asked, takes_calls=bool(tools))
            absence = self.outage.request(waits=not elsewhere)
            try:
                done = await self._ask(path, content, read, absence, elsewhere=elsewhere, max_tokens=asked)
                break
            except TooManyTokens as error:
                try:
                    lowering.lower(error)
                except TooManyTokens:
                    await self._prove(error)
                    error.waited_sec = time.monotonic() - began
                    raise
                tried.clear()
            except RequestRefused as refused:
                if (words := self._learned(refused, tried)) is None:
                    if not await self._may_be_length(refused, len(content)):
                        raise
                    full = ContextLimitReached(str(refused))
                    full.waited_sec = time.monotonic() - began
                    raise full from None
                learned = words or learned
            attempts, refused_sec = attempts + 1, time.monotonic() - began
        lowering.accepted()
        if learned:
            self._on_notice(learned)
        reply = done.value
        if says_nothing(reply):
            raise ContextLimitReached(_NOTHING, reply.usage.prompt_tokens or None)
        self.limits.answered(reply.usage, len(content))
        is_near = done.latency_sec > 0.8 * self._limit.of(asked)
        self._limit.saw(reply.usage.completion_tokens, done.latency_sec)
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
            self._reasoning.came_as(read_reasoning_field(data))
        return reply

    def _read_raw(self, data: object, *, max_tokens: int) -> RawReply:
        self._require_same(read_completion(data, max_tokens=max_tokens, context_tokens=self.context_tokens))
        return read_raw_reply(data)

    def _learned(self, refused: RequestRefused, tried: list[Sent | None]) -> str | None:
        """Change how reasoning goes back, where a refusal is about that: the change in words, which are empty where
        another conversation has made it; None where nothing new can be tried."""
        learned = self._reasoning.learn(refused, tried[-1]) if self._reasoning.sent == tried[-1] else ""
        if learned is None or self._reasoning.sent in tried:
            if len(tried) > 1:
                self._reasoning.sent = tried[0]  # no other way has helped
            return None
        return learned

    async def _may_be_length(self, refused: RequestRefused, sent_bytes: int) -> bool:
        """Try whether a refusal of the longest request so far is about its length, in whatever words, or in none."""
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
        """The path below the base URL, and the body, of the request that `query` sends. Raises RequestRefused."""
        path, history = self._history(messages, tools)
        return path, self.sampling.on_the_wire({**self._parameters(seed, max_tokens), **history})

    async def complete(
        self, fields: Mapping[str, Any], *, seed: int | None = None, elsewhere: bool = False
    ) -> RawReply:
        """One reply to `messages` or a `prompt` that are sent as they are, text verbatim, with retries.

        `fields` are top-level fields of the request; the sampling's win over them. `elsewhere` is that of `query`.
        Raises as `query` does.
        """
        path = "/chat/completions" if "messages" in fields else "/completions"
        max_tokens = self.sampling.max_tokens
        body = encoded(self.sampling.on_the_wire({**fields, **self._parameters(seed, max_tokens)}))
        absence = self.outage.request(waits=not elsewhere)
        read = partial(self._read_raw, max_tokens=max_tokens)
        done = await self._ask(path, body, read, absence, elsewhere=elsewhere, max_tokens=max_tokens)
        self._limit.saw(done.value.completion_tokens or 0, done.latency_sec)
        return done.value.model_copy(
            update={"latency_sec": done.latency_sec, "waited_sec": done.waited_sec, "attempts": done.attempts}
        )

    async def metrics(self) -> object:
        """The body of the `/metrics` beside its `/v1`, asked for once, without retries. Raises EndpointError."""
        try:
            return await self._transport.get_text(f"{self._root}/metrics")
        except TransientError as failure:
            words = failure.reason
        except StatusError as error:
            words = f"HTTP {error.status}"
        raise EndpointUnavailable(self._public(words))

    async def count_tokens(self, fields: Mapping[str, Any]) -> TokenCount | None:
        """The prompt's tokens by the server's own tokenizer; None where the server does not count.

        Raises EndpointError when it cannot be asked, ContextLimitReached when it refuses to count so much.
        """
        if not self._tokenizes:
            return None
        policy = self._retry.model_copy(update={"total_sec": min(self._retry.total_sec, LISTING_TIMEOUT_SEC)})
        body = encoded({"model": self.model, **fields})
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
        absence: Absence | None,
        policy: RetryPolicy | None = None,
        *,
        elsewhere: bool = False,
        max_tokens: int | None = None,
    ) -> Success[T]:
        url = self._root + path if path == TOKENIZE else path
        judged = partial(self._judged, path, content, max_tokens)
        times_cut = 0

        async def attempt() -> T:
            nonlocal times_cut
            limit_sec = self._limit.of(max_tokens, times_cut) if max_tokens else self._limit.least_sec
            try:
                answer = self._transport.post(url, content)
                return read(await self._send(answer, limit_sec, judged, elsewhere=elsewhere))
            except TransientError as failure:
                times_cut += failure.over_time
                raise

        # Where there is another server, the second attempt at a reply that takes too long is made there.
        policy = policy or (self._retry_elsewhere if elsewhere else self._retry)
        done = await self._persist(path, attempt, policy, absence)
        self.outage.heard()
        self._look_at_weights()
        return done

    def _where(self, path: str) -> str:
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
        """The path of the request for this history, and its fields."""
        rendering = self.rendering
        if rendering.template == "server":
            fields: dict[str, Any] = {"messages": wire_messages(messages, rendering, self._reasoning.sent)}
            if rendering.chat_template_kwargs:
                fields["chat_template_kwargs"] = rendering.chat_template_kwargs
            if tools:  # an empty list is refused by vLLM
                fields["tools"] = list(tools)
            return "/chat/completions", fields
        if tools:  # refused here: the server would never hear of them
            words = f"tool calls need the server's own template, and the prompt is rendered as {rendering.template}"
            raise RequestRefused(f"{self.url}/completions: {words}", status=400)
        extra = self.sampling.extra_body
        return "/completions", {
            "prompt": render_prompt(messages, rendering),
            "stop": [*stop_strings(rendering), *_as_list(extra.get("stop"))],
            # Else vLLM drops special tokens before it looks for stop strings, which are just that.
            "skip_special_tokens": extra.get("skip_special_tokens", False),
        }

    # -- who answers -----------------------------------------------------------------------------

    async def _probe(self) -> None:
        """Ask whether the model is there; a refusal says yes, too. Raises TransientError, also for other weights."""
        try:
            cards = await self.list_models()
        except TransientError as failure:
            failure.reason = self._public(failure.reason)
            if self._broken_list is None or failure.reason[: len(self._broken_list)] != self._broken_list:
                raise
            cards = []
        except (RequestRefused, ContextLimitReached):
            cards = []
        if (words := self._other_weights(cards)) is not None:
            raise TransientError(words)
        if self.replier.is_in_doubt:
            with contextlib.suppress(EndpointError, ContextLimitReached):
                await self._until_known_replies()

    async def _until_known_replies(self) -> None:
        """Ask for short replies, several times where it may be a fleet. Raises TransientError for other weights."""
        for _ in range(MOST_IN_A_ROW):
            reply = await self._short_reply()
            try:
                self._require_same(reply)
                return
            except TransientError as failure:
                other = failure
            if not self.replier.may_be_fleet:
                break
        raise other

    def _other_weights(self, cards: Sequence[ModelCard]) -> str | None:
        """How the list of models says that the model is another than at the start; None where it does not."""
        card = next((card for card in cards if card.id == self.model), None)
        if card is None or self._served is None or not self.replier.is_strict:
            return None
        words = served_otherwise(self._served, _as_served(card, cards))
        return self._public(f"other weights under the same name: {words}; --other-weights take them") if words else None

    def _require_same(self, reply: Reply) -> None:
        """Raise TransientError for a reply of other weights than those before."""
        if (words := self.replier.difference(reply)) is not None:
            raise TransientError(self._public(f"other weights under the same name: {words}; --other-weights take them"))

    def _look_at_weights(self) -> None:
        """Look now and then whether the list of models still says the same: a restart may go unnoticed."""
        now = time.monotonic()
        if now - self._looked_at > _LOOK_EVERY_SEC and self.outage.policy.max_sec > 0:
            self._looked_at = now
            self._looking = asyncio.create_task(self._find_other_weights(), name="look at the weights")

    async def _find_other_weights(self) -> None:
        with contextlib.suppress(TransientError, EndpointError, ContextLimitReached):
            if self._other_weights(await self.list_models()) is not None:
                await self.outage.look()

    async def _prove(self, error: TooManyTokens) -> None:
        """Try whether a prompt is refused for its length, unless the refusal says so. Raises RequestRefused where it is
        not."""
        refusal = error.refusal
        if refusal.is_sure:
            return
        if not await self._is_too_long(error.sent_bytes, refusal.prompt_tokens or 0):
            raise error.refused
        self.limits.learn_context(refusal)

    async def _is_too_long(self, sent_bytes: int, tokens: int = 0) -> bool:
        """Whether the server takes a short prompt, and none that is as long as this one and says nothing."""
        tokens = max(tokens, round(sent_bytes * self.limits.tokens_per_byte))
        words = max(tokens, sent_bytes // len(_WORD))
        as_long = Message(role="user", content=_WORD * round(words * _MARGIN))
        return await self._takes(_SAY_OK) and not await self._takes(as_long)

    async def _takes(self, message: Message) -> bool:
        """Whether the server replies to a message."""
        try:
            await self._short_reply(message, self._limit.of(_SHORT_TOKENS))
        except (TransientError, EndpointError, ContextLimitReached):
            return False
        return True

    async def _short_reply(self, message: Message = _SAY_OK, limit_sec: float = LISTING_TIMEOUT_SEC) -> Reply:
        """A reply of a few tokens. Raises TransientError, RequestRefused and the like after one attempt."""
        path, body = self.request([message], seed=None, max_tokens=_SHORT_TOKENS)
        content = encoded(body)
        judged = partial(self._judged, path, content, _SHORT_TOKENS)
        answer = await self._send(self._transport.post(path, content), limit_sec, judged)
        return read_completion(answer, max_tokens=_SHORT_TOKENS, context_tokens=None, takes_calls=False)

    async def _listed(self) -> list[ModelCard]:
        """The models that are listed; none where the list cannot be had, and the model that was named replies."""
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
            why = self._public(str(failure))
            self._tell_unlisted(f"has no list of models ({why})")
            return []

    def _tell_unlisted(self, words: str) -> None:
        self.unlisted = f"{words}, and {self.model!r} replies{_LEARNED}"
        self._on_notice(self.unlisted)

    async def list_models(self) -> list[ModelCard]:
        """The models that the endpoint lists now, asked for once. Raises TransientError or RequestRefused."""
        timeout_sec = min(self._limit.least_sec, LISTING_TIMEOUT_SEC)
        judged = partial(self._judged, "/models", b"", None)
        return read_models(await self._send(self._transport.get("/models"), timeout_sec, judged))

    async def _chosen(self, cards: Sequence[ModelCard]) -> ModelCard:
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
            # A server that takes any name says by which of its own it knows the model.
            if not ids or (reply.model is not None and reply.model not in ids):
                self._tell_unlisted(f"lists {listed}")
                return ModelCard(id=self.model)
        raise RequestRefused(f"{self.url} does not serve {self.model!r}; it lists {listed}", status=404)

    async def _persist(
        self, path: str, attempt: Callable[[], Awaitable[T]], policy: RetryPolicy, absence: Absence | None = None
    ) -> Success[T]:
        kind: type[EndpointError] = EndpointUnavailable
        try:
            return await persist(attempt, policy, self._tell_waiting, absence)
        except BudgetSpentError as error:
            times = "1 attempt" if error.attempts == 1 else f"{error.attempts} attempts"
            words = f"{self._public(error.failure.reason)} (gave up after {times})"
            if error.failure.over_time and await self.outage.is_there():
                kind = ReplyTimeout
                words += _MORE_TIME
        except AwayTooLongError as error:
            words = str(error)
        raise kind(f"{self._where(path)}: {words}")

    def _tell_waiting(self, reason: str, seconds: float) -> None:
        if self._on_wait is not None:
            self._on_wait(self._public(reason), seconds)

    async def _send(
        self,
        answer: Awaitable[object],
        timeout_sec: float,
        judged: Callable[[StatusError], Exception],
        *,
        elsewhere: bool = False,
    ) -> object:
        """Make one attempt: the decoded body of a 200, else an exception of ours."""
        began = time.monotonic()
        try:
            async with self.outage.attempt(timeout_sec, elsewhere=elsewhere) as flight:
                body = await answer
            if not (isinstance(body, dict) and body.get("error") and not body.get("choices")):
                return body
            failure = judged(StatusError(RawAnswer(200, json.dumps(body).encode())))
        except TimeoutError:
            failure = _no_answer(timeout_sec, lost=flight.lost)
        except StatusError as error:
            failure = _given_up(error, time.monotonic() - began) or judged(error)
        # Raised outside the handlers: what a server quotes may hold the key.
        raise failure

    def _judged(self, path: str, content: bytes, max_tokens: int | None, error: StatusError) -> Exception:
        """The exception for an answer that is a refusal of a request."""
        size = len(content)
        refusal = judge(error.status, error.body, sent=content, max_tokens=max_tokens)
        words = f"HTTP {error.status}: {refusal.words or 'no message'}"
        if refusal.reason in {Reason.RATE, Reason.TROUBLE}:
            asked = retry_after_sec(error.retry_after)
            return TransientError(words, retry_after_sec=asked, answered=error.status in _THERE)
        where = f"{self._where(path)}: {self._public(words)}"
        if content and refusal.reason is Reason.BODY:
            return RequestTooLarge(f"{where} (the request has {_in_units(size)}; {BODY_REMEDY})")
        refused = RequestRefused(f"{where}{_advice(error.status, words, refusal, size)}", error.status)
        if not content or refusal.reason in {Reason.BODY, Reason.OTHER}:
            return refused
        if self.limits.contradict(refusal, size):
            return RequestRefused(
                f"{where} (it has answered longer prompts: this is not about the length)", error.status
            )
        return TooManyTokens(self._public(words), refusal, size, refused)

    def _public(self, text: str) -> str:
        """Foreign text, cut, without key and password, which some servers repeat."""
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


def _as_list(stop: Any) -> list[Any]:
    """The stop strings in what a user may write: a string, a list, nothing."""
    return [stop] if isinstance(stop, str) else list(stop or ())


def _in_units(size: int) -> str:
    return f"{size / 1000:,.0f} kB" if size >= 1000 else f"{size} bytes"


def _advice(status: int, words: str, refusal: Refusal, size: int) -> str:
    if not refusal.is_sure and refusal.reason is Reason.OTHER:
        return f" (probably its size, {_in_units(size)}: {BODY_REMEDY})"
    if status in {401, 403}:
        return " (check OPENAI_API_KEY)"
    if _TOOL_FLAG in words:
        return f" (start vLLM with --enable-auto-tool-choice {_TOOL_FLAG} NAME, or take a protocol without tool calls)"
    return ""


def _no_answer(timeout_sec: float, *, lost: bool) -> TransientError:
    if lost:
        return TransientError("the server was away for a while, and the request is lost", lost=True)
    return TransientError(f"no answer within {timeout_sec:.4g} s", over_time=True)


def _given_up(error: StatusError, waited_sec: float) -> TransientError | None:
    """What becomes of an answer by which something on the way says that it waits no longer; None for any other."""
    if error.status not in _GAVE_UP_WAITING or waited_sec < _LONG_WAIT_SEC:
        return None
    is_gateway = error.is_page or error.status != 408
    who = f"a gateway ({error.server.partition('/')[0]})" if error.server and is_gateway else "a gateway"
    who = who if is_gateway else "the server"
    said = shorten(server_words(error.body)) or "no message"
    words = f"HTTP {error.status} from {who} after {waited_sec:.0f} s: it gave up waiting for the reply ({said}); "
    remedy = "raise its own time limit (nginx: proxy_read_timeout; LiteLLM: request_timeout)"
    return TransientError(words + remedy, over_time=True)
