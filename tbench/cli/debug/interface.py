"""The full-screen debugger: a client of a run's control socket, with a keyboard and a screen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import tempfile
from pathlib import Path

from tbench.cli.debug.full_screen import FullScreen
from tbench.cli.debug.layout import picture
from tbench.cli.debug.line_editor import LineEditor
from tbench.cli.debug.presses import Press, PressReader
from tbench.cli.debug.pressing import wish
from tbench.cli.debug.shown import Question, Shown
from tbench.cli.debug.words import Told, told
from tbench.control.client import Attached, attached
from tbench.control.debugging import Debug, Sample
from tbench.control.talk import Talk, TalkOver
from tbench.control.wire import Answer, Attach
from tbench.errors import UsageError

_ESCAPE_SEC = 0.05
"""Time after which an Escape is the key, and not the beginning of a sequence."""
_FRAME_SEC = 0.03
"""Least time between two pictures."""
_TYPING_ENDS = b"\x1d"
_ALONE = ("snapshot", "cassette", "quit")
"""Commands that may take long, and do not wait for others."""


class Left(Exception):
    """Raised when the user leaves: `words` is the last command, None after Ctrl-C."""

    def __init__(self, words: str | None) -> None:
        self.words = words


class Interface:
    """One user at one trial."""

    def __init__(self, directory: Path, trial: str, terminal: FullScreen, *, is_guest: bool) -> None:
        """`is_guest`: the trial is one of a run that goes on without this user."""
        self._directory, self._trial = directory, trial
        self._terminal = terminal
        self._is_guest = is_guest
        self._shown = Shown(trial)
        self._changed, self._debug_changed = asyncio.Event(), asyncio.Event()
        self._bytes: asyncio.Queue[bytes] = asyncio.Queue()
        self._commands: asyncio.Queue[Told] = asyncio.Queue()
        self._taken: Attached | None = None
        """The connection on which the user types into the trial's terminal."""
        self._wants_terminal = False
        """Whether the user wants to type there."""
        self._given_back = asyncio.Event()

    async def run(self) -> str | None:
        """Show and obey until the user leaves, or the run ends; the command with which they left, None after Ctrl-C."""
        loop = asyncio.get_running_loop()
        words: str | None = ""
        loop.add_signal_handler(signal.SIGWINCH, self._resized)
        self._resized()
        try:
            async with asyncio.TaskGroup() as self._group:
                for each in (self._follow(), self._look(), self._obey(), self._read(), self._draw()):
                    self._group.create_task(each)
        except* Left as left:
            (end, *_) = left.exceptions
            words = end.words if isinstance(end, Left) else None
        except* TalkOver:
            pass
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
        return words

    def say(self, message: str, *, is_bad: bool = False) -> None:
        """Show a message until the next one."""
        self._shown.says(message, is_bad=is_bad)
        self._changed.set()

    # -- what the run tells --------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Take over each change of the trial."""
        shown = self._shown
        async with Talk(self._directory) as talk:
            while shown.debug.ended is None:
                answer = await talk.ask(Debug(trial=self._trial, after=shown.known, version=shown.version))
                assert answer.debug is not None
                shown.hears(answer.debug)
                self._changed.set()
                self._debug_changed.set()

    async def _look(self) -> None:
        """Take over the trial's screen as it changes."""
        while True:
            with contextlib.suppress(UsageError):  # there is no terminal yet, or it is another one from now on
                async with attached(self._directory, Attach(trial=self._trial, drawn=True)) as way:
                    answer: Answer | None = way.first
                    while answer is not None:
                        self._shown.screen = answer.screen or self._shown.screen
                        self._changed.set()
                        answer = await way.next()
            await self._debug_changed.wait()
            self._debug_changed.clear()

    async def _draw(self) -> None:
        """Draw what has changed, and no faster than one can see."""
        while await self._changed.wait():
            self._changed.clear()
            if not self._terminal.show(picture(self._shown)):
                self._changed.set()
            await asyncio.sleep(_FRAME_SEC)

    def _resized(self) -> None:
        self._shown.columns, self._shown.rows = self._terminal.size
        self._terminal.forget()
        self._changed.set()

    # -- what the user wants -------------------------------------------------------------------------

    async def _read(self) -> None:
        """Understand the keyboard."""
        loop, reader = asyncio.get_running_loop(), PressReader()
        loop.add_reader(0, self._readable)
        try:
            while True:
                data = await self._next(_ESCAPE_SEC if reader.is_torn else None)
                if data is not None and self._taken is not None:
                    self._pass_on(self._taken, data)
                    continue
                presses = reader.end_escape() if data is None else reader.presses(data)
                for press in presses:
                    await self._pressed(press)
                self._changed.set()
        finally:
            loop.remove_reader(0)

    def _readable(self) -> None:
        # Read where it is known to be readable: a moment later it may not be, and nothing here may block.
        try:
            self._bytes.put_nowait(os.read(0, 1 << 16))
        except OSError:
            self._bytes.put_nowait(b"")

    async def _next(self, within_sec: float | None) -> bytes | None:
        """What is typed next; None where that is nothing within this time. Raises Left where the terminal is closed."""
        try:
            async with asyncio.timeout(within_sec):
                data = await self._bytes.get()
        except TimeoutError:
            return None
        if not data:
            raise Left(None)
        return data

    async def _pressed(self, press: Press) -> None:
        if self._wants_terminal and press.name != "ctrl-c":
            # Meant for the trial's terminal, which is not the user's yet: none of it may be taken for a command.
            if press.name == "ctrl-]":
                self._given_back.set()
            return
        found = wish(self._shown, press, is_guest=self._is_guest)
        if found is None:
            return
        match found.kind:
            case "leave":
                raise Left(found.words if press.name != "ctrl-c" else None)
            case "edit":
                await self._edit()
            case "type":
                self._wants_terminal = True
                self._group.create_task(self._type())
            case "do":
                self._want(found.words)

    def _want(self, words: str) -> None:
        try:
            command = told(words, self._trial)
        except UsageError as problem:
            return self.say(str(problem), is_bad=True)
        if command.name == "sample" and isinstance(command.request, Sample) and command.request.number > 1:
            self._shown.pane = "samples"
        if command.name in _ALONE:
            self._group.create_task(self._do_alone(command))
        else:
            self._commands.put_nowait(command)
        return None

    async def _obey(self) -> None:
        """Do commands in their order."""
        async with Talk(self._directory) as talk:
            while True:
                await self._do(talk, await self._commands.get())

    async def _do_alone(self, command: Told) -> None:
        async with Talk(self._directory) as talk:
            await self._do(talk, command)

    async def _do(self, talk: Talk, command: Told) -> None:
        if command.request is None:
            return
        self.say(f"{command.name} …")
        try:
            self.say((await talk.ask(command.request)).words)
        except TalkOver:
            raise
        except UsageError as problem:
            self.say(str(problem), is_bad=True)

    # -- with the terminal of others -----------------------------------------------------------------

    async def _edit(self) -> None:
        """Let the user edit the reply that waits: in their editor, or in place where they have none."""
        draft, editor = self._shown.debug.draft, os.environ.get("VISUAL") or os.environ.get("EDITOR")
        assert draft is not None
        if not editor:
            self._shown.prompt = Question("reply", "edit", LineEditor.holding(draft.content))
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(0)
        try:
            with self._terminal.suspended():
                text = await edited(editor, draft.content)
        except (OSError, ValueError) as error:
            self.say(f"$EDITOR: {editor}: {error}", is_bad=True)
        else:
            if text == draft.content:
                self.say("nothing was changed")
            else:
                self._want(f"edit {text}")
        finally:
            loop.add_reader(0, self._readable)
            self._resized()

    async def _type(self) -> None:
        """Let the user type into the trial's terminal until they give it back."""
        self._given_back.clear()
        ends = asyncio.create_task(self._given_back.wait())
        try:
            async with attached(self._directory, Attach(trial=self._trial, take=True, drawn=True)) as way:
                self._taken, self._shown.types, self._shown.pane = way, True, "terminal"
                answer: Answer | None = way.first
                while answer is not None and not ends.done():
                    self.say(answer.words)
                    coming = asyncio.create_task(way.next())
                    await asyncio.wait({coming, ends}, return_when=asyncio.FIRST_COMPLETED)
                    answer = coming.result() if coming.done() else None
                    coming.cancel()
            self.say("the terminal is the model's again")
        except UsageError as problem:
            self.say(str(problem), is_bad=True)
        finally:
            ends.cancel()
            self._taken, self._shown.types, self._wants_terminal = None, False, False
            self._changed.set()

    def _pass_on(self, way: Attached, data: bytes) -> None:
        """Type, or give the terminal back; Ctrl-] does that also while it is waited for."""
        typed, ends, _ = data.partition(_TYPING_ENDS)
        if typed:
            way.type(typed)
        if ends:
            self._given_back.set()


async def edited(editor: str, text: str) -> str:
    """The text after a person had it in their editor. Raises OSError, or ValueError for words that are no command."""
    with tempfile.TemporaryDirectory(prefix="tbench-") as folder:
        file = Path(folder) / "reply.txt"
        file.write_text(text, encoding="utf-8")
        process = await asyncio.create_subprocess_exec(*shlex.split(editor), str(file))
        if code := await process.wait():
            raise ValueError(f"ended with {code}")
        after = file.read_text(encoding="utf-8", errors="replace")
    return after if text.endswith("\n") else after.removesuffix("\n")
