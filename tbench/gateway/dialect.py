"""The interface of dialects, which are chat APIs such as `/v1/messages`, and the common form of their requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from harness.trajectory import Message, Reply, ToolCall

RefusalKind = Literal["invalid", "unauthorized", "not_found", "too_large", "overflow", "unavailable"]
STATUS: Mapping[RefusalKind, int] = {
    "invalid": 400,
    "unauthorized": 401,
    "not_found": 404,
    "too_large": 413,
    "overflow": 400,
    "unavailable": 503,
}
"""HTTP status of each refusal."""
LEFT_OUT = "[Left out: {kind}. This endpoint takes text only.]"
"""Text that the model reads in place of an image or a file."""
_MOST = {"tools": 512}
_MAX_OBJECTS = 20_000
"""Maximum length of a list in a request: far beyond any conversation that fits a model."""


class Refused(Exception):
    """A refused request; the message is for the agent."""

    def __init__(self, words: str, kind: RefusalKind = "invalid") -> None:
        super().__init__(words)
        self.kind = kind


class BadRequest(Refused):
    """A request that the dialect does not allow."""


class Body(dict[str, Any]):
    """The JSON object of an agent's request. Records which of its fields are read, to find those without effect."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._used: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self._used.add(name)
        return super().get(name, default)

    @property
    def unused(self) -> set[str]:
        """Names of the fields that have no effect."""
        return {name for name, value in self.items() if value is not None} - self._used


@dataclass(frozen=True)
class ModelRequest:
    """One request of an agent, in the form that the chat client takes."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Functions in the format of `/v1/chat/completions`."""
    max_tokens: int | None = None
    """The agent's own limit; None without one."""
    is_streamed: bool = False
    model: str = ""
    """The name that the agent gives to the model, which every answer repeats."""
    free_text_tools: frozenset[str] = frozenset()
    """Names of tools whose input is a text instead of an object; the model gets functions with one parameter."""
    reports_usage: bool = True
    """Whether a streamed answer ends with the counts of tokens."""
    left_out: tuple[str, ...] = ()
    """Types of the tools that run on the provider's servers; they are not offered to the model."""


@dataclass(frozen=True)
class Answer:
    """A model's reply with the other data that an answer to an agent needs."""

    request: ModelRequest
    reply: Reply
    id: str
    """Unique part of all ids of the answer."""
    created: int
    """Seconds since 1970."""


class Dialect(Protocol):
    """A dialect of chat APIs. Pure, without I/O."""

    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        """Translate a request. Raises BadRequest."""

    def answer(self, answer: Answer) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""

    def events(self, answer: Answer) -> Iterator[bytes]:
        """Yield the server-sent events of a streamed answer."""

    def refusal(self, kind: RefusalKind, words: str) -> dict[str, Any]:
        """Return the body of a refusal."""

    def late_refusal(self, kind: RefusalKind, words: str, model: str) -> Iterator[bytes]:
        """Yield the events of a refusal within a streamed answer that has begun."""


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """Return one server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=True, separators=(',', ':'))}\n\n".encode()


KEEP_ALIVE = b": waiting for the model\n\n"
"""A comment of a stream, which clients ignore."""


def field_of(body: Mapping[str, Any], name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """Return a field of a request; null counts as missing. Raises BadRequest for another type."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise BadRequest(f"{name}: has the wrong type, {type(value).__name__}")
    return value


def objects_of(body: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """Return a field that is a list of objects; empty if it is missing. Raises BadRequest."""
    found: list[Any] = field_of(body, name, list, [])
    if bad := [number for number, each in enumerate(found) if not isinstance(each, dict)]:
        raise BadRequest(f"{name}[{bad[0]}]: must be an object")
    if len(found) > (most := _MOST.get(name, _MAX_OBJECTS)):
        raise BadRequest(f"{name}: has {len(found)} entries; at most {most}")
    return found


def refuse(body: Mapping[str, Any], **why: str) -> None:
    """Refuse fields that would change the model's request, if they are set. Raises BadRequest."""
    for name, words in why.items():
        if body.get(name):
            raise BadRequest(f"{name}: {words}")


def may_use_tools(choice: object) -> bool:
    """Return whether the model may call tools, from a tool_choice of any dialect. Raises BadRequest.

    No tool_choice is sent to the model's endpoint: by default, the model decides.
    """
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind not in (None, "auto", "none"):
        raise BadRequest(f"tool_choice: {kind!r:.40} is not supported; the model chooses by itself (auto, none)")
    return kind != "none"


def offered_tools(
    body: Mapping[str, Any], is_own: Callable[[Mapping[str, Any]], bool]
) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    """Return the tools that the agent runs itself, if the model may call any, and the types of all other tools.

    The others run on the servers of the agent's provider. Raises BadRequest.
    """
    tools = objects_of(body, "tools")
    own = [each for each in tools if is_own(each)] if may_use_tools(body.get("tool_choice")) else []
    return own, tuple(str(each.get("type")) for each in tools if not is_own(each))


def max_tokens_of(body: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these fields that is set. Raises BadRequest."""
    for name in names:
        if (value := field_of(body, name, int)) is not None:
            if value < 1:
                raise BadRequest(f"{name}: must be at least 1")
            return int(value)
    return None


def text_of(content: object, where: str) -> str:
    """Return the content of a message, which is a text or a list of parts, as one text. Raises BadRequest.

    Parts that are not text, such as images, are replaced by a note.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{where}: must be a text or a list of parts")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, dict):
            raise BadRequest(f"{where}: a part must be an object")
        elif isinstance(text := part.get("text", part.get("refusal")), str):
            texts.append(text)
        else:
            texts.append(LEFT_OUT.format(kind=part.get("type", "a part without a type")))
    return "\n".join(texts)


def function(name: object, description: object, parameters: object) -> dict[str, Any]:
    """Return a function in the format of `/v1/chat/completions`. Raises BadRequest."""
    if not isinstance(name, str) or not name:
        raise BadRequest("tools: a function without a name")
    found: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        found["description"] = description
    found["parameters"] = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    return {"type": "function", "function": found}


@dataclass
class _Parts:
    """Parts of one message. They are joined once: joining at each part would copy a long text again and again."""

    role: Literal["system", "user", "assistant", "tool"]
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    call_id: str | None = None

    def message(self) -> Message:
        return Message(
            role=self.role,
            content=_joined(self.texts),
            reasoning=_joined(self.reasoning) or None,
            tool_calls=tuple(self.calls),
            tool_call_id=self.call_id,
        )


@dataclass
class Conversation:
    """Messages in the form that every chat template takes.

    There is one system message, at the front: later ones become user messages. Consecutive messages of one role are
    joined, because many templates require alternating roles, and the parts of a reply belong together.
    """

    _messages: list[_Parts] = field(default_factory=list)

    def add_instruction(self, text: str) -> None:
        """Add text of a system or developer message."""
        self._add("system" if all(each.role == "system" for each in self._messages) else "user", text)

    def add_user(self, text: str) -> None:
        self._add("user", text)

    def add_output(self, call_id: str, text: str) -> None:
        """Add the result of a tool."""
        self._messages.append(_Parts("tool", [text], call_id=call_id))

    def add_reply(self, text: str = "", reasoning: str = "", calls: Iterable[ToolCall] = ()) -> None:
        """Add a part of a reply; parts in a row are one reply."""
        reply = self._last("assistant")
        reply.texts.append(text)
        reply.reasoning.append(reasoning)
        reply.calls.extend(calls)

    def finish(self) -> tuple[Message, ...]:
        """Return the messages. Raises BadRequest if there are none."""
        if all(each.role == "system" for each in self._messages):
            raise BadRequest("the request has no message")
        return tuple(each.message() for each in self._messages)

    def _add(self, role: Literal["system", "user"], text: str) -> None:
        if text:
            self._last(role).texts.append(text)

    def _last(self, role: Literal["system", "user", "assistant"]) -> _Parts:
        """Return the last message if it has this role, else a new one."""
        if not self._messages or self._messages[-1].role != role:
            self._messages.append(_Parts(role))
        return self._messages[-1]


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments as an object; invalid JSON becomes `raw_arguments`, which the tool refuses."""
    try:
        found = json.loads(call.arguments or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"raw_arguments": call.arguments}


def free_text_of(call: ToolCall) -> str:
    """Return the input of a call of a free-text tool."""
    text = arguments_of(call).get("input")
    return text if isinstance(text, str) else call.arguments
