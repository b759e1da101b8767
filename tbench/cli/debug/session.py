"""A user and a trial: on one screen, or in lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

from tbench import exit_codes
from tbench.api.debugging import DebugSession, debug
from tbench.cli.debug.interface import Interface
from tbench.cli.debug.plain import PlainDebugger, commands_in, lines_of_stdin
from tbench.cli.execute import tasks_of_run
from tbench.cli.interruption import run_interruptibly
from tbench.cli.own_terminal import FullScreen, fits_a_screen
from tbench.cli.parsing.configured import Given
from tbench.cli.printing import print_line
from tbench.cli.steering import a_trial
from tbench.config.settings import RunConfig
from tbench.control.client import Talk, TalkOver
from tbench.control.wire import Stepping
from tbench.errors import UsageError
from tbench.runs.live.commands import came_to


@dataclass(frozen=True)
class Manner:
    """How a user speaks to a trial."""

    commands: str | None
    """Commands that were given beforehand."""
    has_screen: bool

    @classmethod
    def chosen(cls, commands: str | None, *, plain: bool) -> Manner:
        """A screen where there is a terminal for it and nobody wants lines. Raises UsageError."""
        if commands is not None and plain:
            raise UsageError("--plain: without effect, as --do has the commands; leave out one or the other")
        return cls(commands, commands is None and not plain and fits_a_screen())

    @property
    def words(self) -> AsyncIterator[str]:
        """The commands in lines."""
        return lines_of_stdin() if self.commands is None else commands_in(self.commands)


def debug_trial(where: str, given: Given[RunConfig], manner: Manner) -> None:
    """Debug a trial under way, which goes on afterwards. Raises UsageError."""
    if given.values:
        origins = ", ".join(sorted({value.origin for value in given.values if value.origin.startswith("-")}))
        if origins:
            raise UsageError(f"{origins}: without effect, as {where} is under way already; leave it out")
    run, trial = a_trial(where)
    run_interruptibly(_as_guest(run, trial, manner))


async def _as_guest(run: Path, trial: str, manner: Manner) -> None:
    async with Talk(run) as talk:
        await talk.ask(Stepping(trial=trial, on=True))
        left: str | None = None
        try:
            left = await speak(run, trial, manner, is_guest=True)
        finally:
            if left != "stay":
                try:
                    print_line((await talk.ask(Stepping(trial=trial, on=False))).words, err=True)
                except TalkOver as end:
                    print_line(str(end), err=True)
        if left is None:
            raise click.exceptions.Exit(exit_codes.INTERRUPTED)


async def speak(run: Path, trial: str, manner: Manner, *, is_guest: bool) -> str | None:
    """Let the user speak to a trial until they leave it: the command with which they did, None after Ctrl-C."""
    if not manner.has_screen:
        async with Talk(run) as talk:
            return await PlainDebugger(talk, trial).run(manner.words)
    with FullScreen(tells_pastes=True) as screen:
        return await Interface(run, trial, screen, is_guest=is_guest).run()


def debug_task(what: str, dataset: str, config: RunConfig, manner: Manner) -> None:
    """Run one trial of a task and debug it. Raises UsageError."""
    names = {"source": what} if Path(what).is_dir() else {"source": dataset, "include": (what,)}
    config = config.with_values(tasks=names)
    chosen = tasks_of_run(config).tasks
    if len(chosen) != 1:
        raise UsageError(f"{what}: these are {len(chosen)} tasks; name one of them")
    task = chosen[0]
    directory = config.output.directory or Path("runs") / f"debug-{task.name}-{datetime.now():%Y%m%d-%H%M%S}"

    def begin(say: Callable[[str], None]) -> AbstractAsyncContextManager[DebugSession]:
        return debug(task, config=config, seed=config.tasks.first_seed, directory=directory, say=say)

    run_interruptibly(as_host(begin, manner))


async def as_host(
    begin: Callable[[Callable[[str], None]], AbstractAsyncContextManager[DebugSession]], manner: Manner
) -> None:
    """Begin a trial, which is given what tells the user of builds and retries, and debug it."""
    said: list[str] = []
    is_shown = False

    def say(text: str) -> None:
        said.append(text) if is_shown else print_line(text, err=True)

    async with begin(say) as session:
        is_shown = manner.has_screen
        try:
            left = await speak(session.directory, session.trial, manner, is_guest=False)
        finally:
            is_shown = False
        for text in said:
            print_line(text, err=True)
        await session.quit(keep=left == "quit keep")
    if session.result is not None:
        print_line(f"{session.trial}: {came_to(session.result)}; its files: {session.directory}")
    if left == "quit keep":
        print_line(f"kept: its container; enter it with: tbench shell {session.directory}/{session.trial}", err=True)
    if left is None:
        raise click.exceptions.Exit(exit_codes.INTERRUPTED)
