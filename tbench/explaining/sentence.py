"""The first sentence of an explanation: the change, its points, its certainty, and the next step."""

from __future__ import annotations

from collections.abc import Sequence

from tbench.explaining.causes import MODEL
from tbench.explaining.explanation import Difference, DifferencePart, ExplainedSide, LostPoints
from tbench.explaining.points import LEVEL
from tbench.explaining.sameness import Moved
from tbench.text import names_text

_PARTIES = {
    "harness": "the settings",
    "server": "the server",
    "machine": "the machine",
    "task": "the tasks or their images",
    "model": "the model",
    "person": "people",
    "unclear": "cannot be told apart",
}
_PARTS_NAMED = 2


def points(fraction: float, *, signed: bool = False) -> str:
    """Format a fraction as points of a score."""
    shown = f"{100 * fraction:+.1f}" if signed else f"{100 * fraction:.1f}"
    return "0.0" if shown in ("-0.0", "+0.0") else shown


def interval_text(part: DifferencePart | Difference) -> str:
    """Format a 95 % interval in points."""
    return f"{points(part.low, signed=True)} to {points(part.high, signed=True)}"


def party_text(party: str) -> str:
    return _PARTIES[party]


def p_text(p: float) -> str:
    return f"p {p:.2g}" if p >= 1e-6 else "p below 0.000001"


def single_sentence(run: ExplainedSide, lost: Sequence[LostPoints]) -> tuple[str, str]:
    """Return the sentence about a single run, and the command that it ends with."""
    if not lost:
        return f"{run.name} lost no points", ""
    total, most = sum(each.lost for each in lost), lost[0]
    known = next((each for each in lost if each.party != "model"), None)
    shares = f"{points(most.lost)} of {points(total)} lost points"
    words = f'{run.name} scores {points(run.score)} %: {shares} come from "{most.title}"'
    if known is not None and known is not most:
        words += f', {points(known.lost)} from "{known.title}" ({known.example.words})'
    elif known is most:
        words += f" ({most.example.words})"
    if known is None:
        return f"{words}; none is lost to settings, server, machine or tasks. Next: {most.command}", most.command
    gain = f"to gain at most {points(known.lost)}, {known.remedy}"
    return f"{words}. Next, {gain}: {known.command}", known.command


def difference_sentence(
    run: ExplainedSide, against: ExplainedSide, found: Difference, moved: Sequence[Moved]
) -> tuple[str, str]:
    """Return the sentence about a difference, and the command that it ends with."""
    lower = found.difference <= 0
    change = (
        "the same as"
        if not found.difference
        else f"{points(abs(found.difference))} points {'below' if lower else 'above'}"
    )
    head = f"{run.name} is {change} {against.name} ({interval_text(found)} on these tasks)"
    named = [part for part in found.parts if part.named]
    facts = [f"{each.key} {each.words}" for each in moved if each.explains]
    if not named:
        also = f"; moved, but not seen in the points: {names_text(facts, 3)}" if facts else ""
        if found.p <= LEVEL:
            words = f"{head}, beyond chance ({p_text(found.p)}), but no single cause or task is sure{also}"
            return f"{words}. Next: {_first_command(found)}", _first_command(found)
        command = f"tbench power {against.runs[-1]} {run.runs[-1]}"
        return f"{head}; nothing is beyond chance{also}. To see how many seeds would show it: {command}", command
    parts = [_part_words(part) for part in named[:_PARTS_NAMED]]
    rest = found.difference - sum(part.difference for part in named[:_PARTS_NAMED])
    more = f"; {points(rest, signed=True)} are the rest" if abs(rest) >= 0.0005 else ""
    first = named[0]
    return f"{head}: {'; '.join(parts)}{more}. Next, {first.remedy}: {first.command}", first.command


def _first_command(found: Difference) -> str:
    return next((part.command for part in found.parts if part.command), "")


def _part_words(part: DifferencePart) -> str:
    sure = f"{points(part.difference, signed=True)} ({interval_text(part)}, {p_text(part.p)})"
    words = f'{sure} come from "{part.title}"'
    if part.because:
        words += f", because {names_text(part.because, 2)}"
    elif part.party != "unclear":
        words += f", which is {party_text(part.party)}'s"
        words += " unless something moved that is not recorded" if part.cause == MODEL else ""
    if part.confirmed is not None and part.confirmed.forks:
        words += f"; {part.confirmed.words}"
    if part.sure_tasks:
        words += f", surely {points(part.sure_difference, signed=True)} at {names_text(part.sure_tasks, 3)}"
    return f"{words}, or {' and '.join(part.together_with)}" if part.together_with else words
