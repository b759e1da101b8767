"""The levels of a reply: strict, extractable, syntactic. Nothing is executed."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import FormatError
from harness.protocols.base import Action, ActionProtocol, Command
from harness.protocols.thinking_bash import ThinkingBash
from tbench.proxies.extraction.records import ReplyRecord
from tbench.proxies.extraction.syntax import BashSyntax
from tbench.rewards import has_strict_form


@dataclass(frozen=True)
class Levels:
    """Which levels a reply reaches, each for itself: a strict reply with a blank command is not extractable."""

    strict: bool = False
    extractable: bool = False
    syntactic: bool = False
    command: str | None = None
    """The text that would be run or typed."""
    problem: str = ""
    """Why the reply is not extractable, or what bash said of its command: `kind` or `kind: words`."""


def read_levels(record: ReplyRecord | None, protocol: ActionProtocol, bash: BashSyntax) -> Levels:
    """Judge a reply. Errors, missing and empty replies fail all three levels.

    thinking-bash: strict is the pattern of the formatting reward on the raw reply. Other protocols: the reply is
    understood without a warning. Extractable: the protocol finds something to run or to type in it that is not blank.
    Syntactic: bash accepts that (of keystrokes the typed text, without keys).
    """
    if record is None or record.content is None:
        return Levels(problem="no_reply" if record is None else record.error or "no_reply")
    if not record.content.strip() and not record.tool_calls:
        return Levels(problem="empty_reply")
    own = isinstance(protocol, ThinkingBash)
    strict = own and has_strict_form(record.content)
    try:
        parsed = protocol.parse(record.content, record.tool_calls)
    except FormatError as error:
        return Levels(strict=strict, problem=error.kind)
    command = "".join(map(_typed, parsed.actions)).rstrip("\n")
    if not own:
        strict = not parsed.warnings
    if not command.strip():
        return Levels(strict=strict, problem="no_command")
    syntax = bash.check(command)
    problem = "" if syntax.accepted else f"syntax: {syntax.complaint}"
    return Levels(strict, True, syntax.accepted, command, problem)


def _typed(action: Action) -> str:
    if isinstance(action, Command):
        return f"{action.command}\n"
    return action.keystrokes if action.key is None else ""
