"""`tbench diff`: where two trials part."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME

if TYPE_CHECKING:
    from harness.trajectory import Step
    from tbench.storage.stored_trial import StoredTrial

_LEAST_COLUMNS, _MOST_COLUMNS = 60, 200


@click.command(cls=TbenchCommand)
@click.argument("first", cls=Argument, metavar="TRIAL", type=A_NAME, help="RUN/TASK/SEED.")
@click.argument("second", cls=Argument, metavar="OTHER", type=A_NAME, help="Another one, as a rule of the same task.")
def diff(first: str, second: str) -> None:
    """Show the first step at which two trials part, side by side: what was typed, and what was seen."""
    from tbench.cli.printing import print_coloured
    from tbench.storage.stored_trial import find_trial

    columns = max(_LEAST_COLUMNS, min(_MOST_COLUMNS, shutil.get_terminal_size().columns))
    print_coloured(diff_lines(find_trial(first), find_trial(second), columns))


def diff_lines(first: StoredTrial, second: StoredTrial, columns: int) -> Iterator[str]:
    """The two beside each other from the step on at which they part."""
    from tbench.cli.after.steps import outcome_words
    from tbench.divergence import first_differing_lines

    width = (columns - 3) // 2
    yield from _beside([first.name, outcome_words(first)], [second.name, outcome_words(second)], width)
    mine, others = first.steps, second.steps
    for old, new in zip(mine, others, strict=False):
        seen = first_differing_lines(old.observation, new.observation)
        if seen is not None or old.actions != new.actions:
            what = "something else was typed"
            if old.actions == new.actions and seen is not None:
                what = f"the same was typed, and {seen[0]} was seen in one, {seen[1]} in the other"
            yield from ("", click.style(f"they part at step {old.index}: {what}", bold=True))
            yield from _beside(_step(old), _step(new), width)
            return
    if len(mine) != len(others):
        yield from ("", f"the same up to step {min(len(mine), len(others))}, with which one of them ends")
        return
    yield from ("", f"the same in all {len(mine)} steps")


def _step(step: Step) -> list[str]:
    lines = [line for line in (step.reply.reasoning or "").split("\n") if line.strip()]
    lines += [f"> {line}" for action in step.actions for line in action.rstrip("\n").split("\n")]
    if step.format_error:
        lines.append(f"format error: {step.format_error}")
    return [*lines, *(f"| {line}" for line in step.observation.rstrip("\n").split("\n"))]


def _beside(left: list[str], right: list[str], width: int) -> Iterator[str]:
    from tbench.divergence import same_as
    from tbench.text import unseen_as

    for number in range(max(len(left), len(right))):
        mine, other = (lines[number] if number < len(lines) else "" for lines in (left, right))
        mark = " " if same_as(mine) == same_as(other) else click.style("│", fg="red")
        cells = [unseen_as(text.replace("\t", "    "), "·")[:width] for text in (mine, other)]
        yield f"{cells[0]:<{width}} {mark} {cells[1]}".rstrip()
