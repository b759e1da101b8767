"""Notices other weights under the same name: what a server says of itself, and whether it still says so.

Unknown never differs from known: most servers say little.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from harness.model import ServedModel
from harness.trajectory import Reply

_SAID = {"model": "the model", "weights": "the version of its weights", "fingerprint": "its system_fingerprint"}
"""What replies say of who gave them, by the name of the field."""
_FIRST_REPLIES = 50
MOST_IN_A_ROW = 8
"""Replies of other servers in a row that a fleet is not expected to give: of two equal ones, once in 256 times."""


def served_otherwise(before: ServedModel, now: ServedModel) -> str | None:
    """How the listing of a model differs from an earlier one, in words; None where it does not, as far as is known.

    Other names of the same weights (`--served-model-name`) are no difference.
    """
    if before.root and now.root and before.root != now.root:
        return f"{now.id} is now {now.root}, and was {before.root}"
    lengths = before.context_tokens, now.context_tokens
    if all(lengths) and lengths[0] != lengths[1]:
        return f"{now.id} now has a context of {lengths[1]:,} tokens, and had {lengths[0]:,}"
    return None


@dataclass
class Replier:
    """Who gives a server's replies, by what the first ones say. A reply of somebody else is not to be followed.

    A fleet behind one address answers in turn with several fingerprints: one that is seen among the first replies, with
    less than so many in a row before a known one is back, is taken as well. Later ones are of another server.
    """

    say: Callable[[str], None]
    is_strict: bool = True
    """Whether other weights are noticed at all; for training they are expected."""
    names: Collection[str] = ()
    """All names of the model that is asked for, first the one that is asked for."""
    known: dict[str, set[str]] = field(default_factory=dict)
    """The values that are taken, by field."""
    _other: dict[str, str] = field(default_factory=dict)
    """The last value that was not taken, by field."""
    _taken: int = 0
    """Number of replies that were taken."""
    _in_a_row: int = 0
    """Number of replies that were not, since the last one that was."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last reply came from somebody else."""
        return bool(self._other)

    @property
    def may_be_fleet(self) -> bool:
        """Whether the last replies may come from other servers of the same model."""
        is_early = self._taken <= _FIRST_REPLIES and self._in_a_row < MOST_IN_A_ROW
        return is_early and set(self._other) == {"fingerprint"}

    def expect(self, seen: Mapping[str, Iterable[str]]) -> None:
        """Take what the replies of an earlier start said, by field."""
        for name, values in seen.items():
            if taken := {self._canonical(name, value) for value in values}:
                self.known.setdefault(name, set()).update(taken)

    def difference(self, reply: Reply) -> str | None:
        """What a reply says of itself that those before it did not, in words; None for one of the same weights."""
        if not self.is_strict:
            return None
        said = {name: self._canonical(name, value) for name in _SAID if (value := getattr(reply, name))}
        for name, value in said.items():
            known = self.known.get(name)
            if known and name == "model" and value in self.names and value not in known:
                # The name that was asked for is right, whoever answered first.
                self.say(f"its replies name {value} now, and named {', '.join(sorted(known))} before: another model")
                known.clear()
            elif known and value not in known:
                self._other[name] = value
                self._in_a_row += 1
                return f"its reply says that {_SAID[name]} is {value}; before it was {', '.join(sorted(known))}"
        for name, value in said.items():
            self.known.setdefault(name, set()).add(value)
        if self.may_be_fleet:
            other = self._other["fingerprint"]
            self.known["fingerprint"].add(other)
            self.say(f"replies in turn with system_fingerprint {other} and another: taken for servers of one model")
        self._other.clear()
        self._taken, self._in_a_row = self._taken + 1, 0
        return None

    def _canonical(self, name: str, value: str) -> str:
        """One name for all names of the model."""
        return next(iter(self.names)) if name == "model" and value in self.names else value
