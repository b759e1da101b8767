"""Finds the recorded answer to a request, or says in what the request differs from those that were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tbench.cassettes.cassette import Cassette, RecordedAnswer, canonical
from tbench.divergence import same_as

_SHOWN_CHARS = 60


class Mismatch(Exception):
    """Raised for a request that was not recorded; says which part of it differs from the nearest that was."""


class Deck:
    """A cassette that is being played: a request that was recorded several times gets the answers in their order.

    After the last one it gets that again. A request is taken for one that was recorded where their texts differ only in
    what differs each time, such as the times of files; with `exact` it is not.
    """

    def __init__(self, cassette: Cassette, *, exact: bool = False) -> None:
        self.alike = 0
        """How many requests were taken for one that is not equal."""
        self._exchanges = cassette.exchanges
        self._exact = exact
        self._answers: dict[str, list[RecordedAnswer]] = {}
        self._asked: dict[str, int] = {}
        for each in cassette.exchanges:
            for key in self._keys(each.path, each.request):
                self._answers.setdefault(key, []).append(each)

    def answer(self, path: str, request: Mapping[str, Any]) -> RecordedAnswer:
        """The recorded answer. Raises Mismatch."""
        equal, *alike = self._keys(path, request)
        key = next((key for key in (equal, *alike) if key in self._answers), None)
        if key is None:
            raise Mismatch(self._difference(path, request))
        self.alike += key != equal
        answers, asked = self._answers[key], self._asked.get(key, 0)
        self._asked[key] = asked + 1
        return answers[min(asked, len(answers) - 1)]

    def _keys(self, path: str, request: Mapping[str, Any]) -> tuple[str, ...]:
        """What a request is found by: first as it is."""
        equal = f"= {path} {canonical(request)}"
        return (equal,) if self._exact else (equal, f"~ {path} {canonical(_alike(request))}")

    def _difference(self, path: str, request: Mapping[str, Any]) -> str:
        there = [each for each in self._exchanges if each.path == path]
        if not there:
            return f"nothing was recorded of {path}"
        messages = request.get("messages")
        asked: Sequence[Any] = messages if isinstance(messages, list) else []
        common = _common if self._exact else _alike_in_common
        nearest = max(
            there,
            key=lambda each: (
                common(each.messages, asked),
                -abs(len(each.messages) - len(asked)),
                -_differing(each.request, request),
            ),
        )
        return _words(nearest, asked, request, common(nearest.messages, asked))


def _alike(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request with marks for what differs each time in its messages' texts, or in its prompt."""
    marked = dict(request)
    if isinstance(messages := request.get("messages"), list):
        marked["messages"] = [_marked(message) for message in messages]
    if isinstance(prompt := request.get("prompt"), str):
        marked["prompt"] = _marked_text(prompt)
    return marked


def _marked(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    return {**message, "content": _marked_text(content)} if isinstance(content, str) else message


@lru_cache(maxsize=4096)
def _marked_text(text: str) -> str:
    """Once for each text: a conversation comes again with every request."""
    return "\n".join(map(same_as, text.split("\n")))


def _alike_in_common(recorded: Sequence[Any], asked: Sequence[Any]) -> int:
    return _common([_marked(each) for each in recorded], [_marked(each) for each in asked])


def _common(recorded: Sequence[Any], asked: Sequence[Any]) -> int:
    """How many messages two conversations have in common before the first that differs."""
    for at, (mine, other) in enumerate(zip(recorded, asked, strict=False)):
        if mine != other:
            return at
    return min(len(recorded), len(asked))


def _differing(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> int:
    names = (recorded.keys() | asked.keys()) - {"messages"}
    return sum(recorded.get(name) != asked.get(name) for name in names)


def _words(nearest: RecordedAnswer, asked: Sequence[Any], request: Mapping[str, Any], at: int) -> str:
    """In what a request differs from the nearest one, with which it has `at` messages in common."""
    if at == len(nearest.messages) < len(asked):
        return f"the recording ends with message {at} of this conversation"
    if at < len(nearest.messages):
        mine = _message(asked[at]) if at < len(asked) else "nothing"
        return f"message {at + 1} differs: {mine} where {_message(nearest.messages[at])} was recorded"
    for name in sorted((nearest.request.keys() | request.keys()) - {"messages"}):
        if (now := request.get(name)) != (before := nearest.request.get(name)):
            return f"{name} differs: {_shown(now)} where {_shown(before)} was recorded"
    return "it differs in what JSON does not tell apart"


def _message(message: Any) -> str:
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
