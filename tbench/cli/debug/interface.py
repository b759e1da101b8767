"""The full-screen debugger: a client of a run's control socket, with a keyboard and a screen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

from tbench.cli.common import read_stdin
from tbench.cli.debug.commands import LOCAL_COMMANDS, ParsedCommand, parse_command
from tbench.cli.debug.keys import BY_PRESS, Binding, LineEditor, Press, PressReader
from tbench.cli.debug.panes import PaneState, Question
from tbench.cli.debug.screen import render_screen, to_ansi
from tbench.cli.full_screen import FullScreen
from tbench.control.client import AttachedTerminal, ControlConnection, ControlConnectionClosed, attach
from tbench.control.wire import Answer, Attach, Debug, Sample
from tbench.errors import UsageError

_SCROLLS = {"up": 1, "down": -1, "page-up": 10, "page-down": -10, "home": 1 << 30, "end": -(1 << 30)}


class UserAction(NamedTuple):
    """An action requested by a key: run a command, edit the reply, type into the terminal, or leave."""

    kind: Literal["do", "edit", "type", "leave"]
    command: str = ""
    """The command; for `leave`, the command that ends the trial, or empty."""


def handle_press(state: PaneState, press: Press, *, is_guest: bool = False) -> UserAction | None:
    """Apply a key press to the screen's state, and return the action it requests. A guest who leaves ends nothing."""
    if press.name == "ctrl-c":
        return UserAction("leave")
    if state.shows_help:
        state.shows_help = False
        return None
    if state.prompt is not None:
        return _answer(state, state.prompt, press)
    if press.name in _SCROLLS:
        state.scrolled = max(0, state.scrolled + _SCROLLS[press.name])
        return None
    if press.name == "paste":
        state.show_message("pasted text only goes into a prompt, or into the terminal (t)", is_error=True)
        return None
    if press.name.isdigit() and press.name != "0":
        return UserAction("do", f"choose {press.name}")
    binding = BY_PRESS.get(press.name)
    if binding is None:
        state.show_message("no such key; ? lists them")
        return None
    return _binding_action(state, binding, is_guest)


def _binding_action(state: PaneState, binding: Binding, is_guest: bool) -> UserAction | None:
    match binding.name:
        case "help":
            state.shows_help = True
        case "pane":
            state.next_pane()
        case "pause":
            return UserAction("do", "continue" if state.debug.waits_for == "person" else "pause")
        case "type":
            return UserAction("type")
        case "edit" if state.debug.draft is not None:
            return UserAction("edit")
        case "edit":
            state.show_message("no pending reply to edit", is_error=True)
        case "quit" | "quit, keep" if is_guest:
            return UserAction("leave", "stay" if binding.name == "quit, keep" else "")
        case "quit" | "quit, keep" if state.debug.ended is None:
            keeps = binding.name == "quit, keep"
            asks = f"end the trial, and {'keep' if keeps else 'remove'} its container?"
            state.prompt = Question(asks, "quit keep" if keeps else "quit", is_question=True)
        case "quit" | "quit, keep":
            return UserAction("leave", "quit" if binding.name == "quit" else "quit keep")
        case _ if binding.question:
            state.prompt = Question(binding.question, binding.command, default=binding.default)
        case _:
            return UserAction("do", binding.command)
    return None


def _answer(state: PaneState, prompt: Question, press: Press) -> UserAction | None:
    """Apply a key press to the prompt, and return the action when the answer is complete."""
    if press.name == "escape":
        state.prompt = None
    elif press.name == "enter":
        state.prompt = None
        return command_action(state, prompt.command)
    else:
        prompt.text.press(press)
    return None


def command_action(state: PaneState, line: str) -> UserAction | None:
    """Return the action for a written command."""
    name = line.partition(" ")[0]
    if name == "quit":
        return UserAction("leave", line)
    if name in LOCAL_COMMANDS:
        state.shows_help, state.pane = name == "help", "steps" if name == "steps" else "terminal"
        return None
    return UserAction("do", line) if line else None


_ESCAPE_SEC = 0.05
"""Time after which an Escape is the key, not the start of a sequence."""
_FRAME_SEC = 0.03
"""Minimum time between two frames."""
_RELEASE_KEY = b"\x1d"
_SLOW_COMMANDS = ("snapshot", "cassette", "quit")
"""Commands that may take long, and do not hold up other commands."""


class UserLeft(Exception):
    """Raised when the user leaves; `command` is the last command, None after Ctrl-C."""

    def __init__(self, command: str | None) -> None:
        self.command = command


class Interface:
    """The full-screen debugger of one trial."""

    def __init__(self, directory: Path, trial: str, terminal: FullScreen, *, is_guest: bool) -> None:
        """`is_guest`: the trial belongs to a run that continues without this user."""
        self._directory, self._trial = directory, trial
        self._terminal = terminal
        self._is_guest = is_guest
        self._state = PaneState(trial)
        self._changed, self._debug_changed = asyncio.Event(), asyncio.Event()
        self._bytes: asyncio.Queue[bytes] = asyncio.Queue()
        self._commands: asyncio.Queue[ParsedCommand] = asyncio.Queue()
        self._taken: AttachedTerminal | None = None
        """The connection through which the user types into the trial's terminal."""
        self._wants_terminal = False
        """Whether the user has requested the terminal."""
        self._released = asyncio.Event()

    async def run(self) -> str | None:
        """Run until the user leaves or the run ends; return the last command, None after Ctrl-C."""
        loop = asyncio.get_running_loop()
        last: str | None = ""
        loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
        self._on_resize()
        try:
            async with asyncio.TaskGroup() as self._group:
                for each in (
                    self._follow(),
                    self._follow_screen(),
                    self._run_commands(),
                    self._read_keys(),
                    self._draw(),
                ):
                    self._group.create_task(each)
        except* UserLeft as left:
            (end, *_) = left.exceptions
            last = end.command if isinstance(end, UserLeft) else None
        except* ControlConnectionClosed:
            pass
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
        return last

    def say(self, message: str, *, is_error: bool = False) -> None:
        """Show a message until the next one."""
        self._state.show_message(message, is_error=is_error)
        self._changed.set()

    # -- updates from the run ------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Apply each change of the trial's state."""
        state = self._state
        async with ControlConnection(self._directory) as talk:
            while state.debug.ended is None:
                answer = await talk.ask(Debug(trial=self._trial, after=state.known, version=state.version))
                assert answer.debug is not None
                state.update(answer.debug)
                self._changed.set()
                self._debug_changed.set()

    async def _follow_screen(self) -> None:
        """Apply each change of the trial's screen."""
        while True:
            with contextlib.suppress(UsageError):  # there is no terminal yet, or it has been replaced
                async with attach(self._directory, Attach(trial=self._trial, drawn=True)) as terminal:
                    answer: Answer | None = terminal.first
                    while answer is not None:
                        self._state.screen = answer.screen or self._state.screen
                        self._changed.set()
                        answer = await terminal.next()
            await self._debug_changed.wait()
            self._debug_changed.clear()

    async def _draw(self) -> None:
        """Draw changes, at a limited frame rate."""
        while await self._changed.wait():
            self._changed.clear()
            if not self._terminal.flush() or not self._show():
                self._changed.set()
            await asyncio.sleep(_FRAME_SEC)

    def _show(self) -> bool:
        found = render_screen(self._state)
        return self._terminal.show([to_ansi(line) for line in found.lines], found.cursor)

    def _on_resize(self) -> None:
        self._state.columns, self._state.rows = self._terminal.size
        self._terminal.invalidate()
        self._changed.set()

    # -- input from the user -------------------------------------------------------------------------

    async def _read_keys(self) -> None:
        """Read the keyboard and handle key presses."""
        loop, reader = asyncio.get_running_loop(), PressReader()
        loop.add_reader(0, self._read_input)
        try:
            while True:
                data = await self._next_input(_ESCAPE_SEC if reader.is_incomplete else None)
                if data is not None and self._taken is not None:
                    self._pass_on(self._taken, data)
                    continue
                presses = reader.end_escape() if data is None else reader.presses(data)
                for press in presses:
                    await self._on_press(press)
                self._changed.set()
        finally:
            loop.remove_reader(0)

    def _read_input(self) -> None:
        # Read in the callback: later stdin may no longer be readable, and nothing here may block.
        self._bytes.put_nowait(read_stdin())

    async def _next_input(self, within_sec: float | None) -> bytes | None:
        """Return the next input, or None after this time. Raises UserLeft if the terminal is closed."""
        try:
            async with asyncio.timeout(within_sec):
                data = await self._bytes.get()
        except TimeoutError:
            return None
        if not data:
            raise UserLeft(None)
        return data

    async def _on_press(self, press: Press) -> None:
        if self._wants_terminal and press.name != "ctrl-c":
            # Keys typed before the terminal is taken over must not act as commands.
            if press.name == "ctrl-]":
                self._released.set()
            return
        found = handle_press(self._state, press, is_guest=self._is_guest)
        if found is None:
            return
        match found.kind:
            case "leave":
                raise UserLeft(found.command if press.name != "ctrl-c" else None)
            case "edit":
                await self._edit()
            case "type":
                self._wants_terminal = True
                self._group.create_task(self._type())
            case "do":
                self._submit(found.command)

    def _submit(self, line: str) -> None:
        try:
            command = parse_command(line, self._trial)
        except UsageError as problem:
            return self.say(str(problem), is_error=True)
        if command.name == "sample" and isinstance(command.request, Sample) and command.request.number > 1:
            self._state.pane = "samples"
        if command.name in _SLOW_COMMANDS:
            self._group.create_task(self._run_slow_command(command))
        else:
            self._commands.put_nowait(command)
        return None

    async def _run_commands(self) -> None:
        """Run commands in order."""
        async with ControlConnection(self._directory) as talk:
            while True:
                await self._do(talk, await self._commands.get())

    async def _run_slow_command(self, command: ParsedCommand) -> None:
        async with ControlConnection(self._directory) as talk:
            await self._do(talk, command)

    async def _do(self, talk: ControlConnection, command: ParsedCommand) -> None:
        if command.request is None:
            return
        self.say(f"{command.name} …")
        try:
            self.say((await talk.ask(command.request)).words)
        except ControlConnectionClosed:
            raise
        except UsageError as problem:
            self.say(str(problem), is_error=True)

    # -- the editor, and the trial's terminal --------------------------------------------------------

    async def _edit(self) -> None:
        """Let the user edit the pending reply, in $VISUAL or $EDITOR, or else in a prompt."""
        draft, editor = self._state.debug.draft, os.environ.get("VISUAL") or os.environ.get("EDITOR")
        assert draft is not None
        if not editor:
            self._state.prompt = Question("reply", "edit", LineEditor.with_text(draft.content))
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(0)
        try:
            with self._terminal.suspended():
                text = await edit_text(editor, draft.content)
        except (OSError, ValueError) as error:
            self.say(f"$EDITOR: {editor}: {error}", is_error=True)
        else:
            if text == draft.content:
                self.say("nothing changed")
            else:
                self._submit(f"edit {text}")
        finally:
            loop.add_reader(0, self._read_input)
            self._on_resize()

    async def _type(self) -> None:
        """Let the user type into the trial's terminal until they return it."""
        self._released.clear()
        ends = asyncio.create_task(self._released.wait())
        try:
            async with attach(self._directory, Attach(trial=self._trial, take=True, drawn=True)) as terminal:
                self._taken, self._state.is_typing, self._state.pane = terminal, True, "terminal"
                answer: Answer | None = terminal.first
                while answer is not None and not ends.done():
                    self.say(answer.words)
                    coming = asyncio.create_task(terminal.next())
                    await asyncio.wait({coming, ends}, return_when=asyncio.FIRST_COMPLETED)
                    answer = coming.result() if coming.done() else None
                    coming.cancel()
            self.say("the terminal is the model's again")
        except UsageError as problem:
            self.say(str(problem), is_error=True)
        finally:
            ends.cancel()
            self._taken, self._state.is_typing, self._wants_terminal = None, False, False
            self._changed.set()

    def _pass_on(self, terminal: AttachedTerminal, data: bytes) -> None:
        """Forward input to the trial's terminal; Ctrl-] returns it."""
        typed, ends, _ = data.partition(_RELEASE_KEY)
        if typed:
            terminal.type(typed)
        if ends:
            self._released.set()


async def edit_text(editor: str, text: str) -> str:
    """Return the text after editing it in an editor. Raises OSError, or ValueError for an invalid or failed command."""
    with tempfile.TemporaryDirectory(prefix="tbench-") as folder:
        file = Path(folder) / "reply.txt"
        file.write_text(text, encoding="utf-8")
        process = await asyncio.create_subprocess_exec(*shlex.split(editor), str(file))
        if code := await process.wait():
            raise ValueError(f"exited with {code}")
        after = file.read_text(encoding="utf-8", errors="replace")
    return after if text.endswith("\n") else after.removesuffix("\n")
