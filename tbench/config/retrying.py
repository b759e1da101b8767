"""Which errors of trials are tried again: of those that another attempt may heal, all, only some, or all but some."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from tbench.errors import KINDS, REWOUND
from tbench.results import ErrorInfo


@dataclass(frozen=True)
class RetryChoice:
    """The types of error that `--retry-only` and `--retry-never` name."""

    only: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()

    def wants(self, error: ErrorInfo) -> bool:
        """Whether another attempt follows such an error. What somebody has rewound is no matter of choice."""
        if not error.retryable or error.type == REWOUND:
            return error.retryable
        return error.type not in self.never and (not self.only or error.type in self.only)


ALL_THAT_MAY_HEAL = RetryChoice()


def known_types(words: tuple[str, ...]) -> tuple[str, ...]:
    """Types of error, of which each word has one or several with commas. Raises ValueError."""
    types = dict.fromkeys(filter(None, (each.strip() for word in words for each in word.split(","))))
    for type_ in types:
        if type_ == REWOUND:
            raise ValueError(f"{type_}: is no failure, and goes on by itself; leave it out")
        if type_ not in KINDS:
            near = difflib.get_close_matches(type_, KINDS, n=1)
            raise ValueError(f"{type_}: no such type of error; {_advice(near)}")
    return tuple(types)


def retryable_types(words: tuple[str, ...]) -> tuple[str, ...]:
    """The same, of types that another attempt may heal. Raises ValueError."""
    types = known_types(words)
    for type_ in types:
        if not KINDS[type_].retryable:
            why = "stands, as another attempt would be a second chance at the same"
            raise ValueError(f"{type_}: {why}; 'tbench resume RUN --retry-errors {type_}' gives one")
    return types


def _advice(near: list[str]) -> str:
    known = ", ".join(name for name, kind in KINDS.items() if kind.retryable and name != REWOUND)
    return f"did you mean {near[0]}?" if near else f"these may be tried again: {known}"
