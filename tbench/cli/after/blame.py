"""`tbench blame`: the step at which a trial was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tbench.cli.after.fork import MAY_DIFFER, fork_shown, say_beside
from tbench.cli.common import json_option
from tbench.cli.parsing.commands import Argument
from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.cli.parsing.values import A_NAME, Integer
from tbench.cli.printing import print_line, print_text
from tbench.config.settings import RunConfig

if TYPE_CHECKING:
    from tbench.api.blaming import BlamedTrial
    from tbench.api.forking import Fork

_BAR = 30


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=MAY_DIFFER)
@click.argument("trial", cls=Argument, metavar="TRIAL", type=A_NAME, help="RUN/TASK/SEED of a trial that failed.")
@click.option("--k", "samples", type=Integer(min=1), default=5, help="How many samples go on from each step tried.")
@json_option
def blame(trial: str, given: Given[RunConfig], samples: int, as_json: bool) -> None:
    """Name the step after which a failed trial could hardly succeed any more, by forks at several steps."""
    import json

    from tbench.api.blaming import blame as blame_trial
    from tbench.cli.interruption import run_interruptibly
    from tbench.storage.stored_trial import find_trial

    config = given.resolve(find_trial(trial).document.config).config
    wanted = {value.setting.path for value in given.values}
    directory = config.output.directory if "output.directory" in wanted else None
    found = run_interruptibly(
        blame_trial(trial, samples=samples, config=config, directory=directory, say=say_beside),
        stopping="stopping: containers are being removed",
    )
    if as_json:
        shown = {"of": found.of, "step": found.step, "forks": [fork_shown(each) for each in found.forks]}
        print_text(json.dumps(shown, indent=2))
        return
    for line in blame_lines(found):
        print_line(line)


def blame_lines(found: BlamedTrial) -> list[str]:
    """What was found, as lines: a bar for each step that was tried."""
    lines = [_bar(fork) for fork in found.forks]
    if found.step is None:
        return [*lines, f"{found.of}: none succeeds from its beginning either, so no step of it is to blame"]
    lines.append(f"{found.of}: was lost at step {found.step}; where that is asked for anew, a model may still succeed")
    lines.append(f"look at it: tbench show {found.of} --step {found.step}")
    return lines


def _bar(fork: Fork) -> str:
    from tbench.scores.comparing.flaky import wilson_95

    low, high = wilson_95(fork.passed, len(fork.judged))
    share = fork.passed / len(fork.judged)
    bar = "█" * round(_BAR * share)
    return f"step {fork.at_step:>4}  {bar:<{_BAR}}  {fork.passed} of {len(fork.judged)} ({low:.0%} to {high:.0%})"
