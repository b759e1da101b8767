"""Shares a trial's terminal with people: watching, taking it over, typing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from harness.errors import TerminalLost, TerminalUnreachable
from harness.oversight import TerminalHandback
from harness.terminal import DrawnScreen, Tap
from tbench.control.wire import Answer, Screen, as_line
from tbench.errors import UsageError
from tbench.runs.control import PauseGate, TrialControl
from tbench.text import escape_invisible

_BETWEEN_SCREENS_SEC = 0.02
"""Shortest time between two drawings of the screen for one client."""
_RETRY_SEC = 0.5
"""Pause before another try at a terminal that cannot be reached."""
_TYPED_CHARS = 2_000
"""Maximum number of characters of the typed text that are shown to the model."""


class SharedTerminal:
    """Tracks who watches a trial's terminal, who has taken it, and what was typed."""

    def __init__(self, trial: TrialControl) -> None:
        self.takeover = PauseGate()
        """Holds the agent while a client has taken its terminal."""
        self._trial = trial
        self._typed = bytearray()
        self._typing = asyncio.Lock()
        self._taker_tap: Tap | None = None

    def nudge_taker(self) -> None:
        """Tell the client that has taken the terminal whether it may type."""
        if self._taker_tap is not None:
            self._taker_tap.nudge()

    async def wait_until_free(self) -> None:
        """Wait until no client has taken the terminal."""
        while self.takeover.is_closed:
            with self._trial.idling():
                await self.takeover.wait()

    @property
    def typed_bytes(self) -> bytes:
        """Bytes that people have typed since the terminal was last handed back."""
        return bytes(self._typed)

    async def handed_back(self) -> TerminalHandback | None:
        """Return the message to the model about typed keys; None if there are none. Raises the terminal's errors."""
        if not self._typed:
            return None
        async with self._typing:
            if (terminal := self._trial.terminal) is None:
                return None
            typed, self._typed = bytes(self._typed).decode("utf-8", "replace"), bytearray()
            screen = await terminal.handed_back()
            terminal.add_remark("a person has given the terminal back")
        now = "The screen could not be read." if screen is None else f"[The screen now:]\n{screen.text}"
        return TerminalHandback(f"{_shortened(escape_invisible(typed.replace(chr(13), chr(10))))}\n{now}")

    async def screen(self) -> Screen:
        """Return the screen. Raises UsageError if it cannot be read."""
        assert self._trial.terminal is not None
        try:
            return wire_screen(await self._trial.terminal.draw_screen())
        except ConnectionError as error:
            raise UsageError(f"its terminal cannot be reached: {error}") from None

    async def type(self, data: bytes) -> bool:
        """Type into the terminal if the agent is idle; return whether it was."""
        async with self._typing:
            terminal = self._trial.terminal
            if not self._trial.is_idle or terminal is None:
                return False
            if not self._typed:
                terminal.add_remark("a person types")
            self._typed += data
            self._trial.touch()
            # The agent notices a lost terminal, and decides how the trial continues.
            with contextlib.suppress(TerminalLost, TerminalUnreachable):
                await terminal.pass_on(data)
            return True

    @contextlib.asynccontextmanager
    async def attach(self, *, take: bool, drawn: bool) -> AsyncIterator[AttachedViewer]:
        """Let a client watch the terminal, or take it, during the block. Raises UsageError if another has taken it."""
        terminal = self._trial.terminal
        assert terminal is not None
        if take and self.takeover.is_closed:
            raise UsageError("another client has taken its terminal; attach without --take")
        with terminal.open_tap() as tap:
            if take:
                self._taker_tap = tap
                self.takeover.close()
            try:
                yield AttachedViewer(self, self._trial, tap, take=take, drawn=drawn)
            finally:
                if take:
                    self._taker_tap = None
                    self.takeover.open()


class AttachedViewer:
    """A client attached to a terminal: a tbench.control.wire.TerminalViewer."""

    def __init__(self, shared: SharedTerminal, trial: TrialControl, tap: Tap, *, take: bool, drawn: bool) -> None:
        assert trial.terminal is not None
        self._shared, self._trial, self._terminal, self._tap = shared, trial, trial.terminal, tap
        self._take, self._drawn = take, drawn
        self._answered = False
        """Whether the answer was sent; bytes of the terminal follow it."""
        self._drawn_at = 0.0

    async def next(self) -> bytes:
        while True:
            await self._tap.news()
            if self._tap.is_over:
                return b""
            with contextlib.suppress(ConnectionError):
                if data := await (self._bytes() if self._answered else self._answer()):
                    return data
                continue
            await asyncio.sleep(_RETRY_SEC)
            self._tap.nudge()

    async def _answer(self) -> bytes:
        """Return the screen as one line of the protocol. Raises ConnectionError."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._drawn_at + _BETWEEN_SCREENS_SEC - loop.time())
        self._drawn_at = loop.time()
        may_type = self._take and self._trial.is_idle
        screen = wire_screen(await self._terminal.draw_screen())
        if not self._drawn and may_type == self._take:
            self._answered = True
            self._tap.nudge()
        words = "watching"
        if self._take:
            words = "the terminal is yours" if may_type else "waiting until the agent is idle"
        return as_line(Answer(ok=True, words=words, screen=screen, yours=may_type))

    async def _bytes(self) -> bytes:
        """Return the pane's output since the last drawing of the screen. Raises ConnectionError."""
        if not self._tap.needs_redraw:
            return self._tap.take()
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._drawn_at + _BETWEEN_SCREENS_SEC - loop.time())
        self._drawn_at = loop.time()
        screen = await self._terminal.draw_screen(self._tap)
        return screen.escapes() + self._tap.take()

    async def type(self, data: bytes) -> None:
        if self._take:
            await self._shared.type(data)


def wire_screen(screen: DrawnScreen) -> Screen:
    """Return a screen in the form of the control socket."""
    return Screen(
        columns=screen.columns,
        rows=screen.rows,
        cursor=screen.cursor,
        cursor_visible=screen.cursor_visible,
        application_keys=screen.modes.application_keys,
        lines=screen.lines,
    )


def _shortened(text: str) -> str:
    if len(text) <= _TYPED_CHARS:
        return text
    half = _TYPED_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
