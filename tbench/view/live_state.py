"""State shown by all live pages: entries numbered by their last change, so that a reader can ask for later changes.

Readers have no queues: a slow browser costs no memory, and gets only the last of several quick changes.
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
"""Number of removals that are remembered; a reader that missed more starts from scratch."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """Entry of the state; without a value it was removed."""

    change: int
    value: Mapping[str, Any] | None
    data: bytes


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """Changes after some number, as one message to a browser."""

    change: int
    """Number of the last change that this update includes."""
    data: bytes
    """JSON object: `set` with values by key, `gone` with keys, and `anew` if the reader has to start over."""
    is_all: bool
    """Whether no further changes are waiting."""


class LiveState:
    """Entries by key, ordered by their last change. Thread-safe."""

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(4)
        """Identifies this server process, within which changes are numbered."""
        self._entries: OrderedDict[str, StateEntry] = OrderedDict()
        self._change = 0
        self._forgotten = 0
        """Change up to which removals are forgotten."""
        self._changed = threading.Condition()
        self.is_closed = False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Lock the state for several changes, and wake all readers once."""
        with self._changed:
            before = self._change
            yield
            if self._change != before:
                self._changed.notify_all()

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Set an entry. Does nothing if it has not changed."""
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        with self.changing():
            known = self._entries.get(key)
            if known is None or known.data != data:
                self._set(key, value, data)

    def remove(self, key: str) -> None:
        """Remove an entry."""
        with self.changing():
            known = self._entries.get(key)
            if known is not None and known.value is not None:
                self._set(key, None, b"")
                self._forget()

    def _set(self, key: str, value: Mapping[str, Any] | None, data: bytes) -> None:
        self._change += 1
        self._entries[key] = StateEntry(self._change, value, data)
        self._entries.move_to_end(key)

    def _forget(self) -> None:
        gone = [key for key, entry in self._entries.items() if entry.value is None]
        for key in gone[: max(0, len(gone) - GONE_KEPT)]:
            self._forgotten = max(self._forgotten, self._entries.pop(key).change)

    def snapshot(self) -> dict[str, Mapping[str, Any]]:
        """Return all current values, by key."""
        with self._changed:
            return {key: entry.value for key, entry in self._entries.items() if entry.value is not None}

    def last_seen(self, message_id: str | None) -> int:
        """Return the last change that a browser has seen, by the id of its last message; 0 if it has to start again."""
        epoch, _, number = (message_id or "").partition("-")
        known = int(number) if number.isdecimal() and len(number) < 16 else 0
        return known if epoch == self.epoch and self._forgotten <= known <= self._change else 0

    def update_since(self, known: int, most: int) -> StateUpdate:
        """Return the changes after `known`, oldest first, but at most `most` entries."""
        with self._changed:
            changed = self._changed_since(known)
            sent = changed[:most]
            change = sent[-1][1].change if len(sent) < len(changed) else self._change
        if known == 0:
            sent = [each for each in sent if each[1].value is not None]
        put = b",".join(b"%s:%s" % (_text(key), entry.data) for key, entry in sent if entry.value is not None)
        gone = b",".join(_text(key) for key, entry in sent if entry.value is None)
        reset = b'"anew":true,' if known == 0 else b""
        return StateUpdate(change, b'{%s"set":{%s},"gone":[%s]}' % (reset, put, gone), len(sent) == len(changed))

    def _changed_since(self, known: int) -> list[tuple[str, StateEntry]]:
        changed = []
        for key, entry in reversed(self._entries.items()):
            if entry.change <= known:
                break
            changed.append((key, entry))
        return changed[::-1]

    def wait(self, known: int, seconds: float) -> bool:
        """Wait up to `seconds` for a change or for `close`; return whether there was either."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_closed or self._change > known, seconds)

    def close(self) -> None:
        """Wake all readers for the last time."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()


def _text(key: str) -> bytes:
    return json.dumps(key, ensure_ascii=False).encode("utf-8", "replace")
