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
from tbench.cli.debug.keys import BY_PRESS, Binding, LineEditor, Press, PressReader
from tbench.cli.debug.panes import Question, Shown
from tbench.cli.debug.screen import drawn, picture
from tbench.cli.debug.words import SHOWN, Told, told
from tbench.cli.own_terminal import FullScreen
from tbench.control.client import Attached, Talk, TalkOver, attached
from tbench.control.wire import Answer, Attach, Debug, Sample
from tbench.errors import UsageError

# What a key press means: something that is shown in another way, or a wish that somebody else fulfils.

_SCROLLS = {"up": 1, "down": -1, "page-up": 10, "page-down": -10, "home": 1 << 30, "end": -(1 << 30)}


class Wanted(NamedTuple):
    """What the user wants: a command in words done, the reply edited, to type into the terminal, or to leave."""

    kind: Literal["do", "edit", "type", "leave"]
    words: str = ""
    """The command; where somebody leaves, the one that ends the trial, or nothing."""


def wish(shown: Shown, press: Press, *, is_guest: bool = False) -> Wanted | None:
    """Change what is shown by a key press; what is wanted beyond that. A guest's leaving does not end the trial."""
    if press.name == "ctrl-c":
        return Wanted("leave")
    if shown.helps:
        shown.helps = False
        return None
    if shown.prompt is not None:
        return _answered(shown, shown.prompt, press)
    if press.name in _SCROLLS:
        shown.back = max(0, shown.back + _SCROLLS[press.name])
        return None
    if press.name == "paste":
        shown.says("pasted text goes where something is asked, or into the terminal (t)", is_bad=True)
        return None
    if press.name.isdigit() and press.name != "0":
        return Wanted("do", f"choose {press.name}")
    binding = BY_PRESS.get(press.name)
    if binding is None:
        shown.says("no such key; ? shows them")
        return None
    return _bound(shown, binding, is_guest)


def _bound(shown: Shown, binding: Binding, is_guest: bool) -> Wanted | None:
    match binding.name:
        case "help":
            shown.helps = True
        case "pane":
            shown.next_pane()
        case "pause":
            return Wanted("do", "continue" if shown.debug.waits_for == "person" else "pause")
        case "type":
            return Wanted("type")
        case "edit" if shown.debug.draft is not None:
            return Wanted("edit")
        case "edit":
            shown.says("no reply waits that could be edited", is_bad=True)
        case "quit" | "quit, keep" if is_guest:
            return Wanted("leave", "stay" if binding.name == "quit, keep" else "")
        case "quit" | "quit, keep" if shown.debug.ended is None:
            keeps = binding.name == "quit, keep"
            asks = f"end the trial, and {'keep' if keeps else 'remove'} its container?"
            shown.prompt = Question(asks, "quit keep" if keeps else "quit", is_question=True)
        case "quit" | "quit, keep":
            return Wanted("leave", "quit" if binding.name == "quit" else "quit keep")
        case _ if binding.asks:
            shown.prompt = Question(binding.asks, binding.words, default=binding.default)
        case _:
            return Wanted("do", binding.words)
    return None


def _answered(shown: Shown, prompt: Question, press: Press) -> Wanted | None:
    """Go on with what is written; a wish where it is complete."""
    if press.name == "escape":
        shown.prompt = None
    elif press.name == "enter":
        shown.prompt = None
        return command_wish(shown, prompt.command)
    else:
        prompt.text.press(press)
    return None


def command_wish(shown: Shown, words: str) -> Wanted | None:
    """The wish that a command in words is."""
    name = words.partition(" ")[0]
    if name == "quit":
        return Wanted("leave", words)
    if name in SHOWN:
        shown.helps, shown.pane = name == "help", "steps" if name == "steps" else "terminal"
        return None
    return Wanted("do", words) if words else None


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
            if not self._terminal.flush() or not self._show():
                self._changed.set()
            await asyncio.sleep(_FRAME_SEC)

    def _show(self) -> bool:
        found = picture(self._shown)
        return self._terminal.show([drawn(line) for line in found.lines], found.cursor)

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
        self._bytes.put_nowait(read_stdin())

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
