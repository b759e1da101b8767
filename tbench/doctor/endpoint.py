"""Checks of the endpoint: whether it serves the model, its speed, its clock, and its features."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from harness.endpoint.address import full_url, usable_key
from harness.endpoint.answers import read_completion, server_message
from harness.endpoint.bodies import RawAnswer
from harness.endpoint.chat import ChatModel
from harness.endpoint.completion import parse_message
from harness.endpoint.refusals import Reason, classify_refusal
from harness.endpoint.retry import RetryPolicy, TransientError
from harness.endpoint.transport import Transport
from harness.errors import ContextLimitReached, EndpointError, RequestRefused
from harness.model import Sampling
from harness.protocols import PROTOCOLS, load_protocol
from harness.reply_stats import ReplyStats, equal_replies_note, reply_notes
from harness.trajectory import Message
from tbench.doctor import Check, Finding, fail, ok, skipped, warn
from tbench.text import one_line
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
        Check(NAMES[0], partial(check_listing, make), 30),
        Check(NAMES[1], partial(check_completion, make), 2 * _ANSWER_SEC + 30),
        Check(NAMES[2], partial(check_clock, base_url), 15),
    ]


def _chat(base_url: str, model: str | None, api_key: str | None) -> ChatModel:
    return ChatModel(
        base_url, model, Sampling(temperature=0.0, top_p=1.0), api_key=api_key,
        request_timeout_sec=_ANSWER_SEC, retry=RetryPolicy(total_sec=_CONNECT_SEC),
    )  # fmt: skip


async def served_model(base_url: str, model: str | None, api_key: str | None) -> str | None:
    """Return the id of the model, by default of the only one served; None if it cannot be determined."""
    try:
        async with _chat(base_url, model, api_key) as chat:
            return (await chat.connect(budget_sec=_CONNECT_SEC)).id
    except EndpointError:
        return None


async def check_listing(make: Callable[[], ChatModel]) -> Finding:
    try:
        async with make() as chat:
            served = await chat.connect(budget_sec=_CONNECT_SEC)
            through = "" if chat.proxy is None else f"; through {chat.proxy}"
    except EndpointError as error:
        return fail(str(error), _advice(error))
    if chat.unlisted is not None:
        return ok(f"the server {chat.unlisted}{through}")
    if served.context_tokens is None:
        return ok(f"{served.id}; its context length is unknown{through}")
    found = f"{served.id}, context of {served.context_tokens:,} tokens{through}"
    if served.context_tokens < _SMALL_CONTEXT:
        return warn(found, "that is short for a terminal: serve the model with a longer one (vLLM: --max-model-len)")
    return _judge_room(found, served.context_tokens)


async def check_completion(make: Callable[[], ChatModel]) -> Finding:
    try:
        async with make() as chat:
            await chat.connect(budget_sec=_CONNECT_SEC)
            reply = await chat.query(_SAY_OK, seed=0, max_tokens=8)
            room = chat.context_tokens if chat.context_tokens is not None else await _room_for_replies(chat)
    except (EndpointError, ContextLimitReached) as error:
        return fail(str(error), _advice(error))
    speed = f"{reply.usage.completion_tokens} tokens in {reply.latency_sec:.2f} s"
    if reply.latency_sec > _SLOW_SEC:
        return warn(speed, "the server is loading or has a long queue; waiting counts against the agents' time limits")
    return ok(speed) if room is None else _judge_room(f"{speed}; room for {room:,}", room)


async def _room_for_replies(chat: ChatModel) -> int | None:
    """Request the default --max-tokens; if it is refused, return the number of allowed tokens, if known."""
    with contextlib.suppress(EndpointError, ContextLimitReached):  # includes timeouts, which are not refusals
        await chat.query(_SAY_OK, seed=0, max_tokens=_DEFAULT)
    return min((each for each in (chat.context_tokens, chat.most_tokens) if each is not None), default=None)


def _judge_room(found: str, tokens: int) -> Finding:
    """Return a warning if the default --max-tokens does not fit into `tokens`, the room for replies; else OK."""
    if tokens > _DEFAULT:
        return ok(found)
    return warn(
        found, f"the default --max-tokens {_DEFAULT:,} does not fit: use a lower value, or serve a longer context"
    )


async def check_clock(base_url: str) -> Finding:
    apart = await in_thread(_clock_ahead_sec, base_url)
    if apart is None:
        return skipped("the endpoint does not answer, or sends no date")
    if abs(apart) > _CLOCKS_APART_SEC:
        return warn(
            f"it differs from ours by {apart:+.0f} s",
            "set both clocks with NTP; otherwise times in the server's log and in results do not match",
        )
    return ok("agrees with ours within a minute")


def _clock_ahead_sec(base_url: str) -> float | None:
    """Return the seconds by which the endpoint's clock is ahead, from the Date of any answer; sends no API key."""
    try:
        answer = WebRequest(f"{base_url.rstrip('/')}/models", _CONNECT_SEC, most_bytes=0).answer()
        date = answer.headers.get("date")
        return None if date is None else parsedate_to_datetime(date).timestamp() - time.time()
    except (Unanswered, ValueError):
        return None


def _advice(error: Exception) -> str:
    if isinstance(error, RequestRefused):
        return "read the server's message; 401 and 403: check OPENAI_API_KEY; 404: check the URL's path and --model"
    return "check that the server is up, that --base-url has its host and port, and that this machine can reach it"


# Features of an endpoint are tested by real requests.

Can = Literal["yes", "no", "unclear"]
_FEATURES_ANSWER_SEC = 120.0
_SAY = [{"role": "user", "content": "Write one short sentence about terminals."}]
_TOO_MANY = 100_000_000
_SAY_MORE = [{"role": "user", "content": "Tell in a hundred words of your own how a terminal came to be."}]
_SHORT, _LONGER, _LONG = 24, 64, 512


class HttpAnswer(NamedTuple):
    """An answer; status 0 stands for no answer."""

    status: int
    body: Any
    text: str = ""

    @property
    def choice(self) -> Mapping[str, Any]:
        """The first choice of a completion; empty if there is none."""
        try:
            choice = self.body["choices"][0]
        except (LookupError, TypeError):
            return {}
        return choice if isinstance(choice, dict) else {}

    @property
    def message(self) -> Mapping[str, Any]:
        message = self.choice.get("message")
        return message if isinstance(message, dict) else {}

    @property
    def refusal(self) -> str:
        """Status and message of a refusal in one line."""
        return one_line(f"HTTP {self.status}: {server_message(self.body) or self.text or 'no message'}", 160)


Ask = Callable[[str, Mapping[str, Any]], HttpAnswer]
"""Sends a body to a path below the base URL."""


@dataclass(frozen=True)
class Feature:
    """A feature that an endpoint may have."""

    name: str
    can: Can
    seen: str
    """Description of the answer."""


Answered = tuple[Can, str]
"""Whether the endpoint has a feature, and a description of its answer."""


class _Refused(Exception):
    """The endpoint did not answer a request for a completion with 200."""


def _complete(ask: Ask, **fields: Any) -> HttpAnswer:
    """Ask for a completion. Raises _Refused."""
    got = ask(_CHAT, {"messages": _SAY, "temperature": 0.0, **fields})
    if got.status != 200:
        raise _Refused(got.refusal)
    return got


def _seed(ask: Ask) -> Answered:
    answers = [_complete(ask, temperature=1.0, max_tokens=_SHORT, seed=seed) for seed in (7, 7, 8)]
    first, again, other = map(_content, answers)
    if first != again:
        return "no", "accepted, but without effect: two texts with the same seed"
    if first == other:
        return "unclear", "the same text twice with the same seed, and with another seed, so it may have no effect"
    return "yes", "the same text twice with the same seed"


def _tools(ask: Ask) -> Answered:
    wanted = [{"role": "user", "content": "List the files of this directory with the tool."}]
    got = _complete(ask, messages=wanted, tools=list(load_protocol("bash-tool").tools), max_tokens=512)
    if got.message.get("tool_calls"):
        return "yes", "the model has called one"
    return "unclear", "accepted, but the model has called none"


def _reasoning(ask: Ask) -> Answered:
    got = _complete(ask, max_tokens=512)
    reply = parse_message(got.message)
    if reply is not None and reply.reasoning:
        return "yes", f"separate from the reply, as message.{reply.reasoning_field}"
    if "</think>" in _content(got) or "<think>" in _content(got):
        return "unclear", "within the reply: start the server with a reasoning parser"
    return "no", "the model has shown none"


def _usage(ask: Ask) -> Answered:
    got = _complete(ask, max_tokens=_SHORT)
    usage = got.body.get("usage") if isinstance(got.body, dict) else None
    if not isinstance(usage, dict) or not usage.get("prompt_tokens"):
        return "no", "no counts: limits of tokens have no effect"
    cached = isinstance(usage.get("prompt_tokens_details"), dict)
    more = "" if cached else "; cached ones are not reported"
    return "yes", f"{usage['prompt_tokens']} + {usage.get('completion_tokens')} tokens{more}"


def _logprobs(ask: Ask) -> Answered:
    got = _complete(ask, logprobs=True, top_logprobs=1, temperature=1.0, max_tokens=4)
    content = (got.choice.get("logprobs") or {}).get("content")
    return ("yes", f"of {len(content)} tokens") if content else ("no", "accepted, but not returned")


def _token_ids(ask: Ask) -> Answered:
    got = _complete(ask, return_token_ids=True, max_tokens=4)
    if not got.choice.get("token_ids"):
        return "no", "accepted, but not returned: the field is specific to vLLM"
    prompt = isinstance(got.body, dict) and bool(got.body.get("prompt_token_ids"))
    return "yes", f"of the reply{' and of the prompt' if prompt else ' only'}"


def _context_error(ask: Ask) -> Answered:
    got = ask(_CHAT, {"messages": _SAY, "max_tokens": _TOO_MANY})
    if got.status == 200:
        return "no", "max_tokens beyond the context is reduced without an error"
    refusal = classify_refusal(got.status, got.body or got.text, max_tokens=_TOO_MANY)
    if refusal.reason not in {Reason.PROMPT, Reason.REPLY, Reason.BOTH}:
        return "no", f"refused, but the message is not recognised: {got.refusal}"
    limit = refusal.most_tokens or refusal.context_tokens
    fits = limit is None or limit >= _DEFAULT
    return "yes", got.refusal + ("" if fits else f"; the default --max-tokens {_DEFAULT:,} does not fit {limit:,}")


def _streaming(ask: Ask) -> Answered:
    got = _complete(ask, stream=True, max_tokens=4)
    events = got.text.count("data: ")
    is_whole = "data: [DONE]" in got.text
    return "yes" if is_whole else "no", f"{events} events{'' if is_whole else ', but no end'}"


def _template(ask: Ask) -> Answered:
    got = _complete(ask, chat_template_kwargs={"enable_thinking": False}, max_tokens=_LONGER)
    if got.message.get("reasoning") or got.message.get("reasoning_content") or "<think>" in _content(got):
        return "unclear", "accepted, but enable_thinking=false did not stop thinking"
    return "yes", "accepted (as servers also do with arguments unknown to the template)"


def _completions(ask: Ask) -> Answered:
    got = ask("/completions", {"prompt": "ls -", "temperature": 0.0, "max_tokens": 4, "stop": ["\n"]})
    if got.status != 200 or not isinstance(got.choice.get("text"), str):
        return "no", got.refusal
    return "yes", "for locally rendered prompts (--render)"


_THOUGHT = "First I look at the files, then I read the one that matters. " * 8
_THINKING_FORMS: Mapping[str, Mapping[str, str]] = {
    "reasoning_content": {"reasoning_content": _THOUGHT},
    "reasoning": {"reasoning": _THOUGHT},
    "<think> in the content": {"content": f"<think>\n{_THOUGHT}\n</think>\n\n"},
}
"""Forms in which earlier thinking can be sent back."""


def _earlier_thinking(ask: Ask) -> Answered:
    """Test whether the chat template keeps earlier thinking, by the length of prompts with and without it.

    Tests both after a user message, as in text protocols, and between tool calls.
    """
    function = {"name": "bash", "arguments": '{"command": "ls"}'}
    call = {"id": "call_00001", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": "call_00001", "content": "a b"}
    talked = _kept(ask, {"content": "ls"}, {"role": "user", "content": "a b"}, {})
    tools = {"tools": list(load_protocol("bash-tool").tools)}
    called = _kept(ask, {"content": "", "tool_calls": [call]}, result, tools)
    if talked is None:
        _complete(ask, max_tokens=1)
        return "unclear", "prompt tokens are not counted"
    if talked:
        return "yes", f"kept, also after user messages, as {talked}"
    reread = "each prompt is processed again from the newest reply on"
    if called:
        where = f"kept between tool calls, as {called}; dropped after a user message"
        return "unclear", f"{where}: text protocols lose it, and {reread}"
    return "no", f"dropped by the chat template, or not accepted: {reread}"


def _kept(ask: Ask, reply: Mapping[str, Any], result: Mapping[str, Any], more: Mapping[str, Any]) -> str | None:
    """Return the first form in which thinking makes the prompt longer; empty if none does, None without counts."""

    def count(fields: Mapping[str, str]) -> int | None:
        content = fields.get("content", "") + reply["content"]
        messages = [*_SAY, {"role": "assistant", **reply, **fields, "content": content}, result]
        got = ask(_CHAT, {"messages": messages, **more, "temperature": 0.0, "max_tokens": 1})
        usage = got.body.get("usage") if got.status == 200 and isinstance(got.body, dict) else None
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return tokens if isinstance(tokens, int) and tokens > 0 else None

    without = count({})
    if without is None:
        return None
    return next((form for form, fields in _THINKING_FORMS.items() if (count(fields) or 0) > without + _MARGIN), "")


_MARGIN = 20
"""Minimum number of additional prompt tokens if the thinking is kept."""


def _replies(ask: Ask) -> Answered:
    """Test the consistency of replies' metadata, as runs do for every reply."""
    fields = {"messages": _SAY_MORE, "temperature": 1.0, "top_p": 1.0, "max_tokens": _LONG}
    answers = [ask(_CHAT, {**fields, "seed": seed}) for seed in (11, 12, 13)]
    try:
        replies = [read_completion(each.body, max_tokens=_LONG, context_tokens=None) for each in answers]
    except TransientError as failure:
        return "no", next((each.refusal for each in answers if each.status != 200), one_line(str(failure), 160))
    firsts = {"": [ReplyStats.from_replies([reply]).first for reply in replies]}
    notes = (*reply_notes([ReplyStats.from_replies(replies)]), equal_replies_note(firsts))
    odd = "; ".join(filter(None, notes))
    return "unclear" if odd else "yes", odd or f"{len(replies)}, all consistent"


_CHAT = "/chat/completions"
PROBES: Mapping[str, Callable[[Ask], Answered]] = {
    "seed": _seed,
    "tools": _tools,
    "reasoning": _reasoning,
    "earlier thinking": _earlier_thinking,
    "usage": _usage,
    "logprobs": _logprobs,
    "token ids": _token_ids,
    "context error": _context_error,
    "streaming": _streaming,
    "chat_template_kwargs": _template,
    "completions": _completions,
    "replies": _replies,
}
"""Tests of the features, by name."""


async def probe_features(base_url: str, model: str, api_key: str | None) -> list[Feature]:
    """Test the endpoint's features for a model, one after the other."""
    transport = Transport(full_url(base_url), usable_key(api_key))
    try:
        ask = _ask_from_thread(transport, model)
        return [Feature(name, *await in_thread(_probe, probe, ask)) for name, probe in PROBES.items()]
    finally:
        await transport.close()


def _probe(probe: Callable[[Ask], Answered], ask: Ask) -> Answered:
    try:
        return probe(ask)
    except _Refused as refused:
        return "no", str(refused)


def usable_protocols(features: Sequence[Feature]) -> dict[str, str]:
    """Return by protocol why it cannot be used, or an empty text."""
    can = {each.name: each.can for each in features}
    found = {}
    for name in PROTOCOLS:
        needs_tools = bool(load_protocol(name).tools)
        found[name] = "it uses tools, which the endpoint refuses" if needs_tools and can.get("tools") == "no" else ""
    return found


def _ask_from_thread(transport: Transport, model: str) -> Ask:
    """Return a function for threads that sends requests through the current event loop."""
    loop = asyncio.get_running_loop()

    async def ask_within_time(path: str, body: Mapping[str, Any]) -> HttpAnswer:
        try:
            async with asyncio.timeout(_FEATURES_ANSWER_SEC):
                return _read(await transport.post_for_answer(path, body))
        except TransientError as failure:
            return HttpAnswer(0, None, failure.reason)
        except TimeoutError:
            return HttpAnswer(0, None, f"no answer within {_FEATURES_ANSWER_SEC:g} s")

    def ask(path: str, fields: Mapping[str, Any]) -> HttpAnswer:
        return asyncio.run_coroutine_threadsafe(ask_within_time(path, {"model": model, **fields}), loop).result()

    return ask


def _read(answer: RawAnswer) -> HttpAnswer:
    try:
        return HttpAnswer(answer.status, answer.json(), answer.text)
    except ValueError:
        return HttpAnswer(answer.status, None, answer.words)


def _content(answer: HttpAnswer) -> str:
    content = answer.message.get("content")
    return content if isinstance(content, str) else ""
