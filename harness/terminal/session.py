"""A tmux session for an agent: type keystrokes, run commands, wait until the shell has settled, read the screen.

Others may watch at any time, and type while the agent is paused. Uses a tmux control client over one byte stream, and
is independent of containers.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.concurrency import loop_time
from harness.errors import TerminalLost
from harness.limits import Settling
from harness.protocols.base import CommandResult, Keys, ScreenView
from harness.stream import Connect
from harness.terminal.delivery import Delivery
from harness.terminal.keyboard import Keyboard
from harness.terminal.link import UNREACHABLE_SEC, KeysLost, Link, Typed
from harness.terminal.pane import PaneMonitor
from harness.terminal.plain_text import plain_text
from harness.terminal.screen import ScreenReader
from harness.terminal.settling import looks_like_shell_prompt
from harness.terminal.spec import COLUMNS, ROWS, TerminalSpec
from harness.terminal.tap import DRAW, DrawnScreen, Recording, Tap
from harness.terminal.waiting import ForegroundProbe, PromptWaiter

_SHELL_SEC = 10.0
"""Longest wait for the first prompt; a shell without marks is used anyway."""
_HANDED_BACK_SEC = 1.0
"""Longest wait for a person's last command to end."""
KEYS_LOST = "keys_lost: The terminal was lost and opened again: what was typed last, or a part of it, is lost."
_ALL = 1 << 30
"""More than any step's number of actions."""
REOPENED = "terminal_reopened: The terminal was lost and opened again, with a new shell."


@dataclass(frozen=True)
class Settled:
    """The end of a wait: at the prompt (with the last exit code), or by timeout."""

    at_prompt: bool
    exit_code: int | None = None
    full_screen: bool = False
    """Whether the keys went to a full-screen program; only determined for keys with a `shell_warning`."""


class Terminal:
    """One tmux session over one stream. Not safe for concurrent use, except `last_line`, `draw_screen` and `open_tap`.

    A lost connection is retried for `unreachable_sec`; `on_outage` receives these seconds when an outage begins, and
    the unused ones as a negative number when it ends.
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
        self._recording = recording or Recording(None, columns=COLUMNS, rows=ROWS)
        self._settling = settling
        self._notes: list[str] = []
        self._step, self._action = 0, 0
        """Numbers of the present step and action."""
        self._left = Typed()
        """Keys that an earlier process has typed."""
        self._screen = ScreenReader()
        self._pane = PaneMonitor(self._screen, self._recording)
        show, remark = self._recording.input, self._recording.marker
        self._link = Link(
            connect, spec, self._pane, unreachable_sec=unreachable_sec, on_outage=on_outage, remark=remark
        )
        probe = ForegroundProbe(self._link, spec)
        self._waiter = PromptWaiter(self._pane, self._link, probe)
        self._keyboard = Keyboard(self._link, self._pane, self._waiter, probe, show)
        self._delivery = Delivery(self._link, self._pane, self._waiter, probe, spec, show=show, remark=remark)

    # -- opening, closing, reattaching -----------------------------------------------------------

    async def open(self) -> None:
        """Start the session and wait for its first prompt. Raises TerminalLost."""
        try:
            await self._link.open()
            await self._waiter.wait_until_settled(_SHELL_SEC)
            await self._screen.mark_read(self._link)
        except OSError as error:
            raise TerminalLost(f"tmux did not start: {error}") from error

    async def go_on(self, step: int) -> int:
        """Attach to a session that another process has left, perhaps while it typed the actions of `step`.

        Keys that it has typed are not typed again. Returns the last step of which anything was typed. Raises
        TerminalLost.
        """
        try:
            left = await self._link.go_on()
            if left is None:
                # What the session had received is unknown: as after any loss, nothing is typed twice.
                left = Typed(step=step, action=_ALL)
                self._notes.append(KEYS_LOST)
                await self._first_prompt()
        except OSError as error:
            raise TerminalLost(f"tmux cannot be reached: {error}") from error
        self._left = left
        self.add_remark("another process continues: output in between is not recorded")
        return left.step

    async def close(self) -> None:
        """End the client; the session keeps running in its container."""
        for tap in self._pane.taps:
            tap.end()
        await self._link.close()
        self._recording.close()

    async def _ensure_attached(self) -> None:
        """Attach again if the stream was lost; wait for the first prompt of a new session."""
        while self._link.is_cut:
            if await self._link.reattach():
                if self._link.keys_lost:
                    self._notes.append(KEYS_LOST)
                await self._first_prompt()

    async def _first_prompt(self) -> None:
        self._notes.append(REOPENED)
        with contextlib.suppress(ConnectionError):
            await self._waiter.wait_until_settled(_SHELL_SEC)
            await self._screen.mark_read(self._link)

    def _take_notes(self) -> tuple[str, ...]:
        notes, self._notes = tuple(self._notes), []
        return notes

    # -- for the agent ---------------------------------------------------------------------------

    async def send(self, keys: Keys) -> Settled:
        """Type, then wait until the shell has settled or `duration_sec` has passed.

        Empty keystrokes wait the whole duration, as do all keys in strict mode. Raises TerminalLost if the terminal is
        gone for good, TerminalUnreachable if its state is unknown.
        """
        await self._ensure_attached()
        if (typed := self._begin_action()) is None:
            return Settled(self._waiter.at_prompt)
        ends_at = loop_time() + keys.duration_sec
        full_screen = keys.shell_warning is not None and await self._screen.is_full(self._link)
        try:
            await self._type(keys, ends_at, typed)
        except KeysLost:
            self._notes.append(KEYS_LOST)
            await self._first_prompt()
        await self._wait(keys, ends_at)
        self._pane.capture.discard_background()
        shell = self._pane.shell
        return Settled(self._waiter.at_prompt, shell.exit_code if shell.at_prompt else None, full_screen)

    def _begin_action(self) -> int | None:
        """Begin the next action; return how much of it an earlier process has typed, None if that process has gone
        further."""
        self._action += 1
        left = self._left
        if left.step != self._step or self._action > left.action:
            self._link.begin_action(self._step, self._action)
            return 0
        return left.reached if self._action == left.action else None

    async def _type(self, keys: Keys, ends_at: float, typed: int) -> None:
        if keys.key is not None:
            if not typed:
                await self._keyboard.press(keys.key)
        elif keys.keystrokes:
            await self._keyboard.type(keys.keystrokes, ends_at, typed)

    async def _wait(self, keys: Keys, ends_at: float) -> None:
        while True:
            try:
                if self._settling == "strict" or (keys.key is None and not keys.keystrokes):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(ends_at):
                            await self._link.wait_until_cut()
                return await self._waiter.wait_until_settled(ends_at - loop_time())
            except ConnectionError:
                await self._ensure_attached()

    async def run(self, command: str, limit_sec: float) -> CommandResult:
        """Run shell text to its end and return its exact output.

        A command that exceeds `limit_sec` is interrupted (C-c, C-\\, then its process group is killed, then the
        shell). Raises like `send`.
        """
        await self._ensure_attached()
        if (requested := self._begin_action()) is None:
            return CommandResult(output="", exit_code=None, notes=self._take_notes())
        result = await self._delivery.run(command, limit_sec, requested)
        if self._delivery.session_ended:
            await self._first_prompt()
        return dataclasses.replace(result, notes=(*self._take_notes(), *result.notes))

    async def view(self) -> ScreenView:
        """Return the screen, and the text since the last view if it can be determined. Raises like `send`."""
        while True:
            await self._ensure_attached()
            with contextlib.suppress(ConnectionError):
                view = await self._screen.read(self._link)
                return dataclasses.replace(view, notes=self._take_notes()) if self._notes else view

    # -- for others ------------------------------------------------------------------------------

    async def draw_screen(self, tap: Tap | None = None) -> DrawnScreen:
        """Return the current screen, which `tap` continues. Raises ConnectionError while the connection is lost."""
        return DrawnScreen.read(await self._link.commands(*DRAW, on_end=None if tap is None else tap.note_drawn))

    @contextlib.contextmanager
    def open_tap(self) -> Iterator[Tap]:
        """Provide a tap of the pane's output during the block."""
        tap = Tap()
        self._pane.taps += (tap,)
        try:
            yield tap
        finally:
            self._pane.taps = tuple(each for each in self._pane.taps if each is not tap)

    def add_remark(self, label: str) -> None:
        """Add a remark to the recording."""
        self._recording.marker(label)

    async def pass_on(self, data: bytes) -> None:
        """Type a person's keys, while the agent is paused. Raises like `send`."""
        try:
            await self._keyboard.pass_on(data)
        except KeysLost:
            self._notes.append(KEYS_LOST)
            await self._first_prompt()

    async def handed_back(self) -> DrawnScreen | None:
        """Mark everything that a person did as read, and return the screen; None if unknown. Raises like `send`."""
        await self._ensure_attached()
        try:
            await self._waiter.wait_until_settled(_HANDED_BACK_SEC)
            self._pane.capture.discard_background()
            await self._screen.mark_read(self._link)
            return await self.draw_screen()
        except ConnectionError:
            return None

    def mark_step(self, number: int) -> None:
        """Begin a step, before the model is queried, and mark it in the recording."""
        self._step, self._action = number, 0
        self.add_remark(f"step {number}")

    @property
    def had_visitors(self) -> bool:
        """Whether others have attached to the session that an earlier process has left."""
        return self._link.visitors > 0

    def flush_recording(self) -> None:
        """Write everything recorded so far to the file."""
        self._recording.flush()

    @property
    def recording_problem(self) -> str | None:
        """Reason why the recording is incomplete; None if it is complete."""
        return self._recording.problem

    @property
    def last_line(self) -> str:
        """Last printed line that is neither empty nor a prompt, for a live display."""
        # The kept output may begin within an escape sequence: it is complete after a line break, or after an ESC in a
        # full-screen program.
        output = self._pane.last_output.replace(b"\r", b"\n")
        whole = output.partition(b"\n")[2] or output[max(0, output.find(b"\x1b")) :]
        lines = [line.strip() for line in reversed(plain_text(whole).split("\n")) if line.strip()]
        return next((line for line in lines if not looks_like_shell_prompt(line)), lines[0] if lines else "")
