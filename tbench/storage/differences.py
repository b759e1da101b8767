"""Describes what differs between the settings of two starts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_SHOWN_CHARS = 80
_SHOWN = 12
_ABSENT = "nothing"


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, apart_from: Collection[str] = ()) -> str:
    """The values that differ, as `key: old → new` joined by `; `; empty where none does. Null is as good as absent.

    Keys of nested objects have dots; `apart_from` names keys that may differ.
    """
    found = [words for key, words in each_difference(old, new) if key not in apart_from]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "; ".join(found[:_SHOWN] + more)


def each_difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The key of each value that differs, and `key: old → new`, in the order of the keys."""
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from each_difference(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", f"{prefix}{key}: {_shown(old, key)} → {_shown(new, key)}"


def _shown(values: Mapping[str, Any], key: str) -> str:
    text = json.dumps(values[key], ensure_ascii=False) if key in values else _ABSENT
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
