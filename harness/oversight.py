"""Oversight of an agent: rules and people who approve, change, hold or stop what it wants to do.

The time that this takes is charged to nobody. Everything that was done to an agent stands in its trajectory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness.clock import Clock
from harness.errors import FormatError
from harness.model import Model
from harness.protocols.base import Action, Command, Parsed
from harness.trajectory import Intervention, Message, Reply


@dataclass(frozen=True, slots=True)
class Query:
    """A question to a model that has not been asked yet."""

    model: Model
    messages: Sequence[Message]
    """The history, which grows later on: copy what is to be kept."""
    seed: int | None
    max_tokens: int
    tools: Sequence[Mapping[str, Any]] = ()

    async def ask(self) -> Reply:
        """Ask the model. Raises EndpointError, and ContextLimitReached."""
        return await self.model.query(self.messages, seed=self.seed, max_tokens=self.max_tokens, tools=self.tools)


@dataclass(frozen=True, slots=True)
class Draft:
    """A reply of which nothing has been done yet."""

    step: int
    reply: Reply
    parsed: Parsed | FormatError
    """What would be done, or what is wrong with its form."""
    sample: Callable[[int | None, float | None], Awaitable[Reply]]
    """Ask the model for another reply to the same conversation, with this seed and temperature.

    None is what the agent has. Raises EndpointError, and ContextLimitReached.
    """
    read: Callable[[Reply], Parsed | FormatError]
    """What would be done of another reply, or what is wrong with its form."""
    needs_word: bool = False
    """Whether it is followed only if somebody says so (Approved), as no rule allows it."""


@dataclass(frozen=True, slots=True)
class Declined:
    """The decision that nothing of a reply is done."""

    why: str
    """What the model gets instead of an observation."""


@dataclass(frozen=True, slots=True)
class Approved:
    """The decision that a reply is followed, where none is without somebody's word."""

    reply: Reply
    by: str
    """Who has said yes: a person, or a rule."""


Decided = Reply | Declined | Approved
"""What becomes of a reply: it is followed, or another one, or nothing is done."""


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The terminal comes back from a person who has typed into it."""

    text: str
    """What was typed, and what is to be seen now."""


class Oversight(Protocol):
    """Who watches one agent."""

    async def before_query(self, step: int) -> Sequence[str | HandedBack]:
        """Return when the model may be asked for this step; what is returned is told to it beside its observation.

        Raises what the terminal does where a person has typed into it.
        """

    async def reply(self, query: Query) -> Reply:
        """The reply to a query: what the model answers, or what it has answered to the same one before.

        Raises what the model does.
        """

    async def review(self, draft: Draft) -> Decided:
        """The reply to follow, which may be another one or an edited one; or that nothing is done."""


# Which actions may be done at all: those that a rule allows, and those that a person has said yes to.

_ALLOWLIST = "allowlist="
_MOST_SHOWN = 20
"""Rules of which the model is told."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""What no rule can allow: keys that would change a line that was read already."""


class BadApproval(ValueError):
    """Raised for a setting, or a file of rules, that cannot be used; the message says where and what to do."""


@dataclass(frozen=True)
class Rule:
    """A regular expression; what it matches as a whole may be done."""

    text: str
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class Approval:
    """Who has to say yes before anything of a reply is done."""

    asks: bool
    """Whether a person is asked about what no rule allows; else it is refused."""
    rules: tuple[Rule, ...] = ()

    @classmethod
    def read(cls, setting: str) -> Approval:
        """That of `ask`, `allowlist=FILE` or `ask,allowlist=FILE`. Raises BadApproval."""
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
        """It in a word that is equal for equal rules."""
        if not self.rules:
            return "ask"
        digest = hashlib.sha256("\n".join(rule.text for rule in self.rules).encode()).hexdigest()
        return f"{'ask,' if self.asks else ''}allowlist:{digest[:16]}"

    def words_for_model(self, actions: Iterable[str]) -> str:
        """What the model is told where nothing is done of a reply that has to be approved."""
        refused = "\n".join(f"  {each}" for each in actions)
        if not self.rules:
            return f"Nothing of this was done, as nobody has approved it:\n{refused}"
        allowed = "\n".join(f"  {rule.text}" for rule in self.rules[:_MOST_SHOWN])
        return (
            f"Nothing of this was done, as it is not allowed here:\n{refused}\n"
            f"Allowed is what one of these regular expressions matches as a whole:\n{allowed}"
        )


def read_rules(file: Path) -> tuple[Rule, ...]:
    """The rules in a file: a regular expression per line; `#` begins a comment line. Raises BadApproval."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
        raise BadApproval(f"{file}: {why}; name a file with a regular expression per line") from None
    rules = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                rules.append(Rule(line.strip(), re.compile(line.strip())))
            except re.error as error:
                raise BadApproval(f"{file}:{number}: {line.strip()}: is no regular expression: {error}") from None
    if not rules:
        raise BadApproval(f"{file}: has no rule; write a regular expression per line")
    return tuple(rules)


@dataclass
class Approver:
    """Says of each reply of one agent whether a rule allows it, as far as text that is typed tells what will be done.

    A line counts as a whole, with what an earlier reply has typed of it already.
    """

    approval: Approval
    _unfinished: str = field(default="", init=False)
    """What stands on the terminal's line without an Enter behind it."""

    def refused(self, parsed: Parsed) -> tuple[str, ...]:
        """The commands, lines and keys of a reply that no rule allows; empty where it may be done."""
        return tuple(unit for unit in _units(parsed, self._unfinished) if self._rule(unit) is None)

    def rules_for(self, parsed: Parsed) -> tuple[str, ...]:
        """The rules that allow a reply, each once."""
        found = (self._rule(unit) for unit in _units(parsed, self._unfinished))
        return tuple(dict.fromkeys(rule.text for rule in found if rule is not None))

    def done(self, parsed: Parsed) -> None:
        """Take it that a reply was followed."""
        self._unfinished = _left_unfinished(parsed.actions, self._unfinished)

    def _rule(self, unit: str) -> Rule | None:
        if _CONTROL.search(unit):
            return None
        return next((rule for rule in self.approval.rules if rule.pattern.fullmatch(unit)), None)


def _units(parsed: Parsed, unfinished: str) -> Iterator[str]:
    """What has to be allowed: commands, typed lines, and the names of keys. Nothing where nothing is done."""
    if parsed.complete and len(parsed.actions) == 1 and isinstance(parsed.actions[0], Command):
        return  # the command that only says that the task is done
    before = unfinished
    for action in parsed.actions:
        if isinstance(action, Command):
            yield action.command.strip("\n")
        elif action.key is not None:
            yield action.key
            unfinished = ""
        else:
            *lines, unfinished = _typed(unfinished, action.keystrokes)
            yield from (line or "Enter" for line in lines)
    if unfinished != before and unfinished:
        yield unfinished


def _left_unfinished(actions: Iterable[Action], unfinished: str) -> str:
    for action in actions:
        if not isinstance(action, Command):
            unfinished = "" if action.key is not None else _typed(unfinished, action.keystrokes)[-1]
    return unfinished


def _typed(unfinished: str, keystrokes: str) -> list[str]:
    return re.split(r"\r\n|[\r\n]", unfinished + keystrokes)


# What others than the model have to say about an agent: rules, and whoever watches it. All of it is noted.

Sample = Callable[[int | None, float | None], Awaitable[Reply]]
Read = Callable[[Reply], Parsed | FormatError]


class Watchers:
    """Those who may hold an agent, speak to it, and decide about its replies; the time they take is not charged."""

    def __init__(self, oversight: Oversight | None, approval: Approval | None) -> None:
        self.interventions: list[Intervention] = []
        """What they did, in order."""
        self._oversight = oversight
        self._approver = None if approval is None else Approver(approval)

    async def before_query(self, step: int, clock: Clock) -> Sequence[str | HandedBack]:
        """Return when the model may be asked; what is returned is told to it."""
        if self._oversight is None:
            return ()
        with clock.stopped():
            return await self._oversight.before_query(step)

    async def reply(self, query: Query) -> Reply:
        """The reply to a query. Raises what the model does."""
        return await (query.ask() if self._oversight is None else self._oversight.reply(query))

    async def review(
        self, step: int, reply: Reply, parsed: Parsed | FormatError, sample: Sample, read: Read, clock: Clock
    ) -> Reply | Declined:
        """The reply that is followed, or the refusal of it."""
        refused = self._refused(parsed)
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
            self._approver.done(followed)
        return decided

    def _refused(self, parsed: Parsed | FormatError) -> tuple[str, ...]:
        if self._approver is None or isinstance(parsed, FormatError):
            return ()
        return self._approver.refused(parsed)

    def _by_rule(
        self, step: int, reply: Reply, parsed: Parsed | FormatError, refused: tuple[str, ...]
    ) -> Reply | Declined:
        """What the rules say of a reply about which nobody has said anything."""
        if self._approver is None or isinstance(parsed, FormatError):
            return reply
        if refused:
            return Declined(self._approver.approval.words_for_model(refused))
        if rules := self._approver.rules_for(parsed):
            self._note(step, "approved", f"by rule: {' and '.join(rules)}")
        return reply

    def told(self, step: int, said: str | HandedBack, text: str) -> None:
        """Note that the model was told something, as which `text`."""
        self._note(step, "typed" if isinstance(said, HandedBack) else "message", text)

    def _note(self, step: int, kind: str, text: str) -> None:
        self.interventions.append(Intervention.model_validate({"step": step, "kind": kind, "text": text}))
