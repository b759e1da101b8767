"""The cassette file: requests to an OpenAI-compatible endpoint with their answers, and the lookup of recorded answers.

The first line has `cassette`, the version, and `models`, as listed by the endpoint. A line with `message` is a message,
numbered from 0 in the order of the file. A line with `path` is an exchange: `messages` are the numbers of its messages
(null for a request without), `fields` the rest of the request's body, `status` and `answer` the response.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from harness.errors import ContextLimitReached
from harness.trajectory import Reply
from tbench.divergence import normalised_line

CASSETTE_VERSION = 1

Json = Mapping[str, Any]


class CassetteUnreadable(ValueError):
    """Raised for a file that is not a cassette; the message has the line and the reason."""


@dataclass(frozen=True)
class RecordedAnswer:
    """A request and its answer."""

    path: str
    """Path below the base URL, such as `/chat/completions`."""
    request: Json
    """The request's body."""
    status: int
    answer: Any
    """The body of the answer."""

    @property
    def messages(self) -> Sequence[Json]:
        """The request's messages; none if it has a prompt."""
        messages = self.request.get("messages")
        return messages if isinstance(messages, list) else []


@dataclass(frozen=True)
class Cassette:
    """Exchanges in the order of the requests."""

    models: Sequence[Json]
    """The models as listed by `GET /v1/models`."""
    exchanges: Sequence[RecordedAnswer]

    def write(self, file: Path) -> None:
        """Write the file atomically. Raises OSError."""
        partly = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            with CassetteWriter(partly, self.models) as writer:
                for each in self.exchanges:
                    writer.append(each)
            partly.replace(file)
        finally:
            partly.unlink(missing_ok=True)

    @classmethod
    def read(cls, file: Path) -> Cassette:
        """Read a cassette from a file. Raises CassetteUnreadable."""
        try:
            lines = file.read_bytes().split(b"\n")[:-1]  # a text after the last line break is incomplete
        except OSError as error:
            raise CassetteUnreadable(f"{file}: {error.strerror or error}") from None
        messages: list[Json] = []
        exchanges: list[RecordedAnswer] = []
        models: Sequence[Json] | None = None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                if models is None:
                    models = _models(entry)
                elif "message" in entry:
                    messages.append(entry["message"])
                else:
                    exchanges.append(_exchange(entry, messages))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise CassetteUnreadable(f"{file}:{number}: {error or type(error).__name__}: not a cassette") from None
        if models is None:
            raise CassetteUnreadable(f"{file}: is empty")
        return cls(models, exchanges)


class CassetteWriter:
    """Writes a cassette exchange by exchange, each flushed before the next. A context manager."""

    def __init__(self, file: Path, models: Sequence[Json]) -> None:
        """Raises OSError."""
        self._file = file.open("w", encoding="utf-8")
        self._numbers: dict[str, int] = {}
        self._write({"cassette": CASSETTE_VERSION, "models": list(models)})

    def append(self, exchange: RecordedAnswer) -> None:
        """Write an exchange and its messages, if they are not in the file yet. Raises OSError."""
        for message in exchange.messages:
            if (key := canonical(message)) not in self._numbers:
                self._numbers[key] = len(self._numbers)
                self._write({"message": message})
        has_messages = isinstance(exchange.request.get("messages"), list)
        numbers = [self._numbers[canonical(message)] for message in exchange.messages]
        self._write(
            {
                "path": exchange.path,
                "messages": numbers if has_messages else None,
                "fields": {name: value for name, value in exchange.request.items() if name != "messages"},
                "status": exchange.status,
                "answer": exchange.answer,
            }
        )
        self._file.flush()

    def _write(self, line: Json) -> None:
        self._file.write(json.dumps(line, ensure_ascii=True, separators=(",", ":")) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _models(head: Any) -> Sequence[Json]:
    version = head["cassette"]
    if version != CASSETTE_VERSION:
        raise ValueError(f"version {version}, but this tbench reads version {CASSETTE_VERSION}")
    models: Sequence[Json] = head["models"]
    if not all(isinstance(model["id"], str) for model in models):
        raise ValueError("each model needs an id")
    return models


def _exchange(entry: Any, messages: Sequence[Json]) -> RecordedAnswer:
    request = dict(entry["fields"])
    if entry["messages"] is not None:
        request["messages"] = [messages[at] for at in entry["messages"]]
    return RecordedAnswer(str(entry["path"]), request, int(entry["status"]), entry["answer"])


def canonical(value: Any) -> str:
    """Return JSON text that is equal for equal values, regardless of the order of keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


# Bodies of an OpenAI-compatible server's answers, reconstructed from replies.


def decode_request(body: bytes) -> dict[str, Any]:
    """Decode the JSON object in the body of a request. Raises ValueError."""
    request = json.loads(body)
    if not isinstance(request, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 -- the same as for invalid JSON
    return request


def answer_body(path: str, reply: Reply | ContextLimitReached, model: str) -> tuple[int, dict[str, Any]]:
    """Return the status and body of an answer with this reply or refusal."""
    if isinstance(reply, ContextLimitReached):
        return 400, {"error": {"message": str(reply), "type": "BadRequestError", "param": None, "code": 400}}
    is_chat = path == "/chat/completions"
    content = {"message": _message(reply)} if is_chat else {"text": reply.content}
    # A reply edited by a person is no longer cut, even if the model's was.
    reason = reply.finish_reason if reply.cut or reply.finish_reason != "length" else "stop"
    return 200, {
        "id": "cassette",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 0,
        "model": reply.model or model,
        "choices": [{"index": 0, **content, "finish_reason": reason or "stop"}],
        "usage": _usage(reply),
    }


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "reasoning": reply.reasoning}
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
    return message


def _usage(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    cached = None if usage.cached_tokens is None else {"cached_tokens": usage.cached_tokens}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": cached,
    }


_SHOWN_CHARS = 60


class NotRecorded(Exception):
    """Raised for a request that was not recorded; the message names its difference from the nearest recorded one."""


class AnswerLookup:
    """Finds the recorded answers of a cassette. A request recorded several times gets its answers in order.

    After the last answer, it gets the last answer again. A request also matches a recorded one that differs only in
    volatile text, such as times of files, unless `exact` is set.
    """

    def __init__(self, cassette: Cassette, *, exact: bool = False) -> None:
        self.alike = 0
        """Number of requests that matched a recorded one without being equal."""
        self._exchanges = cassette.exchanges
        self._exact = exact
        self._answers: dict[str, list[RecordedAnswer]] = {}
        self._asked: dict[str, int] = {}
        for each in cassette.exchanges:
            for key in self._keys(each.path, each.request):
                self._answers.setdefault(key, []).append(each)

    def answer(self, path: str, request: Mapping[str, Any]) -> RecordedAnswer:
        """Return the recorded answer. Raises NotRecorded."""
        equal, *alike = self._keys(path, request)
        key = next((key for key in (equal, *alike) if key in self._answers), None)
        if key is None:
            raise NotRecorded(self._difference(path, request))
        self.alike += key != equal
        answers, asked = self._answers[key], self._asked.get(key, 0)
        self._asked[key] = asked + 1
        return answers[min(asked, len(answers) - 1)]

    def _keys(self, path: str, request: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the lookup keys of a request: first the exact one."""
        equal = f"= {path} {canonical(request)}"
        return (equal,) if self._exact else (equal, f"~ {path} {canonical(_normalise(request))}")

    def _difference(self, path: str, request: Mapping[str, Any]) -> str:
        there = [each for each in self._exchanges if each.path == path]
        if not there:
            return f"no request to {path} was recorded"
        messages = request.get("messages")
        asked: Sequence[Any] = messages if isinstance(messages, list) else []
        common = _common if self._exact else _common_normalised
        nearest = max(
            there,
            key=lambda each: (
                common(each.messages, asked),
                -abs(len(each.messages) - len(asked)),
                -len(_differing(each.request, request)),
            ),
        )
        return _describe_difference(nearest, asked, request, common(nearest.messages, asked))


def _normalise(request: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the volatile text in a request's messages or prompt by placeholders."""
    marked = dict(request)
    if isinstance(messages := request.get("messages"), list):
        marked["messages"] = [_normal_message(message) for message in messages]
    if isinstance(prompt := request.get("prompt"), str):
        marked["prompt"] = _normal_text(prompt)
    return marked


def _normal_message(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    return {**message, "content": _normal_text(content)} if isinstance(content, str) else message


@lru_cache(maxsize=4096)
def _normal_text(text: str) -> str:
    """Replace volatile text by placeholders; cached, as each request repeats the whole conversation."""
    return "\n".join(map(normalised_line, text.split("\n")))


def _common_normalised(recorded: Sequence[Any], asked: Sequence[Any]) -> int:
    return _common([_normal_message(each) for each in recorded], [_normal_message(each) for each in asked])


def _common(recorded: Sequence[Any], asked: Sequence[Any]) -> int:
    """Return the number of messages that two conversations have in common at their beginning."""
    for at, (mine, other) in enumerate(zip(recorded, asked, strict=False)):
        if mine != other:
            return at
    return min(len(recorded), len(asked))


def _differing(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that differ, except messages."""
    names = sorted((recorded.keys() | asked.keys()) - {"messages"})
    return [name for name in names if recorded.get(name) != asked.get(name)]


def _describe_difference(nearest: RecordedAnswer, asked: Sequence[Any], request: Mapping[str, Any], at: int) -> str:
    """Describe how a request differs from the nearest one; `at` messages are common to both."""
    if at == len(nearest.messages) < len(asked):
        return f"the recording ends with message {at} of this conversation"
    if at < len(nearest.messages):
        mine = _describe_message(asked[at]) if at < len(asked) else "nothing"
        return f"message {at + 1} differs: {mine} where {_describe_message(nearest.messages[at])} was recorded"
    if differing := _differing(nearest.request, request):
        now, before = request.get(differing[0]), nearest.request.get(differing[0])
        return f"{differing[0]} differs: {_shown(now)} where {_shown(before)} was recorded"
    return "it differs in a way that JSON does not show"


def _describe_message(message: Any) -> str:
    if not isinstance(message, dict):
        return _shown(message)
    others = {name: value for name, value in message.items() if name not in ("role", "content")}
    more = f" with {_shown(others)}" if others else ""
    return f"{message.get('role')} {_shown(message.get('content'))}{more}"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else canonical(value)
    text = " ".join(text.split())
    half = _SHOWN_CHARS // 2
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:half]} … {text[-half:]}")
