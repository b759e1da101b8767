"""The action protocol of a stored run, by which replies are read again the way the run read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.errors import FormatError
from harness.protocols import PROTOCOLS, load_protocol
from harness.protocols.base import Action, ActionProtocol, Command, Parsed
from harness.protocols.bash import BashProtocol
from harness.trajectory import Reply, Step
from tbench.storage.read_run import StoredRun


@dataclass(frozen=True, slots=True)
class RunProtocol:
    """The protocol that a trajectory names, as far as this tbench knows it."""

    protocol: ActionProtocol | None
    """None for an agent of a user's own, and for what other programs ran."""
    same_prompts: bool
    """Whether its prompts are those of the run."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The functions that every request offered; empty where there were none, or where they are not known."""
        return self.protocol.tools if self.protocol is not None and self.same_prompts else ()

    @property
    def tools_offered(self) -> bool:
        """Whether replies act by calls of functions."""
        return self.protocol is not None and bool(self.protocol.tools)

    def parsed(self, reply: Reply) -> Parsed | None:
        """What the protocol understands of a reply; None where that is nothing."""
        if self.protocol is None or reply.cut:
            return None
        try:
            return self.protocol.parse(reply.content, reply.tool_calls)
        except FormatError:
            return None

    def actions(self, step: Step) -> Sequence[Action]:
        """The actions of a step with all that the reply said of them; empty where a reading now finds others."""
        parsed = self.parsed(step.reply) if step.actions else None
        if parsed is None or tuple(map(_typed, parsed.actions)) != step.actions:
            return ()
        return parsed.actions


def protocol_of(run: StoredRun, name: str) -> RunProtocol:
    """The protocol called `name`, with the prompts and the shell state of the run where they are to be had."""
    document = run.document
    if document is None:
        return _protocol(name, None, None, None)
    locked = document.locked
    return _protocol(name, document.config.agent.prompt, locked.prompt_hash, locked.shell_state)


@lru_cache(maxsize=64)
def _protocol(name: str, prompt: str | None, prompt_hash: str | None, shell_state: str | None) -> RunProtocol:
    if name not in PROTOCOLS:
        return RunProtocol(None, same_prompts=False)
    protocol = _with_prompts(name, prompt)
    if isinstance(protocol, BashProtocol):
        protocol = protocol.in_shell("fresh" if shell_state == "fresh" else "persistent")
    return RunProtocol(protocol, same_prompts=protocol.prompt_hash == prompt_hash)


def _with_prompts(name: str, file: str | None) -> ActionProtocol:
    """The protocol with a user's prompts, or with the shipped ones where these cannot be used any more."""
    try:
        return load_protocol(name, None if file is None else Path(file))
    except ValueError:
        return load_protocol(name)


def _typed(action: Action) -> str:
    if isinstance(action, Command):
        return action.command
    return action.key if action.key is not None else action.keystrokes
