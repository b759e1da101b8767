"""Serves the dialects over HTTP, for one trial: checks the secret, asks the model, answers in the dialect."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web

from harness.concurrency import take_turn
from harness.errors import ContextLimitReached
from harness.model_text import without_lone_surrogates
from harness.trajectory import Message, Outcome, Reply
from tbench.gateway.chat import ChatDialect
from tbench.gateway.dialect import KEEP_ALIVE, STATUS, Answer, BadRequest, Body, Dialect, ModelRequest, Refused
from tbench.gateway.messages import MessagesDialect
from tbench.gateway.responses import ResponsesDialect

Ask = Callable[[Sequence[Message], int, Sequence[Mapping[str, Any]]], Awaitable[Reply]]
"""Asks the model: messages, max_tokens, tools. Raises ContextLimitReached."""
DIALECTS: Mapping[str, Dialect] = {
    "/chat/completions": ChatDialect(),
    "/responses": ResponsesDialect(),
    "/messages": MessagesDialect(),
}
"""Dialects by path below `/v1`."""
LARGEST_BODY = 32 << 20
"""Maximum number of bytes of a request, unpacked."""
MOST_PARTS = 200_000
"""Maximum number of lists, objects and their entries in a request, and of escaped halves of surrogate pairs. Parsing
these blocks all trials; the bytes of a long text do not."""
DEEPEST = 100
"""Maximum depth of lists and objects in a request. Much deeper ones could not be stored with the trial."""
MAX_AT_ONCE = 16
"""Maximum number of requests of one trial in memory; further ones wait unread."""
_SHARE = 0.1
"""Largest share of the event loop's time for reading one trial's requests."""
_FREE_SEC = 0.02
"""CPU time of reading a request that does not count towards this share."""
_MOST_NAMES, _LONGEST_NAME = 1000, 100
"""Maximum number and length of the names of fields and tools that are counted as left out."""
_COUNT_TOKENS = "/messages/count_tokens"
_QUIET_SEC = 10.0
"""Longest silence of a streamed answer: agents give up on a stream that is silent for too long."""
_TOKENS_PER_BYTE = 0.3
"""Estimate that is used until the server has counted the tokens of a prompt."""
_UNHEARD = logging.Logger("requests of agents", level=logging.CRITICAL + 1)
"""Drops aiohttp's messages: an agent that sends nonsense must not fill the screen, and `failure` keeps bugs."""
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Gateway:
    """The endpoint of one trial. `serve` is a factory of protocols for its connections.

    `max_tokens` bounds each reply. While the model's endpoint is down, streamed answers get comments, and others wait.
    """

    def __init__(self, ask: Ask, *, secret: str, model: str, max_tokens: int, context_tokens: int | None) -> None:
        self._ask = ask
        self._secret = secret.encode()
        self._model = model
        self._max_tokens, self._context_tokens = max_tokens, context_tokens
        self._tokens_per_byte = _TOKENS_PER_BYTE
        self._asking: set[asyncio.Task[Reply]] = set()
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._reading = asyncio.Lock()
        self.left_out: Counter[str] = Counter()
        """For each field or tool without effect, the number of requests that had it."""
        self.answered = 0
        """Number of replies of the model."""
        self.reason_to_give_up: Outcome | None = None
        """Outcome to record if the agent gives up now: the context is full, or the last reply was cut and so had no
        usable action."""
        self.failure: Exception | None = None
        """First unexpected exception, which is a bug."""
        self.serve = web.Server(self._handle, access_log=None, logger=_UNHEARD)

    async def close(self) -> None:
        """End all connections and pending requests."""
        for task in self._asking:
            task.cancel()
        await self.serve.shutdown(timeout=1.0)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.removeprefix("/v1").rstrip("/")
        otherwise = "/messages" if "anthropic-version" in request.headers else "/chat/completions"
        dialect = DIALECTS.get(path.removesuffix("/count_tokens"), DIALECTS[otherwise])
        try:
            return await self._answer(request, path, dialect)
        except Refused as error:
            refused = error
        except RecursionError:
            refused = BadRequest("the body is nested too deeply")
        except ConnectionError:
            raise  # the agent has disconnected
        except Exception as error:
            self.failure = self.failure or error
            raise
        return web.json_response(dialect.refusal(refused.kind, str(refused)), status=STATUS[refused.kind])

    async def _answer(self, request: web.BaseRequest, path: str, dialect: Dialect) -> web.StreamResponse:
        if request.method == "HEAD" and not path:
            return web.Response()
        if not self._knows(request):
            raise Refused("this endpoint belongs to another trial: the key is wrong", "unauthorized")
        if request.method == "GET" and path == "/models":
            return web.json_response({"object": "list", "data": [self._card], "has_more": False})
        if request.method == "GET" and path.startswith("/models/"):
            return web.json_response(self._card)
        if request.method != "POST" or (path not in DIALECTS and path != _COUNT_TOKENS):
            raise Refused(f"there is no {request.method} {request.path[:200]}", "not_found")
        async with self._places:
            asked = await self._read(request, dialect)
            if path == _COUNT_TOKENS:
                return web.json_response({"input_tokens": self._estimate(asked)})
            if asked.is_streamed:
                return await self._stream(request, dialect, asked)
            return web.json_response(dialect.answer(await self._reply(asked)))

    async def _read(self, request: web.BaseRequest, dialect: Dialect) -> ModelRequest:
        """Read a request. Raises Refused."""
        data = await _read_body(request)
        async with self._reading:
            await take_turn()  # simultaneous requests of many trials would block the loop for all others
            began = time.thread_time()
            try:
                body = Body(_parse(data))
                asked = dialect.read(body)
            finally:
                if (took := time.thread_time() - began) > _FREE_SEC:
                    await asyncio.sleep(took / _SHARE)
        for name in {each[:_LONGEST_NAME] for each in (*body.unused, *asked.left_out)}:
            if name in self.left_out or len(self.left_out) < _MOST_NAMES:
                self.left_out[name] += 1
        return asked

    def _knows(self, request: web.BaseRequest) -> bool:
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._secret)

    @property
    def _card(self) -> dict[str, Any]:
        return {
            "id": self._model,
            "object": "model",
            "type": "model",
            "display_name": self._model,
            "created": 0,
            "owned_by": "tbench",
            "max_model_len": self._context_tokens,
        }

    async def _stream(self, request: web.BaseRequest, dialect: Dialect, asked: ModelRequest) -> web.StreamResponse:
        asking = asyncio.ensure_future(self._reply(asked))
        done, _ = await asyncio.wait({asking}, timeout=_QUIET_SEC)
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        if done and isinstance(error := asking.exception(), Refused):
            raise error  # no byte was sent, so the answer can still have an error status
        try:
            await response.prepare(request)
            while not done:
                await response.write(KEEP_ALIVE)
                done, _ = await asyncio.wait({asking}, timeout=_QUIET_SEC)
            await response.write(b"".join(_events(dialect, asked, asking)))
            await response.write_eof()
        except ConnectionError:  # the agent has disconnected; its request is still answered and recorded
            pass
        return response

    async def _reply(self, asked: ModelRequest) -> Answer:
        """Ask the model. Raises Refused."""
        # Shielded: the request is a step of the trial, even if the agent disconnects.
        max_tokens = min(asked.max_tokens or self._max_tokens, self._max_tokens)
        task = asyncio.ensure_future(_as_task(self._ask(asked.messages, max_tokens, asked.tools)))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        try:
            reply = await asyncio.shield(task)
        except ContextLimitReached as full:
            self.reason_to_give_up = Outcome.CONTEXT_LIMIT
            raise Refused(self._overflow(full, asked), "overflow") from None
        except asyncio.CancelledError:
            if task.cancelled():
                raise Refused("the trial has ended", "unavailable") from None
            raise
        self.answered += 1
        self.reason_to_give_up = Outcome.FORMAT_LIMIT if reply.cut else None
        if reply.usage.prompt_tokens:
            self._tokens_per_byte = reply.usage.prompt_tokens / max(1, _size(asked))
        if reply.cut:
            # An incomplete call must not run, and a cut call may look complete.
            reply = reply.model_copy(update={"tool_calls": ()})
        return Answer(asked, reply, uuid.uuid4().hex[:24], int(time.time()))

    def _overflow(self, full: ContextLimitReached, asked: ModelRequest) -> str:
        most, tokens = self._context_tokens, full.prompt_tokens or self._estimate(asked)
        if most is None:
            return f"{tokens} tokens exceed the context of this model. Please reduce the length of the messages."
        # Clients search for this wording; the number has to exceed the limit.
        return (
            f"{max(tokens, most + 1)} tokens > {most} maximum. This model's maximum context length is {most} tokens. "
            "Please reduce the length of the messages."
        )

    def _estimate(self, asked: ModelRequest) -> int:
        return max(1, round(_size(asked) * self._tokens_per_byte))


async def _as_task(asking: Awaitable[Reply]) -> Reply:
    return await asking


def _events(dialect: Dialect, asked: ModelRequest, asking: asyncio.Future[Answer]) -> Iterator[bytes]:
    try:
        answer = asking.result()
    except Refused as error:
        yield from dialect.late_refusal(error.kind, str(error), asked.model)
    else:
        yield from dialect.events(answer)


def _size(asked: ModelRequest) -> int:
    """Return the rough number of bytes of a request."""
    texts = sum(
        len(message.content) + len(message.reasoning or "") + sum(len(call.arguments) for call in message.tool_calls)
        for message in asked.messages
    )
    return texts + sum(len(json.dumps(tool)) for tool in asked.tools)


async def _read_body(request: web.BaseRequest) -> bytes:
    """Read a request's body. Raises Refused if it is too large or cannot be unpacked."""
    too_large = Refused(f"a request has at most {LARGEST_BODY >> 20} MB", "too_large")
    if (request.content_length or 0) > LARGEST_BODY:
        raise too_large
    body = bytearray()
    try:
        async for piece in request.content.iter_any():
            body += piece
            if len(body) > LARGEST_BODY:
                raise too_large
    except web.RequestPayloadError:
        raise BadRequest("the body cannot be read: it does not match its headers") from None
    except ConnectionError:
        pass
    return bytes(body)


def _parse(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a body. Raises BadRequest for anything else."""
    if _has_too_many_parts(body):
        raise BadRequest(f"the body has more than {MOST_PARTS} values")
    try:
        data = _loads(body.decode())
        if b"\\ud" in body or b"\\uD" in body:
            # JavaScript may cut a text inside of a surrogate pair, and no file can store the half that is left.
            data = _loads(without_lone_surrogates(json.dumps(data, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRequest("the body is not a JSON object")
    if _is_deeper(data, DEEPEST):
        raise BadRequest(f"the body is nested more than {DEEPEST} deep")
    return data


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def _finite(digits: str) -> float:
    return number if math.isfinite(number := float(digits)) else _refuse_constant(digits)


def _is_deeper(data: object, most: int) -> bool:
    level = [data]
    for _ in range(most):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        if not (level := [value for values in inner for value in values]):
            return False
    return any(isinstance(each, dict | list) for each in level)


def _has_too_many_parts(body: bytes) -> bool:
    """Whether a JSON text has more than MOST_PARTS parts, found without parsing it."""
    if body.count(b"\\ud") + body.count(b"\\uD") > MOST_PARTS:
        return True
    if _marks(body) <= MOST_PARTS:  # even with the marks inside of texts
        return False
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 4 * MOST_PARTS:  # each part has at most a name and a text
        return True
    return _marks(b"".join(unescaped.split(b'"')[::2])) > MOST_PARTS


def _marks(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name[:40]} is not a number of JSON")
