"""What all browsers are to see, each thing with the number of its last change: who knows up to a number asks for more.

Nothing is queued for anybody, so a slow browser costs no memory, and what changes faster than it reads is told once.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

GONE_KEPT = 2048
"""Things that were taken away and are remembered as such; who missed more begins anew."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A thing on the board; without a value it was taken away."""

    change: int
    value: Mapping[str, Any] | None
    data: bytes


@dataclass(frozen=True, slots=True)
class News:
    """What has changed after some number, as one message to a browser."""

    change: int
    """What is known when this has been read."""
    data: bytes
    """A JSON object: `set` by key, `gone` keys, and `anew` where all that was known before is void."""
    is_all: bool
    """Whether nothing else is waiting."""


class NewsBoard:
    """Things by key, the last changed last. Any thread may read and write."""

    def __init__(self) -> None:
        self.era = secrets.token_hex(4)
        """Numbers of changes count within it: those of an earlier server mean nothing."""
        self._posted: OrderedDict[str, Posted] = OrderedDict()
        self._change = 0
        self._forgotten = 0
        """Change up to which things that were taken away are not remembered."""
        self._changed = threading.Condition()
        self._closed = False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the board for several changes, and wake all readers once."""
        with self._changed:
            before = self._change
            yield
            if self._change != before:
                self._changed.notify_all()

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Post a thing, in the place of an earlier one. Nothing happens where it is as before."""
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        with self.changing():
            known = self._posted.get(key)
            if known is None or known.data != data:
                self._post(key, value, data)

    def remove(self, key: str) -> None:
        """Take a thing away."""
        with self.changing():
            known = self._posted.get(key)
            if known is not None and known.value is not None:
                self._post(key, None, b"")
                self._forget()

    def _post(self, key: str, value: Mapping[str, Any] | None, data: bytes) -> None:
        self._change += 1
        self._posted[key] = Posted(self._change, value, data)
        self._posted.move_to_end(key)

    def _forget(self) -> None:
        gone = [key for key, posted in self._posted.items() if posted.value is None]
        for key in gone[: max(0, len(gone) - GONE_KEPT)]:
            self._forgotten = max(self._forgotten, self._posted.pop(key).change)

    def everything(self) -> dict[str, Mapping[str, Any]]:
        """All that is there, by key."""
        with self._changed:
            return {key: posted.value for key, posted in self._posted.items() if posted.value is not None}

    def known_of(self, mark: str | None) -> int:
        """The change that a browser says it has seen, by the id of its last message; 0 where it begins anew."""
        era, _, number = (mark or "").partition("-")
        known = int(number) if number.isdecimal() and len(number) < 16 else 0
        return known if era == self.era and self._forgotten <= known <= self._change else 0

    def news(self, known: int, most: int) -> News:
        """What has changed since, the oldest change first, and no more than `most` things of it."""
        with self._changed:
            fresh = self._since(known)
            told = fresh[:most]
            change = told[-1][1].change if len(told) < len(fresh) else self._change
        if known == 0:
            told = [each for each in told if each[1].value is not None]
        put = b",".join(b"%s:%s" % (_text(key), posted.data) for key, posted in told if posted.value is not None)
        gone = b",".join(_text(key) for key, posted in told if posted.value is None)
        anew = b'"anew":true,' if known == 0 else b""
        return News(change, b'{%s"set":{%s},"gone":[%s]}' % (anew, put, gone), len(told) == len(fresh))

    def _since(self, known: int) -> list[tuple[str, Posted]]:
        fresh = []
        for key, posted in reversed(self._posted.items()):
            if posted.change <= known:
                break
            fresh.append((key, posted))
        return fresh[::-1]

    def wait(self, known: int, seconds: float) -> bool:
        """Whether there is news within so many seconds; also when the board is closed."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or self._change > known, seconds)

    def close(self) -> None:
        """Wake all readers for the last time."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed


def _text(key: str) -> bytes:
    return json.dumps(key, ensure_ascii=False).encode("utf-8", "replace")
