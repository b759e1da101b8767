"""Which of several models or agents is imported: one score over several would mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from tbench.errors import UsageError
from tbench.results import UNKNOWN_AGENT
from tbench.text import names_shown, visible_line

Item = TypeVar("Item")
NO_MODEL = "none"
"""How results without a model are called."""


@dataclass(frozen=True, slots=True)
class ImportChoice:
    """What a user chose of results that several models or agents made."""

    model: str | None = None
    agent: str | None = None
    split: Literal["model"] | None = None
    """One run per model."""


def chosen(
    items: Sequence[Item],
    choice: ImportChoice,
    model: Callable[[Item], str | None],
    agent: Callable[[Item], str | None],
    where: str,
) -> dict[str, list[Item]]:
    """The items of each run by its model's name; one run without `split`. Raises UsageError, which names the models."""
    of_agent = _only(items, choice.agent, agent, where, "agent", UNKNOWN_AGENT)
    found = _only(of_agent, choice.model, model, where, "model", NO_MODEL)
    by_model: dict[str, list[Item]] = {}
    for item in found:
        by_model.setdefault(model(item) or NO_MODEL, []).append(item)
    if len(by_model) > 1 and choice.split is None:
        raise UsageError(
            f"{where}: results of {len(by_model)} models: {_shown(by_model)}; "
            "choose one with --model NAME, or make a run of each with --split model"
        )
    for name, of_model in by_model.items():
        agents = sorted({agent(item) or UNKNOWN_AGENT for item in of_model})
        if len(agents) > 1:
            whose = f" of model {visible_line(name)}" if len(by_model) > 1 else ""
            raise UsageError(f"{where}: results{whose} by agents {_shown(agents)}; choose one with --agent NAME")
    return by_model


def _only(
    items: Sequence[Item], wanted: str | None, of: Callable[[Item], str | None], where: str, what: str, without: str
) -> list[Item]:
    if wanted is None:
        return list(items)
    found = [item for item in items if (of(item) or without) == wanted]
    if not found:
        known = _shown(sorted({of(item) or without for item in items}))
        raise UsageError(f"{where}: no result of {what} {wanted!r}; there are: {known}")
    return found


def _shown(names: Iterable[str]) -> str:
    """Names that strangers gave, on one line."""
    return visible_line(names_shown(names))
