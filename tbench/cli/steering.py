"""`tbench ps`, `pause`, `continue`, `abort`, `say`, `approve`, `refuse`, `set`: list and steer running trials."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.common import json_option
from tbench.cli.parsing.commands import Command, TbenchCommand, argument, flag, option
from tbench.cli.parsing.values import NAME_TYPE, Integer
from tbench.cli.printing import print_json, print_line, print_table
from tbench.errors import UsageError

if TYPE_CHECKING:
    from tbench.control.wire import RunUnderWay, TrialUnderWay

# `tbench ps`

_HEADS = ("trial", "phase", ">step", ">age", "last line")


@click.command(cls=TbenchCommand)
@argument("folder", "RUN", "A run directory, or a folder of them.", required=False, default=Path("runs"))
@json_option
def ps(folder: Path, as_json: bool) -> None:
    """List the running trials: phase, step, age and the last line of each terminal."""

    from tbench.control.client import ask
    from tbench.control.telling import runs_under_way
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
        print_json({"runs": found})
        return
    if not states:
        print_line(f"{folder}: no run is in progress")
    for run, kept in _cut_trials(folder, states).items():
        remove = f"tbench clean --kept{_engine_options(run)}"
        print_line(f"{run}: {kept}; continue with tbench resume {run}, or remove with {remove}")
    for run, state in states.items():
        _print_run(run, state)


def _cut_trials(folder: Path, running: Collection[Path]) -> dict[Path, str]:
    """Return a line about the interrupted trials of each run that is not in progress."""
    from tbench.sandbox.underway import trials_under_way
    from tbench.text import counted

    found: dict[Path, str] = {}
    for run in sorted({folder, *folder.glob("*/")} - set(running)):
        if notes := [*trials_under_way(run)]:
            names = ", ".join(f"{note.task}/{note.seed}" for note in notes)
            found[run] = f"{counted(len(notes), 'trial')} cut ({names})"
    return found


def _engine_options(run: Path) -> str:
    """Return the options that lead other commands to a run's engines; empty if its configuration cannot be read."""
    from tbench.storage.read_run import RunUnreadable, read_run_document

    with contextlib.suppress(RunUnreadable):
        return read_run_document(run / "run.json").config.sandbox.engine_options
    return ""


def _print_run(run: Path, state: RunUnderWay) -> None:
    from tbench.text import counted

    paused = "" if state.paused == "no" else f"; paused: {state.paused}"
    print_line(
        f"{run}: {state.ended} of {counted(state.planned, 'trial')} ended, {len(state.trials)} running "
        f"(concurrency {state.concurrency}){paused}"
    )
    print_table(_HEADS, [_cells(trial) for trial in state.trials])


def _cells(trial: TrialUnderWay) -> tuple[str, ...]:
    from tbench.text import plain

    held = " held" if trial.held else " pausing" if trial.paused else ""
    about = " waiting for you" if trial.waits else held
    about += " touched" if trial.touched else ""
    step = str(trial.step) if trial.step else ""
    return (
        f"{trial.task}/{trial.seed}",
        f"{trial.phase}{about}",
        step,
        f"{trial.age_sec:.0f} s",
        plain(trial.line, 60),
    )


# Arguments that name a run or one of its trials.

_RUNS = Path("runs")
_DEFAULT_RUN = "Default: the only run in progress below runs/."


def _target_argument(metavar: str, help: str, *, required: bool = True) -> Callable[[Command], Command]:
    """Return an argument `where` that names a run or a trial."""
    return argument("where", metavar, help, required=required, type=NAME_TYPE)


trial_argument = _target_argument(
    "TRIAL", "The trial, as RUN/TASK/SEED; or as TASK/SEED or TASK if only one run below runs/ is in progress."
)
run_or_trial_argument = _target_argument(
    "WHERE", f"A run directory, or a trial as RUN/TASK/SEED. {_DEFAULT_RUN}", required=False
)
run_argument = _target_argument("RUN", f"A run directory. {_DEFAULT_RUN}", required=False)


def run_and_trial(where: str | None) -> tuple[Path, str | None]:
    """Return the named run directory and trial; the trial is None for a whole run. Raises UsageError."""
    from tbench.storage.run_files import CONFIG_NAME

    if where is None:
        return sole_running_run(), None
    path = Path(where)
    for above in (path, *path.parents):
        if (above / CONFIG_NAME).is_file():
            trial = str(path.relative_to(above))
            return above, None if trial == "." else trial
    if path.is_absolute() or path.is_dir():
        raise UsageError(f"{where}: not a run directory; give one, or RUN/TASK/SEED")
    return sole_running_run(), where


def require_trial(where: str, instead: str = "name a trial") -> tuple[Path, str]:
    """Return the run directory and the named trial. Raises UsageError for a whole run."""
    run, trial = run_and_trial(where)
    if trial is None:
        raise UsageError(f"{where}: is a whole run; {instead}: RUN/TASK/SEED")
    return run, trial


def sole_running_run() -> Path:
    """Return the only run in progress in `runs`. Raises UsageError unless there is exactly one."""
    from tbench.control.telling import runs_under_way

    found = runs_under_way(_RUNS)
    if not found:
        raise UsageError(f"{_RUNS}: no run is in progress here; give its directory")
    if len(found) > 1:
        raise UsageError(f"{len(found)} runs are in progress; name one: {', '.join(map(str, found))}")
    return found[0]


def tell_and_print(to: tuple[Path, str | None], order: str, **fields: str | int | bool) -> None:
    """Send an order to a run, or to one of its trials, and print the answer. Raises UsageError."""
    from tbench.control.telling import tell

    run, trial = to
    print_line(tell(run, order, trial=trial, **fields))


# `tbench pause`, `continue`, `abort`, `say`, `approve`, `refuse`, `set`


@click.command(cls=TbenchCommand)
@run_or_trial_argument
@flag("--now", "Also hold the running trials, each at its next model call.")
def pause(where: str | None, now: bool) -> None:
    """Pause a run or a trial: start no more trials, or hold one at its next model call; time limits pause, too."""
    tell_and_print(run_and_trial(where), "pause", now=now)


@click.command("continue", cls=TbenchCommand)
@run_or_trial_argument
def continue_(where: str | None) -> None:
    """Continue a paused run or trial."""
    tell_and_print(run_and_trial(where), "continue")


@click.command(cls=TbenchCommand)
@trial_argument
def abort(where: str) -> None:
    """End a trial without a verdict; the other trials continue."""
    tell_and_print(require_trial(where, "end it with Ctrl-C, or name a trial"), "abort")


@click.command(cls=TbenchCommand)
@run_or_trial_argument
def stop(where: str | None) -> None:
    """Stop a run or a trial, and keep it for tbench resume."""
    tell_and_print(run_and_trial(where), "stop")


@click.command(cls=TbenchCommand)
@trial_argument
@argument("text", "TEXT", "The message for the model.", type=NAME_TYPE)
def say(where: str, text: str) -> None:
    """Add a message to the model's next observation; the trial is excluded from the score."""
    tell_and_print(require_trial(where), "say", text=text)


@click.command(cls=TbenchCommand)
@trial_argument
def approve(where: str) -> None:
    """Approve the reply that a trial is waiting to execute; see tbench run --approve."""
    tell_and_print(require_trial(where), "step")


@click.command(cls=TbenchCommand)
@trial_argument
@argument("why", "WHY", "The reason, which is sent to the model.", type=NAME_TYPE)
def refuse(where: str, why: str) -> None:
    """Discard the reply that a trial is waiting to execute; the trial is excluded from the score."""
    tell_and_print(require_trial(where), "drop", why=why)


@click.command("set", cls=TbenchCommand)
@run_argument
@option("--concurrency", "New maximum number of concurrent trials.", Integer(min=1), required=True)
def set_(where: str | None, concurrency: int) -> None:
    """Change the number of concurrent trials of a run."""
    from tbench.control.telling import tell

    print_line(tell(run_and_trial(where)[0], "concurrency", number=concurrency))
