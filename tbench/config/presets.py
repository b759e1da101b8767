"""Settings of other harnesses in one word: files like the user's own, as those harnesses document their values.

A value that a harness leaves to the server cannot be left out here, because every parameter is sent: then it is the
default of the chat API. What a preset does not name is tbench's own default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

_DIRECTORY = Path(__file__).parent / "presets"
PRESETS = ("terminus-2", "tmax", "mini-swe-agent", "thinking-bash")
OWN_LOOP = (
    *("agent.protocol", "agent.prompt", "agent.observation_bytes", "agent.neutralise_special_tokens"),
    *("agent.approve", "limits.on_overflow"),
)
"""Settings of tbench's own agent loop, which an agent of the user's own does not go through."""


@cache
def preset(name: str) -> dict[str, dict[str, Any]]:
    """The values of a preset, by section. Raises ValueError for a name that is none."""
    if name not in PRESETS:
        raise ValueError(f"{name}: unknown; known: {', '.join(PRESETS)}")
    return tomllib.loads((_DIRECTORY / f"{name}.toml").read_text(encoding="utf-8"))


def from_preset(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The values of the preset that `given`, sections of a run's configuration, names: those that fit and are missing.

    Raises ValueError for a preset that does not exist.
    """
    agent = given_values(given.get("agent"))
    name = agent.get("preset")
    if name is None:
        return {}
    values = preset(str(name))
    found = {
        section: {
            key: value
            for key, value in part.items()
            if key not in given_values(given.get(section)) and _fits(f"{section}.{key}", agent, values["agent"])
        }
        for section, part in values.items()
    }
    return {section: part for section, part in found.items() if part}


def _fits(path: str, agent: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    if ":" in str(agent.get("name")):
        return path not in OWN_LOOP
    if path == "agent.shell_state":
        from harness.protocols import PROTOCOLS, load_protocol  # with their prompts, which most commands do without

        protocol = agent.get("protocol", values["protocol"])
        return protocol not in PROTOCOLS or load_protocol(protocol).types_commands
    return True


def given_values(section: Any) -> Mapping[str, Any]:
    """What was given of a section, which may be a model already."""
    if isinstance(section, BaseModel):
        return {name: getattr(section, name) for name in section.model_fields_set}
    return section if isinstance(section, Mapping) else {}
