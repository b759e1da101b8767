"""Which actions may be done at all: those that a rule allows, and those that a person has said yes to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.protocols.base import Action, Command, Parsed

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
