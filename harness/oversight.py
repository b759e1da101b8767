"""Oversight of an agent: rules and people that approve, change, hold or stop its actions.

The time that this takes is not charged to the agent. Every intervention is recorded in its trajectory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness.clock import Clock
from harness.errors import FormatError
from harness.model import Model
from harness.protocols.base import Command, Parsed
from harness.trajectory import Intervention, Message, Reply, Step


@dataclass(frozen=True, slots=True)
class Query:
    """A query to a model that has not been sent yet."""

    model: Model
    messages: Sequence[Message]
    """The live history, which keeps growing: copy it to keep it."""
    seed: int | None
    max_tokens: int
    tools: Sequence[Mapping[str, Any]] = ()

    async def ask(self) -> Reply:
        """Query the model. Raises EndpointError and ContextLimitReached."""
        return await self.model.query(self.messages, seed=self.seed, max_tokens=self.max_tokens, tools=self.tools)


@dataclass(frozen=True, slots=True)
class Draft:
    """A reply that has not been executed yet."""

    step: int
    reply: Reply
    parsed: Parsed | FormatError
    """The actions it asks for, or what is wrong with its format."""
    sample: Callable[[int | None, float | None], Awaitable[Reply]]
    """Draw another reply to the same conversation, with this seed and temperature; None uses the agent's.

    Raises EndpointError and ContextLimitReached.
    """
    read: Callable[[Reply], Parsed | FormatError]
    """Parse another reply, or return what is wrong with its format."""
    needs_approval: bool = False
    """Whether a person has to approve it, because no rule allows it."""


@dataclass(frozen=True, slots=True)
class Declined:
    """The decision not to execute a reply."""

    why: str
    """The message that the model gets instead of an observation."""


@dataclass(frozen=True, slots=True)
class Approved:
    """The decision to execute a reply that needs approval."""

    reply: Reply
    by: str
    """The approver: a person or a rule."""


Decision = Reply | Declined | Approved
"""The decision on a reply: execute it, execute another reply, or execute none."""


@dataclass(frozen=True, slots=True)
class TerminalHandback:
    """Report that a person typed into the terminal and has given it back."""

    text: str
    """The typed text, and the screen afterwards."""


class Oversight(Protocol):
    """An observer of one agent, who may hold it, send it messages and decide on its replies."""

    async def before_query(self, step: int) -> Sequence[str | TerminalHandback]:
        """Return when the model may be queried for this step; the returned messages are added to the last observation.

        If a person has typed into the terminal, its screen is read. Raises the terminal's errors then.
        """

    async def reply(self, query: Query) -> Reply:
        """Return the model's reply to a query, or its recorded reply to the same query. Raises the model's errors."""

    async def review(self, draft: Draft) -> Decision:
        """Decide which reply to execute: the draft, an edited draft or another sample; or decline."""


# Approval: an action needs a rule that allows it, or a person's consent.

_ALLOWLIST = "allowlist="
_MAX_SHOWN = 20
"""Maximum number of rules listed to the model."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""Control characters, which no rule can allow: they would change a line that has been checked already."""


class BadApproval(ValueError):
    """Raised for an invalid setting or rules file; the message names the place and the remedy."""


@dataclass(frozen=True)
class Rule:
    """A regular expression; actions that it matches in full are allowed."""

    text: str
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class Approval:
    """The approval that a reply needs before it is executed."""

    asks: bool
    """Whether a person is asked about actions that no rule allows; if not, they are refused."""
    rules: tuple[Rule, ...] = ()

    @classmethod
    def read(cls, setting: str) -> Approval:
        """Parse `ask`, `allowlist=FILE` or `ask,allowlist=FILE`. Raises BadApproval."""
        asks, comma, rest = setting.partition(",")
        if asks != "ask":
            asks, comma, rest = "", ",", setting
        if not comma:
            return cls(asks=True)
        file = rest.removeprefix(_ALLOWLIST)
        if file == rest or not file:
            raise BadApproval(f"{setting!r}: write ask, allowlist=FILE, or ask,allowlist=FILE")
        return cls(asks=bool(asks), rules=read_rules(Path(file)))

    @property
    def fingerprint(self) -> str:
        """Short text that is equal for equal rules."""
        if not self.rules:
            return "ask"
        digest = hashlib.sha256("\n".join(rule.text for rule in self.rules).encode()).hexdigest()
        return f"{'ask,' if self.asks else ''}allowlist:{digest[:16]}"

    def refusal_text(self, actions: Iterable[str]) -> str:
        """Return the message to the model about a reply that was not executed because it was not approved."""
        refused = "\n".join(f"  {each}" for each in actions)
        if not self.rules:
            return f"None of this was done, because nobody approved it:\n{refused}"
        allowed = "\n".join(f"  {rule.text}" for rule in self.rules[:_MAX_SHOWN])
        return (
            f"None of this was done, because it is not allowed here:\n{refused}\n"
            f"An action is allowed only if one of these regular expressions matches all of it:\n{allowed}"
        )


def read_rules(file: Path) -> tuple[Rule, ...]:
    """Read rules from a file: a regular expression per line; `#` begins a comment line. Raises BadApproval."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadApproval(f"{file}: {why}; give a file with one regular expression per line") from None
    rules = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                rules.append(Rule(line.strip(), re.compile(line.strip())))
            except re.error as error:
                raise BadApproval(f"{file}:{number}: {line.strip()}: not a regular expression: {error}") from None
    if not rules:
        raise BadApproval(f"{file}: no rules; write one regular expression per line")
    return tuple(rules)


@dataclass
class Approver:
    """Checks the replies of one agent against the rules. Typed text does not always show which commands will run. Each
    line is checked in full, including the part that earlier replies have typed.
    """

    approval: Approval
    _unfinished: str = field(default="", init=False)
    """Text on the terminal's line that has not been followed by Enter."""

    def find_refused(self, parsed: Parsed) -> tuple[str, ...]:
        """Return the commands, lines and keys of a reply that no rule allows; empty if it may be executed."""
        return tuple(unit for unit in _units(parsed, self._unfinished)[0] if self._rule(unit) is None)

    def rules_for(self, parsed: Parsed) -> tuple[str, ...]:
        """Return the rules that allow a reply, each once."""
        found = (self._rule(unit) for unit in _units(parsed, self._unfinished)[0])
        return tuple(dict.fromkeys(rule.text for rule in found if rule is not None))

    def note_followed(self, parsed: Parsed) -> None:
        """Record that a reply was executed."""
        _, self._unfinished = _units(parsed, self._unfinished)

    def _rule(self, unit: str) -> Rule | None:
        if _CONTROL.search(unit):
            return None
        return next((rule for rule in self.approval.rules if rule.pattern.fullmatch(unit)), None)


def _units(parsed: Parsed, before: str) -> tuple[list[str], str]:
    """Return the units that need a rule (commands, typed lines and key names), and the text of an unfinished line.

    `before` is the unfinished line of earlier replies.
    """
    if parsed.complete and len(parsed.actions) == 1 and isinstance(parsed.actions[0], Command):
        return [], before  # the command that only declares the task done
    units, unfinished = list[str](), before
    for action in parsed.actions:
        if isinstance(action, Command):
            units.append(action.command.strip("\n"))
        elif action.key is not None:
            units.append(action.key)
            unfinished = ""
        else:
            *lines, unfinished = re.split(r"\r\n|[\r\n]", unfinished + action.keystrokes)
            units += [line or "Enter" for line in lines]
    return [*units, unfinished] if unfinished not in ("", before) else units, unfinished


Sample = Callable[[int | None, float | None], Awaitable[Reply]]
Read = Callable[[Reply], Parsed | FormatError]


class Supervisor:
    """Applies an agent's oversight and approval rules, and records interventions; their time is not charged."""

    def __init__(self, oversight: Oversight | None, approval: Approval | None) -> None:
        self.interventions: list[Intervention] = []
        """All interventions, in order."""
        self._oversight = oversight
        self._approver = None if approval is None else Approver(approval)

    async def before_query(self, step: int, clock: Clock) -> Sequence[str | TerminalHandback]:
        """Return when the model may be queried, with the messages for it."""
        if self._oversight is None:
            return ()
        with clock.stopped():
            return await self._oversight.before_query(step)

    async def reply(self, query: Query) -> Reply:
        """Return the reply to a query. Raises the model's errors."""
        return await (query.ask() if self._oversight is None else self._oversight.reply(query))

    async def review(
        self, step: int, reply: Reply, parsed: Parsed | FormatError, sample: Sample, read: Read, clock: Clock
    ) -> Reply | Declined:
        """Return the reply to execute, or its refusal."""
        refused = self._find_refused(parsed)
        decided: Reply | Declined | Approved = reply
        if self._oversight is not None:
            with clock.stopped():
                decided = await self._oversight.review(Draft(step, reply, parsed, sample, read, bool(refused)))
        if isinstance(decided, Approved):
            self._note(step, "approved", decided.by)
            decided = decided.reply
        elif decided is reply:
            decided = self._by_rule(step, reply, parsed, refused)
        if isinstance(decided, Declined):
            self._note(step, "refused", decided.why)
            return decided
        if decided is not reply:
            self._note(step, "changed", reply.content)
        if self._approver is not None and not isinstance(followed := read(decided), FormatError):
            self._approver.note_followed(followed)
        return decided

    def _find_refused(self, parsed: Parsed | FormatError) -> tuple[str, ...]:
        if self._approver is None or isinstance(parsed, FormatError):
            return ()
        return self._approver.find_refused(parsed)

    def _by_rule(
        self, step: int, reply: Reply, parsed: Parsed | FormatError, refused: tuple[str, ...]
    ) -> Reply | Declined:
        """Decide by the rules on a reply that no person has decided on."""
        if self._approver is None or isinstance(parsed, FormatError):
            return reply
        if refused:
            return Declined(self._approver.approval.refusal_text(refused))
        if rules := self._approver.rules_for(parsed):
            self._note(step, "approved", f"by rule: {' and '.join(rules)}")
        return reply

    def restore(self, interventions: Iterable[Intervention], steps: Iterable[Step], read: Read) -> None:
        """Continue after `steps` that another process has executed."""
        self.interventions += interventions
        refused = {each.step for each in self.interventions if each.kind == "refused"}
        if self._approver is None:
            return
        for step in steps:
            if step.index not in refused and not isinstance(followed := read(step.reply), FormatError):
                self._approver.note_followed(followed)

    def note_message(self, step: int, message: str | TerminalHandback, text: str) -> None:
        """Record that `text` was sent to the model on behalf of a person."""
        self._note(step, "typed" if isinstance(message, TerminalHandback) else "message", text)

    def _note(self, step: int, kind: str, text: str) -> None:
        self.interventions.append(Intervention.model_validate({"step": step, "kind": kind, "text": text}))
