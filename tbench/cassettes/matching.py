"""Finds the recorded answer to a request, or says in what the request differs from those that were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tbench.cassettes.cassette import Cassette, RecordedAnswer, canonical

_SHOWN_CHARS = 60


class Mismatch(Exception):
    """Raised for a request that was not recorded; says which part of it differs from the nearest that was."""


class Deck:
    """A cassette that is being played: a request that was recorded several times gets the answers in their order.

    After the last one it gets that again.
    """

    def __init__(self, cassette: Cassette) -> None:
        self._exchanges = cassette.exchanges
        self._answers: dict[str, list[RecordedAnswer]] = {}
        self._asked: dict[str, int] = {}
        for each in cassette.exchanges:
            self._answers.setdefault(_key(each.path, each.request), []).append(each)

    def answer(self, path: str, request: Mapping[str, Any]) -> RecordedAnswer:
        """The recorded answer. Raises Mismatch."""
        key = _key(path, request)
        if (answers := self._answers.get(key)) is None:
            raise Mismatch(self._difference(path, request))
        asked = self._asked.get(key, 0)
        self._asked[key] = asked + 1
        return answers[min(asked, len(answers) - 1)]

    def _difference(self, path: str, request: Mapping[str, Any]) -> str:
        there = [each for each in self._exchanges if each.path == path]
        if not there:
            return f"nothing was recorded of {path}"
        messages = request.get("messages")
        asked: Sequence[Any] = messages if isinstance(messages, list) else []
        nearest = max(there, key=lambda each: (_common(each.messages, asked), -_differing(each.request, request)))
        return _words(nearest, asked, request)


def _key(path: str, request: Mapping[str, Any]) -> str:
    return f"{path} {canonical(request)}"


def _common(recorded: Sequence[Any], asked: Sequence[Any]) -> int:
    """How many messages two conversations have in common before the first that differs."""
    for at, (mine, other) in enumerate(zip(recorded, asked, strict=False)):
        if mine != other:
            return at
    return min(len(recorded), len(asked))


def _differing(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> int:
    names = (recorded.keys() | asked.keys()) - {"messages"}
    return sum(recorded.get(name) != asked.get(name) for name in names)


def _words(nearest: RecordedAnswer, asked: Sequence[Any], request: Mapping[str, Any]) -> str:
    at = _common(nearest.messages, asked)
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
