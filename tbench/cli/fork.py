"""`tbench debug`, `fork` and `blame`: one trial step by step, or done again from a step on."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from tbench.api.forking import BlamedTrial, Fork

# `tbench fork`: a trial done again up to a step, and otherwise from there.

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
    from tbench.cli.debug.session import Manner, as_host
    from tbench.cli.interactive import hand_over
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
    from tbench.runs.live.commands import came_to

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


# `tbench blame`: the step at which a trial was lost.

_BAR = 30


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=MAY_DIFFER)
@click.argument("trial", cls=Argument, metavar="TRIAL", type=A_NAME, help="RUN/TASK/SEED of a trial that failed.")
@click.option("--k", "samples", type=Integer(min=1), default=5, help="How many samples go on from each step tried.")
@json_option
def blame(trial: str, given: Given[RunConfig], samples: int, as_json: bool) -> None:
    """Name the step after which a failed trial could hardly succeed any more, by forks at several steps."""
    import json

    from tbench.api.forking import blame as blame_trial
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
    from tbench.scores.comparing.noise import wilson_95

    low, high = wilson_95(fork.passed, len(fork.judged))
    share = fork.passed / len(fork.judged)
    bar = "█" * round(_BAR * share)
    return f"step {fork.at_step:>4}  {bar:<{_BAR}}  {fork.passed} of {len(fork.judged)} ({low:.0%} to {high:.0%})"


# `tbench debug`: one trial, step by step.

_OF_ONE_TRIAL = {
    *(
        setting.path
        for setting in settings_of(RunConfig)
        if setting.section in ("model", "agent", "limits", "sandbox", "overrides", "verify")
    ),
    *("tasks.first_seed", "tasks.registry", "tasks.refresh", "tasks.offline", "output.directory"),
} - {"sandbox.prefetch", "sandbox.drop_images"}
"""Settings that mean something where there is one trial."""


class DebugCommand(ConfiguredCommand[RunConfig]):
    """A command that runs one trial of a configuration."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.shows_defaults = True


@click.command(cls=DebugCommand, configuration=RunConfig, only=_OF_ONE_TRIAL)
@click.argument(
    "what",
    cls=Argument,
    metavar="TASK",
    type=A_NAME,
    help="A task: its directory, or its name in the dataset. Or a trial under way: RUN/TASK/SEED.",
)
@click.option("--dataset", "-d", metavar="NAME", default="bundled", help="Where a task is looked up by its name.")
@click.option("--do", "commands", metavar="COMMANDS", help="Do these, with ; between them, and print what happens.")
@click.option("--plain", is_flag=True, help="Read commands from stdin, a line each; so it is without a terminal.")
def debug(what: str, given: Given[RunConfig], dataset: str, commands: str | None, plain: bool) -> None:
    """Run one trial step by step on one screen: look, decide about each reply, type, verify, go back."""
    from tbench.cli.debug.session import Manner, debug_task, debug_trial

    manner = Manner.chosen(commands, plain=plain)
    if is_trial(what):
        debug_trial(what, given, manner)
    else:
        debug_task(what, dataset, given.resolve().config, manner)


def is_trial(what: str) -> bool:
    """Whether a trial is meant, and no task: by the seed at the end, and by what is there."""
    return re.search(r".+/(?:seed-)?\d+/?\Z", what) is not None and not (Path(what) / "task.toml").is_file()
