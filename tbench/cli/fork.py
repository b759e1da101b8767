"""`tbench debug`, `fork` and `blame`: run one trial step by step, or replay it and continue from a step."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbench.cli.common import json_option, with_endpoint
from tbench.cli.parsing.commands import argument, flag, option
from tbench.cli.parsing.configured import ConfiguredCommand, GivenSettings
from tbench.cli.parsing.values import NAME_TYPE, Integer
from tbench.cli.printing import print_json, print_lines, print_progress, table_lines
from tbench.config.setting import iter_settings
from tbench.config.settings import RunConfig

if TYPE_CHECKING:
    from tbench.api.debugging import DebugSession
    from tbench.api.forking import BlamedTrial, Fork
    from tbench.storage.stored_trial import StoredTrial

# `tbench fork`

FORK_SETTINGS = {
    *(setting.path for setting in iter_settings(RunConfig) if setting.section in ("model", "limits", "verify")),
    *("agent.prompt", "agent.approve", "sandbox.container_proxy"),
    *("schedule.concurrency", "schedule.cpu_overcommit", "output.directory"),
}
"""Settings in which a fork may differ from its run."""
_HEADS = (">seed", "reward", "outcome", ">steps", "differs")


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=FORK_SETTINGS)
@argument("trial", "TRIAL", "The trial, as RUN/TASK/SEED or RUN/TASK/SEED/TASK_STEP.", type=NAME_TYPE)
@option(
    "--at-step",
    "The first step for which the model is asked again; earlier ones are replayed.",
    Integer(min=1),
    required=True,
)
@option("--k", "Number of forks that continue from this step.", Integer(min=1), name="samples", default=1)
@flag("--shell", "Continue yourself, at the trial's terminal; needs no endpoint.", name="by_hand")
@flag("--debug", "Debug the fork: decide on each new reply of the model.", name="debugs")
@json_option
def fork(
    trial: str, given: GivenSettings[RunConfig], at_step: int, samples: int, by_hand: bool, debugs: bool, as_json: bool
) -> None:
    """Replay a trial up to a step and continue from there: each fork has a fresh container and is never scored."""

    from tbench.api.forking import fork as fork_trial
    from tbench.cli.interruption import run_interruptibly

    config, directory = _config_and_directory(trial, given)
    if by_hand or debugs:
        _reject_combinations(by_hand, debugs, samples, as_json)
        return _fork_interactively(trial, at_step, config, directory, debugs=debugs)
    done = run_interruptibly(
        fork_trial(trial, at_step, samples=samples, config=config, directory=directory, say=print_progress),
        stopping="stopping: containers are being removed",
    )
    if as_json:
        print_json(fork_json(done))
        return None
    print_lines(fork_lines(done))
    return None


def _config_and_directory(trial: str, given: GivenSettings[RunConfig]) -> tuple[RunConfig, str | None]:
    """Return the configuration of a trial's forks, and their directory if one is given."""
    from tbench.storage.stored_trial import find_trial

    config = given.resolve(find_trial(trial).document.config).config
    wanted = {value.setting.path for value in given.values}
    return config, config.output.directory if "output.directory" in wanted else None


def debug_command(trial: StoredTrial, step: int) -> str:
    """Return the command that debugs a fork of a trial from a step on; empty if it cannot be forked."""
    if not step or (trial.result is not None and trial.result.task_steps and not trial.task_step):
        return ""
    return shlex.join(("tbench", "fork", trial.name, "--at-step", str(step), "--debug"))


def _reject_combinations(by_hand: bool, debugs: bool, samples: int, as_json: bool) -> None:
    from tbench.errors import UsageError

    flag = "--shell" if by_hand else "--debug"
    others = {"--debug": by_hand and debugs, "--k": samples > 1, "--json": as_json}
    if wrong := [name for name, is_given in others.items() if is_given]:
        raise UsageError(f"{flag}: cannot be combined with {' or '.join(wrong)}")


def _fork_interactively(trial: str, at_step: int, config: RunConfig, directory: str | None, *, debugs: bool) -> None:
    from tbench.api.forking import debug_fork
    from tbench.cli.debug.session import DebugMode, debug_new_trial
    from tbench.cli.interactive import fork_at_terminal
    from tbench.cli.interruption import run_interruptibly

    def begin(say: Callable[[str], None]) -> AbstractAsyncContextManager[DebugSession]:
        return debug_fork(trial, at_step, asks_model=debugs, config=config, directory=directory, say=say)

    if debugs:
        run_interruptibly(debug_new_trial(begin, DebugMode.chosen(None, plain=False)))
    else:
        run_interruptibly(fork_at_terminal(begin, at_step))


def fork_lines(fork: Fork) -> list[str]:
    """Describe the result of a fork: a table of its trials, and a summary."""
    from tbench.runs.live.commands import outcome_text

    rows = [
        (
            str(each.result.seed),
            outcome_text(each.result).removeprefix("reward "),
            str(each.result.outcome or ""),
            str(each.result.steps),
            each.differs or "nowhere",
        )
        for each in fork.trials
    ]
    result = f"{fork.passed} of {len(fork.judged)} forks at step {fork.at_step} of {fork.of} succeeded"
    return [*table_lines(_HEADS, rows), f"{result}; files: {fork.directory}"]


def fork_json(fork: Fork) -> dict[str, object]:
    """Return a fork as JSON."""
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


# `tbench blame`

_BAR = 30


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=FORK_SETTINGS)
@argument("trial", "TRIAL", "A failed trial, as RUN/TASK/SEED or RUN/TASK/SEED/TASK_STEP.", type=NAME_TYPE)
@option("--k", "Number of forks that continue from each tried step.", Integer(min=1), name="samples", default=5)
@json_option
def blame(trial: str, given: GivenSettings[RunConfig], samples: int, as_json: bool) -> None:
    """Find the step after which a trial was likely to fail: fork it at several steps."""

    from tbench.api.forking import blame as blame_trial
    from tbench.cli.interruption import run_interruptibly

    config, directory = _config_and_directory(trial, given)
    found = run_interruptibly(
        blame_trial(trial, samples=samples, config=config, directory=directory, say=print_progress),
        stopping="stopping: containers are being removed",
    )
    if as_json:
        shown = {"of": found.of, "step": found.step, "forks": [fork_json(each) for each in found.forks]}
        print_json(shown)
        return
    print_lines(blame_lines(found))


def blame_lines(found: BlamedTrial) -> list[str]:
    """Describe the blamed step, after a bar of successes for each tried step."""
    lines = [_bar(fork) for fork in found.forks]
    if found.step is None:
        return [*lines, f"{found.of}: no fork succeeds, even from the trial's start, so no step is to blame"]
    lines.append(f"{found.of}: failed at step {found.step}; forks that do this step again can still succeed")
    lines.append(f"see it with: tbench show {found.of} --step {found.step}")
    lines.append(f"debug it with: tbench fork {found.of} --at-step {found.step} --debug")
    return lines


def _bar(fork: Fork) -> str:
    from tbench.scores.comparing.noise import wilson_95

    low, high = wilson_95(fork.passed, len(fork.judged))
    share = fork.passed / len(fork.judged)
    bar = "█" * round(_BAR * share)
    return f"step {fork.at_step:>4}  {bar:<{_BAR}}  {fork.passed} of {len(fork.judged)} ({low:.0%} to {high:.0%})"


# `tbench debug`

_DEBUG_SETTINGS = {
    *(
        setting.path
        for setting in iter_settings(RunConfig)
        if setting.section in ("model", "agent", "limits", "sandbox", "overrides", "verify")
    ),
    *("tasks.first_seed", "tasks.registry", "tasks.refresh", "tasks.offline", "output.directory"),
} - {"sandbox.prefetch", "sandbox.drop_images"}
"""Settings that affect a run of one trial."""


class DebugCommand(ConfiguredCommand[RunConfig]):
    """A command that runs one trial, and shows defaults in its help."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.shows_defaults = True


@click.command(cls=DebugCommand, configuration=RunConfig, only=_DEBUG_SETTINGS)
@argument(
    "what",
    "TASK",
    "A task (its directory, or its name in the dataset), or a running trial: RUN/TASK/SEED.",
    type=NAME_TYPE,
)
@option("--dataset -d NAME", "The dataset of a task given by name.", default="bundled")
@option("--do COMMANDS", "Run these debugger commands, separated by ;, and print their results.", name="commands")
@flag("--plain", "Read commands from stdin, one per line; the default without a terminal.")
def debug(what: str, given: GivenSettings[RunConfig], dataset: str, commands: str | None, plain: bool) -> None:
    """Run one trial step by step on one screen: inspect it, decide on each reply, type, verify, rewind."""
    from tbench.cli.debug.session import DebugMode, debug_task, debug_trial

    mode = DebugMode.chosen(commands, plain=plain)
    if names_trial(what):
        debug_trial(what, given, mode)
    else:
        debug_task(what, dataset, with_endpoint(given).resolve().config, mode)


def names_trial(what: str) -> bool:
    """Whether a text names a trial, not a task: it ends with a seed, and is not a task directory."""
    return re.search(r".+/(?:seed-)?\d+/?\Z", what) is not None and not (Path(what) / "task.toml").is_file()
