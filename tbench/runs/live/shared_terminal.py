"""The terminal of a trial as a person has it: looking on, taking it over, typing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from harness.errors import TerminalLost, TerminalUnreachable
from harness.oversight import HandedBack
from tbench.control.wire import Answer, Screen, as_line
from tbench.errors import UsageError
from tbench.runs.live.hold import Hold
from tbench.text import visible

if TYPE_CHECKING:
    from harness.terminal import DrawnScreen, Tap, Terminal

_BETWEEN_SCREENS_SEC = 0.02
"""Shortest time between two drawings for one person."""
_CUT_OFF_SEC = 0.5
"""Pause before a terminal is looked at again that is out of reach."""
_TOLD_CHARS = 2_000
"""The most that the model is told of what was typed."""


class SharedTerminal:
    """Who looks on at a terminal, who has taken it, and what they have typed. `on_typed` is called when they do."""

    def __init__(self, on_typed: Callable[[], None]) -> None:
        self.terminal: Terminal | None = None
        """The terminal while an agent works at it."""
        self.taken = Hold()
        """Holds the agent while somebody has its terminal."""
        self.is_resting = False
        """Whether the agent waits for others and does nothing at its terminal."""
        self._on_typed = on_typed
        self._typed = bytearray()
        self._typing = asyncio.Lock()
        self._takers: Tap | None = None

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """A block in which the agent leaves its terminal alone, so that a person may type."""
        self.is_resting = True
        self._tell_taker()
        try:
            yield
        finally:
            self.is_resting = False
            self._tell_taker()

    def _tell_taker(self) -> None:
        if self._takers is not None:
            self._takers.nudge()

    async def until_free(self) -> None:
        """Return when nobody has taken the terminal."""
        while self.taken.is_set:
            with self.resting():
                await self.taken.over()

    @property
    def typed(self) -> bytes:
        """What people have typed since the terminal was handed back."""
        return bytes(self._typed)

    async def handed_back(self) -> HandedBack | None:
        """What the model is told of what was typed; None where nothing was. Raises what the terminal does."""
        if not self._typed:
            return None
        async with self._typing:
            if self.terminal is None:
                return None
            typed, self._typed = bytes(self._typed).decode("utf-8", "replace"), bytearray()
            screen = await self.terminal.handed_back()
            self.terminal.remark("a person has given the terminal back")
        now = "It cannot be told what is on the screen." if screen is None else f"[The screen now:]\n{screen.text}"
        return HandedBack(f"{_shortened(visible(typed.replace(chr(13), chr(10))))}\n{now}")

    async def screen(self) -> Screen:
        """The screen. Raises UsageError where it cannot be seen."""
        assert self.terminal is not None
        try:
            return screen_told(await self.terminal.drawn())
        except ConnectionError as error:
            raise UsageError(f"its terminal is out of reach: {error}") from None

    async def type(self, data: bytes) -> bool:
        """Type into the terminal of an agent that rests; whether that was done."""
        async with self._typing:
            if not self.is_resting or self.terminal is None:
                return False
            if not self._typed:
                self.terminal.remark("a person types")
            self._typed += data
            self._on_typed()
            # Where it is gone, the agent finds that out, too, and what becomes of the trial is decided there.
            with contextlib.suppress(TerminalLost, TerminalUnreachable):
                await self.terminal.pass_on(data)
            return True

    @contextlib.asynccontextmanager
    async def occupied(self, *, take: bool, drawn: bool) -> AsyncIterator[AttachedPerson]:
        """Let somebody look on during the block, or have the terminal. Raises UsageError where another has it."""
        assert self.terminal is not None
        if take and self.taken.is_set:
            raise UsageError("somebody else has taken its terminal; look on without taking it")
        with self.terminal.tapped() as tap:
            if take:
                self._takers = tap
                self.taken.set()
            try:
                yield AttachedPerson(self, self.terminal, tap, take=take, drawn=drawn)
            finally:
                if take:
                    self._takers = None
                    self.taken.lift()


class AttachedPerson:
    """Somebody who looks on at a terminal: a tbench.control.wire.Onlooker."""

    def __init__(self, shared: SharedTerminal, terminal: Terminal, tap: Tap, *, take: bool, drawn: bool) -> None:
        self._shared, self._terminal, self._tap = shared, terminal, tap
        self._take, self._drawn = take, drawn
        self._answered = False
        """Whether they have had the answer after which bytes follow."""
        self._drawn_at = 0.0

    async def next(self) -> bytes:
        """As in Onlooker."""
        while True:
            await self._tap.news()
            if self._tap.is_over:
                return b""
            with contextlib.suppress(ConnectionError):
                if data := await (self._bytes() if self._answered else self._answer()):
                    return data
                continue
            await asyncio.sleep(_CUT_OFF_SEC)
            self._tap.nudge()

    async def _answer(self) -> bytes:
        """The screen as one line. Raises ConnectionError."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._drawn_at + _BETWEEN_SCREENS_SEC - loop.time())
        self._drawn_at = loop.time()
        is_theirs = self._take and self._shared.is_resting
        screen = screen_told(await self._terminal.drawn())
        if not self._drawn and is_theirs == self._take:
            self._answered = True
            self._tap.nudge()
        return as_line(Answer(ok=True, words=_words(self._take, is_theirs), screen=screen, yours=is_theirs))

    async def _bytes(self) -> bytes:
        """What the pane has printed, from a drawing of the screen on. Raises ConnectionError."""
        if not self._tap.has_lost_place:
            return self._tap.take()
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._drawn_at + _BETWEEN_SCREENS_SEC - loop.time())
        self._drawn_at = loop.time()
        screen = await self._terminal.drawn(self._tap)
        return screen.escapes() + self._tap.take()

    async def type(self, data: bytes) -> None:
        """As in Onlooker."""
        if self._take:
            await self._shared.type(data)


def screen_told(screen: DrawnScreen) -> Screen:
    """A screen as the control socket tells it."""
    return Screen(
        columns=screen.columns,
        rows=screen.rows,
        cursor=screen.cursor,
        cursor_visible=screen.cursor_visible,
        application_keys=screen.modes.application_keys,
        lines=screen.lines,
    )


def _words(take: bool, is_theirs: bool) -> str:
    if not take:
        return "looking on"
    return "the terminal is yours" if is_theirs else "waits until what the agent does has come to its end"


def _shortened(text: str) -> str:
    if len(text) <= _TOLD_CHARS:
        return text
    half = _TOLD_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
