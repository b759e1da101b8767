"""`tbench ps`: the trials under way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.common import json_option
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH
from tbench.cli.printing import aligned, print_line, print_text

if TYPE_CHECKING:
    from tbench.control.wire import RunUnderWay, TrialUnderWay


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
    from tbench.errors import UsageError

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
