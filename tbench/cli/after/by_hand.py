"""A trial done again up to a step, and then in a person's hands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from tbench.api.debugging import DebugSession
from tbench.cli.interactive import wants_back
from tbench.cli.live.attach import look_on
from tbench.cli.live.own_terminal import require_terminal
from tbench.cli.printing import print_line
from tbench.errors import UsageError
from tbench.runs.control import came_to


async def hand_over(
    begin: Callable[[Callable[[str], None]], AbstractAsyncContextManager[DebugSession]], at_step: int
) -> None:
    """Give the user the trial's terminal, and judge a copy of its container each time that they give it back.

    Raises UsageError where the user has no terminal, or the trial ends before.
    """
    require_terminal("--shell needs a terminal; --debug takes commands from stdin as well")
    async with begin(_tell) as session:
        await session.rests()
        if session.is_over:
            came = came_to(session.result) if session.result is not None else "no result"
            raise UsageError(
                f"{session.trial}: has ended before step {at_step}: {came}; its files: {session.directory}"
            )
        if session.differs:
            _tell(f"it is not quite the same: {session.differs}")
        while True:
            print_line(await look_on(session.directory, session.trial, take=True, leaving="has it judged"), err=True)
            _tell("judging a copy of it")
            verdict = await session.verify()
            for line in verdict.output.rstrip("\n").split("\n"):
                print_line(line)
            print_line(verdict.words)
            if not await wants_back():
                return


def _tell(text: str) -> None:
    print_line(text, err=True)
