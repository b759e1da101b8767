"""Debugging sessions: connects a user, on a full screen or in lines, to a new or a running trial."""

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
from tbench.cli.debug.plain import PlainDebugger, lines_of_stdin, split_commands
from tbench.cli.execute import tasks_of_run
from tbench.cli.full_screen import FullScreen, supports_full_screen
from tbench.cli.interruption import run_interruptibly
from tbench.cli.parsing.configured import GivenSettings
from tbench.cli.printing import print_line, print_lines
from tbench.cli.steering import require_trial
from tbench.config.settings import RunConfig
from tbench.control.client import ControlConnection, ControlConnectionClosed
from tbench.control.wire import Stepping
from tbench.errors import UsageError
from tbench.runs.live.commands import outcome_text


@dataclass(frozen=True)
class DebugMode:
    """Choice between the full-screen debugger and commands."""

    commands: str | None
    """Commands given with `--do`; None to read stdin."""
    has_screen: bool

    @classmethod
    def chosen(cls, commands: str | None, *, plain: bool) -> DebugMode:
        """Choose the full screen if there is a terminal and neither option is given. Raises UsageError for both."""
        if commands is not None and plain:
            raise UsageError("--plain: has no effect with --do; leave out one of them")
        return cls(commands, commands is None and not plain and supports_full_screen())

    @property
    def lines(self) -> AsyncIterator[str]:
        """The commands, one by one."""
        return lines_of_stdin() if self.commands is None else split_commands(self.commands)


def debug_trial(where: str, given: GivenSettings[RunConfig], mode: DebugMode) -> None:
    """Debug a running trial, which continues afterwards. Raises UsageError."""
    if given.values:
        origins = ", ".join(sorted({value.origin for value in given.values if value.origin.startswith("-")}))
        if origins:
            raise UsageError(f"{origins}: no effect, because {where} is already running; leave it out")
    run, trial = require_trial(where)
    run_interruptibly(_debug_as_guest(run, trial, mode))


async def _debug_as_guest(run: Path, trial: str, mode: DebugMode) -> None:
    async with ControlConnection(run) as talk:
        await talk.ask(Stepping(trial=trial, on=True))
        left: str | None = None
        try:
            left = await run_debugger(run, trial, mode, is_guest=True)
        finally:
            if left != "stay":
                try:
                    print_line((await talk.ask(Stepping(trial=trial, on=False))).words, err=True)
                except ControlConnectionClosed as end:
                    print_line(str(end), err=True)
        if left is None:
            raise click.exceptions.Exit(exit_codes.INTERRUPTED)


async def run_debugger(run: Path, trial: str, mode: DebugMode, *, is_guest: bool) -> str | None:
    """Let the user debug a trial until they leave; return their last command, None after Ctrl-C."""
    if not mode.has_screen:
        async with ControlConnection(run) as talk:
            return await PlainDebugger(talk, trial).run(mode.lines)
    with FullScreen(bracketed_paste=True) as screen:
        return await Interface(run, trial, screen, is_guest=is_guest).run()


def debug_task(what: str, dataset: str, config: RunConfig, mode: DebugMode) -> None:
    """Run one trial of a task and debug it. Raises UsageError."""
    names = {"source": what} if Path(what).is_dir() else {"source": dataset, "include": (what,)}
    config = config.with_values(tasks=names)
    try:
        chosen = tasks_of_run(config).tasks
    except UsageError as error:
        raise UsageError(str(error).removeprefix("--task ")) from None
    if len(chosen) != 1:
        raise UsageError(f"{what}: matches {len(chosen)} tasks; name one of them")
    task = chosen[0]
    directory = config.output.directory or Path("runs") / f"debug-{task.name}-{datetime.now():%Y%m%d-%H%M%S}"

    def begin(say: Callable[[str], None]) -> AbstractAsyncContextManager[DebugSession]:
        return debug(task, config=config, seed=config.tasks.first_seed, directory=directory, say=say)

    run_interruptibly(debug_new_trial(begin, mode))


async def debug_new_trial(
    begin: Callable[[Callable[[str], None]], AbstractAsyncContextManager[DebugSession]], mode: DebugMode
) -> None:
    """Start a trial with a callback for progress messages, debug it, and print its outcome."""
    messages: list[str] = []
    on_screen = False

    def say(text: str) -> None:
        messages.append(text) if on_screen else print_line(text, err=True)

    async with begin(say) as session:
        on_screen = mode.has_screen
        try:
            left = await run_debugger(session.directory, session.trial, mode, is_guest=False)
        finally:
            on_screen = False
        print_lines(messages, err=True)
        await session.quit(keep=left == "quit keep")
    if session.result is not None:
        print_line(f"{session.trial}: {outcome_text(session.result)}; files: {session.directory}")
        if session.result.reward is not None and not session.result.passed:
            print_line(f"tbench why {session.directory}/{session.trial}")
    if left == "quit keep":
        print_line(f"kept: the container; enter it with: tbench shell {session.directory}/{session.trial}", err=True)
    if left is None:
        raise click.exceptions.Exit(exit_codes.INTERRUPTED)
