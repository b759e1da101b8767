"""A sign: paths that an agent changed and that decide how tests run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tbench.text import plain

_NAMED = 3
"""Most paths of one kind that are named; of the others it is said how many there are."""


@dataclass(frozen=True)
class Sign:
    """A path that speaks against a verdict, and why."""

    kind: str
    path: str
    why: str
    """What is wrong with it, to be read behind the path."""


def told(signs: Iterable[Sign]) -> tuple[str, ...]:
    """The signs as `kind: paths why`, one for each kind and reason, whatever their number."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for sign in signs:
        grouped.setdefault((sign.kind, sign.why), []).append(sign.path)
    return tuple(f"{kind}: {listed(paths)} {why}" for (kind, why), paths in grouped.items())


def listed(paths: Sequence[str]) -> str:
    """Some of the paths, and how many more there are."""
    paths = list(dict.fromkeys(paths))
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(plain(path, 120) for path in paths[:_NAMED]) + more
