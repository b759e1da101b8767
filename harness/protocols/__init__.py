"""The protocols by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.protocols.base import ActionProtocol
from harness.protocols.bash_block import BashBlock
from harness.protocols.keystrokes_json import KeystrokesJson

__all__ = ["PROTOCOLS", "UnknownProtocol", "load_protocol"]

PROTOCOLS: dict[str, Callable[[Path | None], ActionProtocol]] = {
    KeystrokesJson.name: KeystrokesJson,
    BashBlock.name: BashBlock,
}


class UnknownProtocol(ValueError):
    """No protocol has this name."""


def load_protocol(name: str, prompt_file: Path | None = None) -> ActionProtocol:
    """The protocol called `name`, its prompts taken from `prompt_file` where that defines them.

    Raises UnknownProtocol, and ValueError (one line, file and line named) for a broken prompt file.
    """
    if name not in PROTOCOLS:
        raise UnknownProtocol(f"unknown protocol {name!r}; known: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name](prompt_file)
