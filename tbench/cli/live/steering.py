"""`tbench pause`, `continue`, `abort`, `say`, `approve`, `refuse`, `set`: what somebody wants of a run under way."""

from __future__ import annotations

import click

from tbench.cli.live.where import (
    a_trial,
    ask_and_print,
    run_and_trial,
    run_argument,
    run_or_trial_argument,
    trial_argument,
)
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME, Integer


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
    from tbench.control.debugging import StepOn

    run, trial = a_trial(where)
    ask_and_print(run, StepOn(trial=trial))


@click.command(cls=TbenchCommand)
@trial_argument
@click.argument("why", cls=Argument, metavar="WHY", type=A_NAME, help="What the model is told instead.")
def refuse(where: str, why: str) -> None:
    """Have nothing be done of the reply that waits; the trial no longer counts."""
    from tbench.control.debugging import Drop

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
