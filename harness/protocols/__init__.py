"""Action protocols by name. A protocol turns a model's reply into actions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from harness.limits import OUTPUT_LIMIT_BYTES
from harness.protocols.base import ActionProtocol

__all__ = ["PROTOCOLS", "UnknownProtocol", "load_protocol"]


def _load(module: str, name: str, prompt_file: Path | None, observation_bytes: int) -> ActionProtocol:
    """Import a protocol's module, with its prompts, only when it is used: an oracle does not need them."""
    make: Callable[[Path | None, int], ActionProtocol] = getattr(import_module(f"harness.protocols.{module}"), name)
    return make(prompt_file, observation_bytes)


PROTOCOLS: dict[str, Callable[[Path | None, int], ActionProtocol]] = {
    "keystrokes-json": partial(_load, "keystrokes_json", "KeystrokesJson"),
    "keystrokes-xml": partial(_load, "keystrokes_xml", "KeystrokesXml"),
    "bash-block": partial(_load, "bash", "BashBlock"),
    "bash-tool": partial(_load, "bash", "BashTool"),
    "thinking-bash": partial(_load, "thinking_bash", "ThinkingBash"),
}


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
    return PROTOCOLS[name](prompt_file, observation_bytes)
