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

    A fingerprint that comes and goes is of a fleet behind one address, whose members are told apart and all taken.
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

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last reply came from somebody else."""
        return bool(self._other)

    def expect(self, seen: Mapping[str, Iterable[str]]) -> None:
        """Take what the replies of an earlier start said, by field."""
        for name, values in seen.items():
            if taken := {self._canonical(name, value) for value in values}:
                self.known.setdefault(name, set()).update(taken)

    def difference(self, reply: Reply) -> str | None:
        """What a reply says of itself that those before it did not, in words; None for one of the same weights."""
        said = {name: value for name in _SAID if self.is_strict and (value := getattr(reply, name))}
        for name, value in said.items():
            known = self.known.setdefault(name, set())
            canonical = self._canonical(name, value)
            if not known:
                known.add(canonical)
            if canonical not in known:
                self._other[name] = canonical
                return f"its reply says that {_SAID[name]} is {value}; before it was {', '.join(sorted(known))}"
        self._admit_fleet()
        return None

    def _admit_fleet(self) -> None:
        """The first one is back: another fingerprint in between, of the same model and weights, was a fellow's."""
        if set(self._other) == {"fingerprint"}:
            self.known["fingerprint"].add(self._other["fingerprint"])
            other = self._other["fingerprint"]
            self.say(f"replies in turn with system_fingerprint {other} and another: taken for servers of one model")
        self._other.clear()

    def _canonical(self, name: str, value: str) -> str:
        """One name for all names of the model."""
        return next(iter(self.names)) if name == "model" and value in self.names else value
