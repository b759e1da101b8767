"""Redacts secrets in everything that is stored: error messages, tracebacks, notes and logs may quote anything."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from tbench.sandbox.container_proxy import WITHOUT_PROXY, ContainerProxy
from tbench.tasks.task import Task

_SHORTEST = 8
"""Minimum number of characters of a secret. Shorter values are more likely ordinary words, such as the key `none`."""
_PASSWORD = re.compile(r"(://)[^/\s@:]*:[^/\s@]+@")


def make_redactor(
    tasks: Iterable[Task | None], *, host: Mapping[str, str] | None = None, proxy: ContainerProxy = WITHOUT_PROXY
) -> Callable[[str], str]:
    """Return a function that replaces secrets in a text: API key, passwords in URLs, proxy password, task variables.

    Task variables are those that `tasks` take from tbench's environment by `${VAR}`.
    """
    secrets = list(_secrets(tasks, os.environ if host is None else host))

    def hide_in(text: str) -> str:
        for name, value in secrets:
            text = text.replace(value, f"[{name}]")
        return proxy.masks.mask_text(_PASSWORD.sub(r"\1[password]@", text))

    return hide_in


def _secrets(tasks: Iterable[Task | None], host: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    asked = {wish.variable for task in tasks if task for wish in task.requested_variables}
    names = {"OPENAI_API_KEY": "key"} | {name: name for name in asked}
    # The longest first: one may contain another.
    found = [(shown, host.get(name, "").strip()) for name, shown in names.items()]
    yield from sorted((pair for pair in found if len(pair[1]) >= _SHORTEST), key=lambda pair: -len(pair[1]))
