"""Data as scripts: files that put a value into the one global of a page, which works from files as from servers."""

from __future__ import annotations

import json
from typing import Any

_ESCAPES = {code: f"\\u{code:04x}" for code in map(ord, "<>&\u2028\u2029")}


def assignment(name: str, value: Any) -> str:
    """The script that puts a value into `window.TB` under a name."""
    return f"window.TB = window.TB || {{}}; TB[{_json(name)}] = {_json(value)};\n"


def _json(value: Any) -> str:
    """JSON without anything that could end a script or a line of it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPES)
