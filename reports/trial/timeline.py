"""A strip of all steps of a trial, as wide as they were long: where the time went, and a link to each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from reports.charts.svg import linked_picture, number
from reports.look import seconds
from reports.trial.steps import StepCard

_LEAST = 0.004
"""The share of the strip that the shortest step still has, so that one can see it."""


def timeline(cards: Sequence[StepCard], label: str) -> Markup:
    """The steps side by side, the model's time in each left of that of its commands; empty without any time."""
    total = sum(_seconds(card) for card in cards)
    if total <= 0:
        return Markup()
    widths = [max(_seconds(card) / total, min(_LEAST, 1 / len(cards))) for card in cards]
    scale, x = 100 / sum(widths), 0.0
    links = []
    for card, width in zip(cards, widths, strict=True):
        links.append(_step(card, x, width * scale))
        x += width * scale
    # Numbers and our own words: joined as they are, because a run may have hundreds of thousands of these pieces.
    return linked_picture("timeline", label, Markup("".join(links)))


def _seconds(card: StepCard) -> float:
    return card.model_sec + card.command_sec + card.waited_sec


def _step(card: StepCard, x: float, width: float) -> str:
    """A step: model, waiting and commands from left to right, and a line on top where something went wrong."""
    words = f"step {card.number}: model {seconds(card.model_sec)}, commands {seconds(card.command_sec)}"
    problem = _rect("s-fail", x, width) if card.has_problem else ""
    words += ", something went wrong" if card.has_problem else ""
    pieces = "".join(_parts(card, x, width))
    return f'<a href="#{card.anchor}"><title>{words}</title>{pieces}{problem}{_rect("frame", x, width)}</a>'


def _parts(card: StepCard, x: float, width: float) -> Iterator[str]:
    own = _seconds(card)
    for name, sec in (("model", card.model_sec), ("waiting", card.waited_sec), ("command", card.command_sec)):
        if sec > 0:
            yield _rect(name, x, width * sec / own)
            x += width * sec / own


def _rect(kind: str, x: float, width: float) -> str:
    return f'<rect class="{kind}" x="{number(x)}%" width="{number(width)}%"/>'
