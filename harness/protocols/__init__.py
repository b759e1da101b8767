"""Action protocols: how a model's reply becomes actions. Here they are found by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from harness.limits import OUTPUT_LIMIT_BYTES
from harness.protocols.base import ActionProtocol

__all__ = ["PROTOCOLS", "UnknownProtocol", "load_protocol"]


def _made(module: str, name: str, prompt_file: Path | None, observation_bytes: int) -> ActionProtocol:
    """A protocol, whose module is imported only now: with its prompts, which an oracle does without."""
    make: Callable[[Path | None, int], ActionProtocol] = getattr(import_module(f"harness.protocols.{module}"), name)
    return make(prompt_file, observation_bytes)


PROTOCOLS: dict[str, Callable[[Path | None, int], ActionProtocol]] = {
    "keystrokes-json": partial(_made, "keystrokes_json", "KeystrokesJson"),
    "keystrokes-xml": partial(_made, "keystrokes_xml", "KeystrokesXml"),
    "bash-block": partial(_made, "bash", "BashBlock"),
    "bash-tool": partial(_made, "bash", "BashTool"),
    "thinking-bash": partial(_made, "thinking_bash", "ThinkingBash"),
}


class UnknownProtocol(ValueError):
    """The name of no protocol."""


def load_protocol(
    name: str, prompt_file: Path | None = None, observation_bytes: int = OUTPUT_LIMIT_BYTES
) -> ActionProtocol:
    """The protocol called `name`, with prompts from `prompt_file` where that defines them.

    Observations longer than `observation_bytes` lose their middle.

    Raises UnknownProtocol, and ValueError (one line, file and line named) for a broken prompt file.
    """
    if name not in PROTOCOLS:
        raise UnknownProtocol(f"unknown protocol {name!r}; known: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name](prompt_file, observation_bytes)
