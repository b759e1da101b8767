"""What the machines of a fleet have to have in common, and what is worth knowing where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tbench.errors import UsageError

_COMPARED = {"cgroup_version": "cgroup", "storage_driver": "storage driver"}
"""What is compared of that which backends say of themselves, with the words for it."""


def require_one_architecture(machines: Iterable[tuple[str, str]]) -> None:
    """Check machines, each by its name with its architecture, of which empty ones are not known. Raises UsageError."""
    (first, its), *others = [each for each in machines if each[1]] or [("", "")]
    for name, another in others:
        if another != its:
            raise UsageError(
                f"{name}: has the architecture {another}, and {first} has {its}; images and verdicts of one run are of "
                "one architecture, so leave out one of both"
            )


def words_about_difference(first: tuple[str, Mapping[str, Any]], other: tuple[str, Mapping[str, Any]]) -> str | None:
    """One line about a machine that is not as the first is: each by its name, with what its backend says of itself."""
    (first_name, one), (name, another) = first, other
    has, had = list[str](), list[str]()
    if (here := _product(another)) != (there := _product(one)):
        has, had = [here], [there]
    for key, words in _COMPARED.items():
        if key in one and key in another and one[key] != another[key]:
            has.append(f"{words} {another[key]}")
            had.append(f"{words} {one[key]}")
    if not has:
        return None
    return f"{name}: has {', '.join(has)}, and {first_name} has {', '.join(had)}; results say where each trial was"


def _product(told: Mapping[str, Any]) -> str:
    return f"{str(told.get('backend', '')).capitalize()} {told.get('version', '')}".strip()
