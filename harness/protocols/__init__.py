"""Action protocols by name. A protocol turns a model's reply into actions."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from harness.limits import OUTPUT_LIMIT_BYTES
from harness.protocols.base import ActionProtocol

__all__ = ["PROTOCOLS", "UnknownProtocol", "load_protocol"]


PROTOCOLS = {
    "keystrokes-json": ("keystrokes_json", "KeystrokesJson"),
    "keystrokes-xml": ("keystrokes_xml", "KeystrokesXml"),
    "bash-block": ("bash", "BashBlock"),
    "bash-tool": ("bash", "BashTool"),
    "thinking-bash": ("thinking_bash", "ThinkingBash"),
}
"""Module and class, imported with the prompts only when the protocol is used: an oracle needs none."""


class UnknownProtocol(ValueError):
    """Raised for an unknown protocol name."""


def load_protocol(
    name: str, prompt_file: Path | None = None, observation_bytes: int = OUTPUT_LIMIT_BYTES
) -> ActionProtocol:
    """Return the protocol `name`; prompts that `prompt_file` defines replace the shipped ones.

    The middle of observations longer than `observation_bytes` is cut out.

    Raises UnknownProtocol, and ValueError (one line, with file and line) for a broken prompt file.
    """
    if name not in PROTOCOLS:
        raise UnknownProtocol(f"unknown protocol {name!r}; known: {', '.join(PROTOCOLS)}")
    module, kind = PROTOCOLS[name]
    make: Callable[[Path | None, int], ActionProtocol] = getattr(import_module(f"harness.protocols.{module}"), kind)
    return make(prompt_file, observation_bytes)
