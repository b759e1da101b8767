"""Keeps secrets out of what is stored: messages of errors and tracebacks, which may quote anything."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from tbench.tasks.task import Task, host_variables

_SHORTEST = 8
"""Characters. A shorter value is more likely a word that stands there in its own right, such as the key `none`."""
_PASSWORD = re.compile(r"(://)[^/\s@:]*:[^/\s@]+@")


def hide(text: str, task: Task | None = None, host: Mapping[str, str] | None = None) -> str:
    """`text` without the API key, passwords in URLs, and what `task` takes from tbench's environment by `${VAR}`."""
    for name, value in _secrets(task, os.environ if host is None else host):
        text = text.replace(value, f"[{name}]")
    return _PASSWORD.sub(r"\1[password]@", text)


def _secrets(task: Task | None, host: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    names = {"OPENAI_API_KEY": "key"} | {name: name for name in (host_variables(task) if task else ())}
    # The longest first: one may hold another.
    found = [(shown, host.get(name, "").strip()) for name, shown in names.items()]
    yield from sorted((pair for pair in found if len(pair[1]) >= _SHORTEST), key=lambda pair: -len(pair[1]))
