"""`tbench fork`: a trial done again up to a step, and otherwise from there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
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
    from tbench.api.debugging import DebugSession
    from tbench.api.forking import Fork

MAY_DIFFER = {
    *(setting.path for setting in settings_of(RunConfig) if setting.section in ("model", "limits", "verify")),
    *("agent.prompt", "agent.approve", "sandbox.container_proxy"),
    *("schedule.concurrency", "schedule.cpu_overcommit", "output.directory"),
}
"""Settings in which a fork may differ from the run that it comes of."""
_HEADS = (">seed", "reward", "outcome", ">steps", "differs")


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=MAY_DIFFER)
@click.argument("trial", cls=Argument, metavar="TRIAL", type=A_NAME, help="RUN/TASK/SEED.")
@click.option("--at-step", type=Integer(min=1), required=True, help="The first step for which a model is asked anew.")
@click.option("--k", "samples", type=Integer(min=1), default=1, help="How many samples go on from there.")
@click.option("--shell", "by_hand", is_flag=True, help="Go on yourself, at the trial's terminal; needs no endpoint.")
@click.option("--debug", "debugs", is_flag=True, help="Decide about each reply of the model from there on.")
@json_option
def fork(
    trial: str, given: Given[RunConfig], at_step: int, samples: int, by_hand: bool, debugs: bool, as_json: bool
) -> None:
    """Do a trial again up to a step in fresh containers, and let a model go on from there; none of it counts."""
    import json

    from tbench.api.forking import fork as fork_trial
    from tbench.cli.interruption import run_interruptibly
    from tbench.storage.stored_trial import find_trial

    config = given.resolve(find_trial(trial).document.config).config
    wanted = {value.setting.path for value in given.values}
    directory = config.output.directory if "output.directory" in wanted else None
    if by_hand or debugs:
        _require_alone(by_hand, debugs, samples, as_json)
        return _in_hand(trial, at_step, config, directory, debugs=debugs)
    done = run_interruptibly(
        fork_trial(trial, at_step, samples=samples, config=config, directory=directory, say=say_beside),
        stopping="stopping: containers are being removed",
    )
    if as_json:
        print_text(json.dumps(fork_shown(done), indent=2))
        return None
    for line in fork_lines(done):
        print_line(line)
    return None


def _require_alone(by_hand: bool, debugs: bool, samples: int, as_json: bool) -> None:
    from tbench.errors import UsageError

    flag = "--shell" if by_hand else "--debug"
    others = {"--debug": by_hand and debugs, "--k": samples > 1, "--json": as_json}
    if wrong := [name for name, is_given in others.items() if is_given]:
        raise UsageError(f"{flag}: cannot be together with {' or '.join(wrong)}")


def _in_hand(trial: str, at_step: int, config: RunConfig, directory: str | None, *, debugs: bool) -> None:
    from tbench.api.forking import debugged_fork
    from tbench.cli.after.by_hand import hand_over
    from tbench.cli.debug.session import Manner, as_host
    from tbench.cli.interruption import run_interruptibly

    def begin(say: Callable[[str], None]) -> AbstractAsyncContextManager[DebugSession]:
        return debugged_fork(trial, at_step, asks_model=debugs, config=config, directory=directory, say=say)

    if debugs:
        run_interruptibly(as_host(begin, Manner.chosen(None, plain=False)))
    else:
        run_interruptibly(hand_over(begin, at_step))


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
