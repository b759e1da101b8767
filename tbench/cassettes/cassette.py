"""The file of a cassette: requests to an OpenAI-compatible endpoint with their answers, as lines of JSON.

The first line has `cassette`, the version, and `models`, as the endpoint has listed them. A line with `message` is a
message of conversations, which count from 0 in the order of the file. A line with `path` is an exchange: `messages` are
the numbers of its messages (null for a request that has none), `fields` the rest of the request's body, `status` and
`answer` what came back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

CASSETTE_VERSION = 1

Json = Mapping[str, Any]


class CassetteUnreadable(ValueError):
    """Raised for a file that is no cassette; the message says where and why."""


@dataclass(frozen=True)
class RecordedAnswer:
    """A request and what came back."""

    path: str
    """Below the base URL, such as `/chat/completions`."""
    request: Json
    """The request's body."""
    status: int
    answer: Any
    """The body of the answer."""

    @property
    def messages(self) -> Sequence[Json]:
        """The request's messages; none where it has a prompt."""
        messages = self.request.get("messages")
        return messages if isinstance(messages, list) else []


@dataclass(frozen=True)
class Cassette:
    """Exchanges in the order in which they were asked for."""

    models: Sequence[Json]
    """The models as `GET /v1/models` lists them."""
    exchanges: Sequence[RecordedAnswer]

    def write(self, file: Path) -> None:
        """Write the file, whole or not at all. Raises OSError."""
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
        """The cassette in a file. Raises CassetteUnreadable."""
        try:
            lines = file.read_bytes().split(b"\n")[:-1]  # the last one was cut short where it is not empty
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
                raise CassetteUnreadable(f"{file}:{number}: {error or type(error).__name__}: no cassette") from None
        if models is None:
            raise CassetteUnreadable(f"{file}: is empty")
        return cls(models, exchanges)


class CassetteWriter:
    """Writes a cassette exchange by exchange, each whole on disk before the next. A context manager."""

    def __init__(self, file: Path, models: Sequence[Json]) -> None:
        """Raises OSError."""
        self._file = file.open("w", encoding="utf-8")
        self._numbers: dict[str, int] = {}
        self._write({"cassette": CASSETTE_VERSION, "models": list(models)})

    def append(self, exchange: RecordedAnswer) -> None:
        """Write an exchange, and those of its messages that are not in the file yet. Raises OSError."""
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
        raise ValueError(f"is version {version}, and this tbench reads {CASSETTE_VERSION}")
    models: Sequence[Json] = head["models"]
    if not all(isinstance(model["id"], str) for model in models):
        raise ValueError("models have an id each")
    return models


def _exchange(entry: Any, messages: Sequence[Json]) -> RecordedAnswer:
    request = dict(entry["fields"])
    if entry["messages"] is not None:
        request["messages"] = [messages[at] for at in entry["messages"]]
    return RecordedAnswer(str(entry["path"]), request, int(entry["status"]), entry["answer"])


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
