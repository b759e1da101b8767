"""`tbench show`: the steps of a trial, to be read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME, Integer

if TYPE_CHECKING:
    from tbench.storage.stored_trial import StoredTrial


@click.command(cls=TbenchCommand)
@click.argument("trial", cls=Argument, metavar="TRIAL", type=A_NAME, help="RUN/TASK/SEED.")
@click.option("--step", type=Integer(min=1), help="All of this step, with the screen as it was behind it.")
@click.option("--grep", metavar="RE", help="Only steps in which this regular expression matches something.")
def show(trial: str, step: int | None, grep: str | None) -> None:
    """Show the steps of a trial: what its model thought, typed and saw."""
    from tbench.cli.printing import coloured_line, print_coloured
    from tbench.errors import UsageError
    from tbench.storage.stored_trial import find_trial

    try:
        pattern = re.compile(grep) if grep is not None else None
    except re.error as error:
        raise UsageError(f"--grep {grep}: is no regular expression: {error}") from None
    found = find_trial(trial)
    if step is not None and step > len(found.steps):
        raise UsageError(f"--step {step}: {found.name} has {len(found.steps)} steps")
    if pattern is not None and not any(True for _ in _matching(found, pattern)):
        raise UsageError(f"--grep {grep}: matches nothing in {found.name}")
    lines = _lines(found, step, pattern)
    if sys.stdout.isatty():
        click.echo_via_pager((f"{coloured_line(line)}\n" for line in lines), color=True)
    else:
        print_coloured(lines)


def _matching(trial: StoredTrial, pattern: re.Pattern[str]) -> Iterator[int]:
    from tbench.cli.after.steps import matches

    return (each.index for each in trial.steps if matches(each, pattern))


def _lines(trial: StoredTrial, step: int | None, pattern: re.Pattern[str] | None) -> Iterator[str]:
    from tbench.cli.after.steps import head_lines, step_lines

    chosen = set(_matching(trial, pattern)) if pattern is not None else {each.index for each in trial.steps}
    yield from head_lines(trial)
    for each in trial.steps:
        if each.index in chosen and step in (None, each.index):
            yield ""
            yield from step_lines(each, len(trial.steps), whole=step is not None)
    if step is not None:
        yield from _screen(trial, step)


def _screen(trial: StoredTrial, step: int) -> Iterator[str]:
    from tbench.cli.after.screens import SessionRecording

    try:
        lines = SessionRecording(trial.directory).screen_after(step)
    except OSError:
        lines = None
    yield ""
    if lines is None:
        yield click.style("its recording does not tell what was on the screen behind it", dim=True)
        return
    yield click.style("the screen behind it:", bold=True)
    yield from lines
