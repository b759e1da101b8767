"""The debugger for scripts: reads commands and prints results, line by line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

import click

from harness.terminal.plain_text import plain_text
from tbench.cli.common import stdin_chunks
from tbench.cli.debug.commands import COMMANDS, parse_command
from tbench.cli.debug.panes import draft_title, end_words, file_lines, verdict_lines, verdict_words
from tbench.cli.printing import print_line, print_lines
from tbench.control.wire import Answer, Debug, DebugState, DraftSeen, ReadScreen, Request, StepSeen
from tbench.errors import UsageError
from tbench.text import one_line

_SHOWN_LINES = 20
"""Maximum number of printed lines of an observation."""


class SendsRequests(Protocol):
    """Sends requests to a run."""

    async def ask(self, request: Request) -> Answer:
        """Send a request and return the answer. Raises UsageError."""


class PlainDebugger:
    """Runs commands one after the other, and prints their results."""

    def __init__(self, talk: SendsRequests, trial: str) -> None:
        self._talk, self._trial = talk, trial
        self._debug = DebugState(version=0)
        self._steps: list[StepSeen] = []
        self._draft: DraftSeen | None = None

    async def run(self, commands: AsyncIterator[str], *, stops_at_mistakes: bool = True) -> str:
        """Run the commands; return the quit command, or an empty string if there was none.

        Raises UsageError for a failing command, or with `stops_at_mistakes` false only prints it.
        """
        await self._settle()
        async for text in commands:
            if not text.strip() or text.lstrip().startswith("#"):
                continue
            if text.split()[0] == "quit":
                parse_command(text, self._trial)  # checks its argument
                return text.strip()
            try:
                await self._do(text)
            except UsageError as problem:
                if stops_at_mistakes:
                    raise
                print_line(f"tbench: {problem}", err=True)
            if self._debug.ended is not None and self._draft is None:
                break
        return ""

    async def _do(self, text: str) -> None:
        command = parse_command(text, self._trial)
        if command.request is not None:
            done = await self._talk.ask(command.request)
            if done.words:
                print_line(done.words)
            await self._settle()
        elif command.name == "help":
            print_lines(usage for usage, _ in COMMANDS.values())
        elif command.name == "steps":
            print_lines(line for step in self._steps for line in step_lines(step))
        elif command.name == "draft":
            print_lines(draft_lines(self._debug))
        else:
            await self._print_screen()

    async def _print_screen(self) -> None:
        screen = (await self._talk.ask(ReadScreen(trial=self._trial))).screen
        assert screen is not None
        print_lines(plain_text("\n".join(screen.lines).encode()).rstrip("\n").split("\n"))

    async def _settle(self) -> None:
        """Wait until the trial needs the user to continue, and print what is new."""
        version: int | None = None
        while True:
            debug = (await self._talk.ask(Debug(trial=self._trial, after=self._known, version=version))).debug
            assert debug is not None
            version = debug.version
            if debug.attempt != self._debug.attempt:
                # Steps are numbered from 1 again, and this answer has only some of them.
                self._steps, self._debug = [], debug.model_copy(update={"steps": (), "differs": "", "ended": None})
                print_line(f"attempt {debug.attempt}")
                version = None
                continue
            self._print_news(debug)
            rests = debug.waits_for in ("decision", "person") or debug.ended is not None
            if rests and not debug.asking and not any(verdict.state == "running" for verdict in debug.verdicts):
                break
        if debug.draft is not None and debug.draft != self._draft:
            print_lines(draft_lines(debug))
        self._draft = debug.draft

    @property
    def _known(self) -> int:
        return self._steps[-1].index if self._steps else 0

    def _print_news(self, debug: DebugState) -> None:
        """Print new steps, verdicts and the end of the trial."""
        for step in debug.steps:
            print_lines(step_lines(step))
        self._steps += debug.steps
        for verdict in debug.verdicts:
            if verdict.state != "running" and verdict not in self._debug.verdicts:
                print_line(verdict_words(verdict))
                print_lines(f"  | {line}" for line in verdict.output.split("\n") if line.strip())
                if verdict.tests:
                    print_lines(click.unstyle(line) for line in verdict_lines(verdict))
        if debug.stopped and debug.stopped != self._debug.stopped:
            print_line(f"stopped: {debug.stopped}")
        if debug.differs and not self._debug.differs:
            print_line(f"differs at {debug.differs}")
        if debug.ended is not None and self._debug.ended is None:
            print_line(end_words(debug.ended))
        self._debug = debug


def step_lines(step: StepSeen) -> Iterator[str]:
    """Yield the lines of a finished step."""
    code = "" if step.exit_code is None else f", exit {step.exit_code}"
    yield f"step {step.index}: model {step.model_sec:.1f} s, commands {step.command_sec:.1f} s{code}"
    yield from (f"  ({one_line(thought)})" for thought in step.thoughts)
    if step.format_error:
        yield f"  format error: {step.format_error}"
    yield from _action_lines(step.actions)
    yield from (f"  warning: {warning}" for warning in step.warnings)
    lines = step.observation.rstrip("\n").split("\n")
    yield from (f"  | {line}".rstrip() for line in lines[-_SHOWN_LINES:])
    yield from (f"  {line}" for line in file_lines(step))


def draft_lines(debug: DebugState) -> Iterator[str]:
    """Yield the lines of the reply that waits for a decision."""
    if debug.draft is None:
        yield "next: nothing waits for a decision"
        return
    yield draft_title(debug.draft, debug.samples)
    yield from (f"  ({one_line(thought)})" for thought in debug.draft.thoughts)
    if debug.draft.error:
        yield f"  error: {debug.draft.error}"
    yield from _action_lines(debug.draft.actions)


def _action_lines(actions: Sequence[str]) -> Iterator[str]:
    for action in actions:
        first, *more = action.rstrip("\n").split("\n")
        yield f"  > {first}"
        yield from (f"    {line}" for line in more)


async def split_commands(text: str) -> AsyncIterator[str]:
    """Yield the commands in a line, separated by semicolons."""
    for command in text.split(";"):
        yield command


async def lines_of_stdin() -> AsyncIterator[str]:
    """Yield the lines of stdin as they arrive."""
    rest = b""
    async for data in stdin_chunks():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    yield rest.decode("utf-8", "replace")
