"""`tbench fork`: a trial done again up to a step, and otherwise from there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.common import json_option
from tbench.cli.parsing.commands import Argument
from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.cli.parsing.values import A_NAME, Integer
from tbench.cli.printing import aligned, print_line, print_text
from tbench.config.setting import settings_of
from tbench.config.settings import RunConfig

if TYPE_CHECKING:
    from tbench.api.forking import Fork

MAY_DIFFER = {
    *(setting.path for setting in settings_of(RunConfig) if setting.section in ("model", "limits", "verify")),
    *("agent.prompt", "agent.approve", "schedule.concurrency", "schedule.cpu_overcommit", "output.directory"),
}
"""Settings in which a fork may differ from the run that it comes of."""
_HEADS = (">seed", "reward", "outcome", ">steps", "differs")


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=MAY_DIFFER)
@click.argument("trial", cls=Argument, metavar="TRIAL", type=A_NAME, help="RUN/TASK/SEED.")
@click.option("--at-step", type=Integer(min=1), required=True, help="The first step for which a model is asked anew.")
@click.option("--k", "samples", type=Integer(min=1), default=1, help="How many samples go on from there.")
@json_option
def fork(trial: str, given: Given[RunConfig], at_step: int, samples: int, as_json: bool) -> None:
    """Do a trial again up to a step in fresh containers, and let a model go on from there; none of it counts."""
    import json

    from tbench.api.forking import fork as fork_trial
    from tbench.cli.interruption import run_interruptibly
    from tbench.storage.stored_trial import find_trial

    config = given.resolve(find_trial(trial).document.config).config
    wanted = {value.setting.path for value in given.values}
    directory = config.output.directory if "output.directory" in wanted else None
    done = run_interruptibly(
        fork_trial(trial, at_step, samples=samples, config=config, directory=directory, say=say_beside),
        stopping="stopping: containers are being removed",
    )
    if as_json:
        print_text(json.dumps(fork_shown(done), indent=2))
        return
    for line in fork_lines(done):
        print_line(line)


def say_beside(text: str) -> None:
    """Tell the user what happens."""
    print_line(text, err=True)


def fork_lines(fork: Fork) -> list[str]:
    """What became of a fork, as lines."""
    from tbench.runs.control import came_to

    rows = [
        (
            str(each.result.seed),
            came_to(each.result).removeprefix("reward "),
            str(each.result.outcome or ""),
            str(each.result.steps),
            each.differs or "nowhere",
        )
        for each in fork.trials
    ]
    words = f"from step {fork.at_step} of {fork.of} on, {fork.passed} of {len(fork.judged)} succeed"
    return [*aligned(_HEADS, rows), f"{words}; their files: {fork.directory}"]


def fork_shown(fork: Fork) -> dict[str, object]:
    """It as JSON."""
    return {
        "of": fork.of,
        "at_step": fork.at_step,
        "directory": str(fork.directory),
        "passed": fork.passed,
        "judged": len(fork.judged),
        "trials": [
            {"directory": str(Path(each.directory)), "differs": each.differs, **each.result.model_dump(mode="json")}
            for each in fork.trials
        ],
    }
