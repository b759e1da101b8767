"""Action protocols: how a model's reply becomes actions. Here they are found by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.limits import OUTPUT_LIMIT_BYTES
from harness.protocols.base import ActionProtocol
from harness.protocols.bash import BashBlock, BashTool
from harness.protocols.keystrokes_json import KeystrokesJson
from harness.protocols.keystrokes_xml import KeystrokesXml
from harness.protocols.thinking_bash import ThinkingBash

__all__ = ["PROTOCOLS", "UnknownProtocol", "load_protocol"]

PROTOCOLS: dict[str, Callable[[Path | None, int], ActionProtocol]] = {
    KeystrokesJson.name: KeystrokesJson,
    KeystrokesXml.name: KeystrokesXml,
    BashBlock.name: BashBlock,
    BashTool.name: BashTool,
    ThinkingBash.name: ThinkingBash,
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
