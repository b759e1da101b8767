"""`tbench ps`, `pause`, `continue`, `abort`, `say`, `approve`, `refuse`, `set`: a run under way, listed and steered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.common import Command, json_option
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME, A_PATH, Integer
from tbench.cli.printing import aligned, print_line, print_text
from tbench.errors import UsageError

if TYPE_CHECKING:
    from tbench.control.wire import Request, RunUnderWay, TrialUnderWay

# `tbench ps`: the trials under way.

_HEADS = ("trial", "phase", ">step", ">age", "last line")


@click.command(cls=TbenchCommand)
@click.argument(
    "folder",
    cls=Argument,
    metavar="[RUN]",
    required=False,
    type=A_PATH,
    default=Path("runs"),
    help="A run directory, or a folder of them; default: runs.",
)
@json_option
def ps(folder: Path, as_json: bool) -> None:
    """List the trials that are under way: phase, step, age, the last line of each terminal."""
    import json

    from tbench.control.client import ask, runs_under_way
    from tbench.control.wire import ListTrials

    states: dict[Path, RunUnderWay] = {}
    for run in runs_under_way(folder):
        try:
            state = ask(run, ListTrials()).state
        except UsageError as problem:
            print_line(f"note: {problem}", err=True)
            continue
        if state is not None:
            states[run] = state
    if as_json:
        found = [{"directory": str(run), **state.model_dump(mode="json")} for run, state in states.items()]
        print_text(json.dumps({"runs": found}, indent=2, ensure_ascii=False))
        return
    if not states:
        print_line(f"{folder}: no run is under way")
    for run, state in states.items():
        _print_run(run, state)


def _print_run(run: Path, state: RunUnderWay) -> None:
    from tbench.text import counted

    paused = "" if state.paused == "no" else f"; paused: {state.paused}"
    print_line(
        f"{run}: {state.ended} of {counted(state.planned, 'trial')} ended, {len(state.trials)} under way "
        f"(concurrency {state.concurrency}){paused}"
    )
    for line in aligned(_HEADS, [_cells(trial) for trial in state.trials]) if state.trials else ():
        print_line(line)


def _cells(trial: TrialUnderWay) -> tuple[str, ...]:
    from tbench.text import plain

    held = " held" if trial.held else " to be held" if trial.paused else ""
    about = " waits for you" if trial.waits else held
    about += " touched" if trial.touched else ""
    step = str(trial.step) if trial.step else ""
    return (
        f"{trial.task}/{trial.seed}",
        f"{trial.phase}{about}",
        step,
        f"{trial.age_sec:.0f} s",
        plain(trial.line, 60),
    )


# Which run, and which of its trials, a command speaks to.

_RUNS = Path("runs")
_THE_ONE = "Without it, the one run that is under way in runs."


def _where(metavar: str, help: str) -> Callable[[Command], Command]:
    """The run or trial that is meant, as `where`; in brackets it may be left out."""
    required = not metavar.startswith("[")
    return click.argument("where", cls=Argument, metavar=metavar, required=required, type=A_NAME, help=help)


trial_argument = _where("TRIAL", "RUN/TASK/SEED; TASK/SEED, or the task alone, where one run is under way in runs.")
run_or_trial_argument = _where("[WHERE]", f"A run directory, or a trial of it: RUN/TASK/SEED. {_THE_ONE}")
run_argument = _where("[RUN]", f"A run directory. {_THE_ONE}")


def run_and_trial(where: str | None) -> tuple[Path, str | None]:
    """The run directory and the trial that are meant. Raises UsageError."""
    from tbench.storage.run_files import CONFIG_NAME

    if where is None:
        return the_run(), None
    path = Path(where)
    for above in (path, *path.parents):
        if (above / CONFIG_NAME).is_file():
            trial = str(path.relative_to(above))
            return above, None if trial == "." else trial
    if path.is_absolute() or path.is_dir():
        raise UsageError(f"{where}: no run directory; give one, or RUN/TASK/SEED")
    return the_run(), where


def a_trial(where: str, instead: str = "name a trial") -> tuple[Path, str]:
    """The run directory and the trial that are meant. Raises UsageError for a whole run."""
    run, trial = run_and_trial(where)
    if trial is None:
        raise UsageError(f"{where}: is a whole run; {instead}: RUN/TASK/SEED")
    return run, trial


def the_run() -> Path:
    """The one run that is under way in runs. Raises UsageError where there is none, or more than one."""
    from tbench.control.client import runs_under_way

    found = runs_under_way(_RUNS)
    if not found:
        raise UsageError(f"{_RUNS}: no run is under way here; name its directory")
    if len(found) > 1:
        raise UsageError(f"{len(found)} runs are under way; name one: {', '.join(map(str, found))}")
    return found[0]


def ask_and_print(run: Path, request: Request) -> None:
    """Send a request, and print what came of it. Raises UsageError."""
    from tbench.control.client import ask

    print_line(ask(run, request).words)


# `tbench pause`, `continue`, `abort`, `say`, `approve`, `refuse`, `set`: what somebody wants of a run under way.


@click.command(cls=TbenchCommand)
@run_or_trial_argument
@click.option("--now", is_flag=True, help="Hold the trials under way, too, each at its next model call.")
def pause(where: str | None, now: bool) -> None:
    """Start no other trial, or hold a trial at its next model call; nobody is charged for the time."""
    from tbench.control.wire import Pause

    run, trial = run_and_trial(where)
    ask_and_print(run, Pause(trial=trial, now=now))


@click.command("continue", cls=TbenchCommand)
@run_or_trial_argument
def continue_(where: str | None) -> None:
    """Let a paused run, or a paused trial, go on."""
    from tbench.control.wire import Continue

    run, trial = run_and_trial(where)
    ask_and_print(run, Continue(trial=trial))


@click.command(cls=TbenchCommand)
@trial_argument
def abort(where: str) -> None:
    """End a trial without a verdict; the others go on."""
    from tbench.control.wire import Abort

    run, trial = a_trial(where, "end it with Ctrl-C, or name a trial")
    ask_and_print(run, Abort(trial=trial))


@click.command(cls=TbenchCommand)
@trial_argument
@click.argument("text", cls=Argument, metavar="TEXT", type=A_NAME, help="What the model is told.")
def say(where: str, text: str) -> None:
    """Tell a trial's model something with the next message that it gets; the trial no longer counts."""
    from tbench.control.wire import Say

    run, trial = a_trial(where)
    ask_and_print(run, Say(trial=trial, text=text))


@click.command(cls=TbenchCommand)
@trial_argument
def approve(where: str) -> None:
    """Have the reply that waits for a yes be followed; a run with --approve ask asks about each."""
    from tbench.control.wire import StepOn

    run, trial = a_trial(where)
    ask_and_print(run, StepOn(trial=trial))


@click.command(cls=TbenchCommand)
@trial_argument
@click.argument("why", cls=Argument, metavar="WHY", type=A_NAME, help="What the model is told instead.")
def refuse(where: str, why: str) -> None:
    """Have nothing be done of the reply that waits; the trial no longer counts."""
    from tbench.control.wire import Drop

    run, trial = a_trial(where)
    ask_and_print(run, Drop(trial=trial, why=why))


@click.command("set", cls=TbenchCommand)
@run_argument
@click.option("--concurrency", type=Integer(min=1), required=True, help="Trials under way at once from now on.")
def set_(where: str | None, concurrency: int) -> None:
    """Change how many trials of a run are under way at once."""
    from tbench.control.wire import SetConcurrency

    run, _ = run_and_trial(where)
    ask_and_print(run, SetConcurrency(number=concurrency))
