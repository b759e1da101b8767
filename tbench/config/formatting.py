"""A configuration as text: a commented template file, and the resolved values with their origins."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from harness.endpoint.address import without_password
from tbench.config.layers import Resolved
from tbench.config.setting import Setting, iter_settings, section_panels

_WIDTH = 100


_UNCOMMENT = "Uncomment the lines that you want to change."


def commented_file(
    configuration: type[BaseModel],
    heading: str = "Settings of a run. Use them with `tbench run -c FILE`.",
    resolved: Resolved[Any] | None = None,
) -> str:
    """Return a TOML file with every setting, its help and its default, commented out unless `resolved` sets it."""
    origins = {} if resolved is None else resolved.origins
    is_set = {path for path, origin in origins.items() if not origin.startswith("preset ")}
    lines = [f"# {heading} {_UNCOMMENT}"]
    for section, title, settings in section_panels(configuration):
        lines += ["", f"# {title}", f"[{section}]"]
        for setting in settings:
            line = f"# {setting.name} = {as_toml(setting.file_default)}"
            if resolved is not None and setting.path in is_set:
                line = f"{setting.name} = {as_toml(_file_value(setting, resolved.config))}"
            help = textwrap.wrap(setting.help + _choices(setting), _WIDTH - 2, break_on_hyphens=False)
            lines += ["", *(f"# {words}" for words in help), line]
    return "\n".join(lines) + "\n"


def setting_lines(resolved: Resolved[Any]) -> Iterator[str]:
    """Iterate over lines for `tbench config show`: each setting's value as TOML, and its origin."""
    config = resolved.config
    settings = iter_settings(type(config))
    rows = [(f"{each.path} = {as_toml(_file_value(each, config))}", each.path) for each in settings]
    width = min(60, max(len(row) for row, _ in rows))
    for row, path in rows:
        yield f"{row:<{width}}  # {resolved.origins.get(path, 'default')}"


def _file_value(setting: Setting, config: Any) -> Any:
    """Return a setting's value for a file, without passwords."""
    value = setting.file_value_in(config)
    if setting.path == "model.base_url" and value is not None:
        return without_password(value)
    if setting.path == "model.endpoints":
        return [{**each, "base_url": without_password(each["base_url"])} for each in value]
    return value


def _choices(setting: Setting) -> str:
    return f" One of {', '.join(setting.choices)}." if setting.choices else ""


def as_toml(value: Any) -> str:
    """Format a value as TOML; None becomes "none", because TOML has no null."""
    if value is None:
        return '"none"'
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(str(key))} = {as_toml(each)}" for key, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
