"""A tmux session as an agent uses it: type keystrokes, run commands, wait until the shell has settled, read.

Others may look on at any time, and type while the agent rests. Speaks through a tmux control client over one byte
stream; knows nothing of containers.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.errors import TerminalLost
from harness.limits import Settling
from harness.protocols.base import CommandResult, Keys, ScreenView
from harness.stream import Connect
from harness.terminal.delivery import Delivery
from harness.terminal.keyboard import Keyboard
from harness.terminal.link import UNREACHABLE_SEC, KeysLost, Link
from harness.terminal.plain_text import plain_text
from harness.terminal.screen import ScreenReader
from harness.terminal.settling import looks_like_shell_prompt
from harness.terminal.spec import TerminalSpec
from harness.terminal.tap import DRAW, DrawnScreen, Recording, Tap
from harness.terminal.waiting import Waiting, Watcher
from harness.terminal.watch import Watch

_SHELL_SEC = 10.0
"""Longest wait for the first prompt; a shell without marks is used as it is."""
_HANDED_BACK_SEC = 1.0
"""Longest wait for what a person has typed to come to its end."""
KEYS_LOST = "keys_lost: The terminal was lost and opened again: what was typed last, or a part of it, is lost."
REOPENED = "terminal_reopened: The terminal was lost and opened again, with a new shell."


@dataclass(frozen=True)
class Settled:
    """How a wait ended: at the prompt (with the last exit code), or with the time that was given."""

    at_prompt: bool
    exit_code: int | None = None
    full_screen: bool = False
    """Whether the keys went to a full-screen program; only told for keys with a `shell_warning`."""


class Terminal:
    """One tmux session over one stream. Not safe for concurrent use, except `last_line`, `drawn` and `tapped`.

    Where the way to it is cut, it is tried again for `unreachable_sec`; `on_outage` is told of these seconds when that
    begins, and at its end, as a negative number, of those that were not needed.
    """

    def __init__(
        self,
        connect: Connect,
        spec: TerminalSpec | None = None,
        *,
        recording: Recording | None = None,
        settling: Settling = "adaptive",
        unreachable_sec: float = UNREACHABLE_SEC,
        on_outage: Callable[[float], None] = lambda _: None,
    ) -> None:
        spec = spec or TerminalSpec()
        self._recording = recording
        self._settling = settling
        self._notes: list[str] = []
        self._screen = ScreenReader()
        self._watch = Watch(self._screen, recording)
        self._link = Link(
            connect, spec, self._watch, unreachable_sec=unreachable_sec, on_outage=on_outage, remark=self._remark
        )
        watcher = Watcher(self._link, spec)
        self._waiting = Waiting(self._watch, self._link, watcher)
        self._keyboard = Keyboard(self._link, self._watch, self._waiting, watcher, self._show)
        self._delivery = Delivery(
            self._link, self._watch, self._waiting, watcher, spec, show=self._show, remark=self._remark
        )

    # -- opening, closing, and being cut off -----------------------------------------------------

    async def open(self) -> None:
        """Start the session and wait for its first prompt. Raises TerminalLost."""
        try:
            await self._link.open()
            await self._waiting.until_settled(_SHELL_SEC)
            await self._screen.note_place(self._link)
        except OSError as error:
            raise TerminalLost(f"tmux did not start: {error}") from error

    async def close(self) -> None:
        """End the client; the session lives on in its container."""
        for tap in self._watch.taps:
            tap.end()
        await self._link.close()
        if self._recording is not None:
            self._recording.close()

    async def _attached(self) -> None:
        """Attach again where the stream was cut; with a new session, wait for its first prompt."""
        while self._link.is_cut:
            if await self._link.reattach():
                if self._link.keys_lost:
                    self._notes.append(KEYS_LOST)
                await self._first_prompt()

    async def _first_prompt(self) -> None:
        self._notes.append(REOPENED)
        with contextlib.suppress(ConnectionError):
            await self._waiting.until_settled(_SHELL_SEC)
            await self._screen.note_place(self._link)

    def _remark(self, label: str) -> None:
        if self._recording is not None:
            self._recording.marker(label)

    def _show(self, typed: str) -> None:
        if self._recording is not None:
            self._recording.input(typed)

    def _take_notes(self) -> tuple[str, ...]:
        notes, self._notes = tuple(self._notes), []
        return notes

    # -- what an agent does ----------------------------------------------------------------------

    async def send(self, keys: Keys) -> Settled:
        """Type, then wait until the shell has settled or `duration_sec` has passed.

        Empty keystrokes wait the whole duration, as does everything in strict mode.
        Raises TerminalLost when the terminal is gone for good, TerminalUnreachable when nobody can tell.
        """
        await self._attached()
        ends_at = _now() + keys.duration_sec
        full_screen = keys.shell_warning is not None and await self._screen.is_full(self._link)
        try:
            await self._type(keys, ends_at)
        except KeysLost:
            self._notes.append(KEYS_LOST)
            await self._first_prompt()
        await self._wait(keys, ends_at)
        self._watch.capture.forget_background()
        shell = self._watch.shell
        return Settled(self._waiting.at_prompt, shell.exit_code if shell.at_prompt else None, full_screen)

    async def _type(self, keys: Keys, ends_at: float) -> None:
        if keys.key is not None:
            await self._keyboard.press(keys.key)
        elif keys.keystrokes:
            await self._keyboard.type(keys.keystrokes, ends_at)

    async def _wait(self, keys: Keys, ends_at: float) -> None:
        while True:
            try:
                if self._settling == "strict" or (keys.key is None and not keys.keystrokes):
                    await self._sleep_until(ends_at)
                return await self._waiting.until_settled(ends_at - _now())
            except ConnectionError:
                await self._attached()

    async def _sleep_until(self, ends_at: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(ends_at):
                await self._link.until_cut()

    async def run(self, command: str, limit_sec: float) -> CommandResult:
        """Run shell text to its end and return exactly what it printed.

        A command that outlives `limit_sec` is interrupted (C-c, C-\\, then its process group is killed, then the
        shell). Raises as `send` does.
        """
        await self._attached()
        result = await self._delivery.run(command, limit_sec)
        if self._delivery.session_ended:
            await self._first_prompt()
        return dataclasses.replace(result, notes=(*self._take_notes(), *result.notes))

    async def view(self) -> ScreenView:
        """The screen, and the text since the last view where that can be told. Raises as `send` does."""
        while True:
            await self._attached()
            with contextlib.suppress(ConnectionError):
                view = await self._screen.read(self._link)
                return dataclasses.replace(view, notes=self._take_notes()) if self._notes else view

    # -- what others do --------------------------------------------------------------------------

    async def drawn(self, tap: Tap | None = None) -> DrawnScreen:
        """The screen, at any time; `tap` goes on from there. Raises ConnectionError while the way to it is cut."""
        return DrawnScreen.read(await self._link.commands(*DRAW, at_end=None if tap is None else tap.drawn))

    @contextlib.contextmanager
    def tapped(self) -> Iterator[Tap]:
        """What the pane prints, during the block."""
        tap = Tap()
        self._watch.taps += (tap,)
        try:
            yield tap
        finally:
            self._watch.taps = tuple(each for each in self._watch.taps if each is not tap)

    def remark(self, label: str) -> None:
        """Put a remark into the recording."""
        self._remark(label)

    async def pass_on(self, data: bytes) -> None:
        """Type what a person types, while the agent rests. Raises as `send` does."""
        try:
            await self._keyboard.pass_on(data)
        except KeysLost:
            self._notes.append(KEYS_LOST)
            await self._first_prompt()

    async def handed_back(self) -> DrawnScreen | None:
        """Take what a person has left as seen: the screen then; None where nobody can tell. Raises as `send` does."""
        await self._attached()
        try:
            await self._waiting.until_settled(_HANDED_BACK_SEC)
            self._watch.capture.forget_background()
            await self._screen.note_place(self._link)
            return await self.drawn()
        except ConnectionError:
            return None

    def mark_step(self, number: int) -> None:
        """Mark in the recording that a step begins: the model is asked next."""
        self._remark(f"step {number}")

    def flush_recording(self) -> None:
        """Put what was recorded so far into its file."""
        if self._recording is not None:
            self._recording.flush()

    @property
    def recording_problem(self) -> str | None:
        """Why the recording is incomplete; None where it is whole."""
        return None if self._recording is None else self._recording.problem

    @property
    def last_line(self) -> str:
        """The last line that was printed and says something, for a live display: no empty one, no prompt."""
        # What was kept may begin within an escape sequence: what follows a line break is whole,
        # and what follows an ESC in a full-screen program.
        output = self._watch.last_output.replace(b"\r", b"\n")
        whole = output.partition(b"\n")[2] or output[max(0, output.find(b"\x1b")) :]
        lines = [line.strip() for line in reversed(plain_text(whole).split("\n")) if line.strip()]
        return next((line for line in lines if not looks_like_shell_prompt(line)), lines[0] if lines else "")


def _now() -> float:
    return asyncio.get_running_loop().time()
