"""A configuration as text: a commented file to begin with, and the resolved values with their origins."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from harness.endpoint.address import without_password
from tbench.config.layers import Resolved
from tbench.config.setting import Setting, panels_of, settings_of

_WIDTH = 100


_TAKE_AWAY = "Take the # away from what you want to say."


def commented_file(
    configuration: type[BaseModel], heading: str = "Settings of a run; `tbench run -c FILE` reads them."
) -> str:
    """A TOML file with every setting, its help and its default, all of them commented out."""
    lines = [f"# {heading} {_TAKE_AWAY}"]
    for section, title, settings in panels_of(configuration):
        lines += ["", f"# {title}", f"[{section}]"]
        for setting in settings:
            lines += [
                "",
                *_wrapped(setting.help + _choices(setting)),
                f"# {setting.name} = {as_toml(setting.said_default)}",
            ]
    return "\n".join(lines) + "\n"


def shown(resolved: Resolved[Any]) -> Iterator[str]:
    """A line for each setting: its value as TOML, and where that came from."""
    config = resolved.config
    rows = []
    for setting in settings_of(type(config)):
        value = setting.said_in(config)
        if setting.path == "model.base_url" and value is not None:
            value = without_password(value)
        if setting.path == "model.endpoints":
            value = [{**each, "base_url": without_password(each["base_url"])} for each in value]
        rows.append((f"{setting.path} = {as_toml(value)}", setting.path))
    width = min(60, max(len(row) for row, _ in rows))
    for row, path in rows:
        yield f"{row:<{width}}  # {resolved.origins.get(path, 'default')}"


def _wrapped(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH - 2, break_on_hyphens=False)]


def _choices(setting: Setting) -> str:
    return f" One of {', '.join(setting.choices)}." if setting.choices else ""


def as_toml(value: Any) -> str:
    """A value as TOML; None, for which TOML has no word, is the word that stands for it."""
    if value is None:
        return '"none"'
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(str(key))} = {as_toml(each)}" for key, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
