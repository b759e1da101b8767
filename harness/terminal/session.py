"""A tmux session as an agent uses it: type keystrokes, wait until the shell has settled, read.

Speaks through a tmux control client over one byte stream; knows nothing of containers. Everything the pane
prints goes through here once: into the recording, past the marks that tell when a command has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.errors import TerminalLost, TerminalUnreachable
from harness.protocols.base import CommandResult, Keys, ScreenView, View
from harness.stream import Connect
from harness.terminal import control_mode
from harness.terminal.control_client import ControlClient, Silent, text
from harness.terminal.marks import Mark, MarkScanner
from harness.terminal.plain_text import PlainText, plain_text
from harness.terminal.recording import Recording
from harness.terminal.screen import COLUMNS, HISTORY_LINES, ROWS, ScreenReader
from harness.terminal.settling import ShellState

__all__ = ["COLUMNS", "HISTORY_LINES", "ROWS", "Settled", "Settling", "ShellMode", "Terminal", "TerminalSpec"]

_SHELL_SEC = 10.0
"""How long the first prompt may take; a shell without marks is used as it is."""
_ESCALATION_SEC = 2.0
_REOPENINGS = 3
"""New sessions after the agent killed tmux."""
_REATTACHMENTS = 100
UNREACHABLE_SEC = 120.0
"""How long a terminal may be out of reach, as while an engine restarts."""
_LONGEST_PAUSE_SEC = 2.0
_AFTER_GAP_SEC = 5.0
"""The mark that is waited for may have passed unseen: the wait is cut to this after the stream was lost."""
_WAS_HERE = b"show-options -qv -t main @tbench\n"
_LEAVE_TRACE = b"set-option -t main @tbench 1\n"
_SYNC = b"display-message -p ''\n"

Settling = Literal["adaptive", "strict"]
ShellMode = Literal["persistent", "fresh"]


@dataclass(frozen=True)
class TerminalSpec:
    """Where tmux and its files are, on the side where the terminal lives."""

    tmux: str = "/opt/tbench/bin/tmux"
    config: str = "/opt/tbench/share/tmux.conf"
    socket: str = "/opt/tbench/run/tmux"
    shell: Sequence[str] = ("/opt/tbench/bin/busybox", "sh", "/opt/tbench/share/shell")
    """At least two words: one alone tmux would hand to the user's login shell, which may be nologin."""
    history_expansion: bool = True
    """Bash's own default for a person at the keyboard; without it `!` is text."""
    shell_mode: ShellMode = "persistent"
    """Whether `run` types every command into the one shell, or starts a process for each: in the start directory,
    without a terminal, with EOF on stdin."""
    kill_foreground: str = "/opt/tbench/bin/busybox sh /opt/tbench/share/kill-foreground"
    """Run by tmux with the pid of the terminal's first process: kills what is in the foreground."""
    environment: Mapping[str, str] = field(
        default_factory=lambda: {
            "TERM": "tmux-256color",
            "LOCPATH": "/opt/tbench/share/locale",
            "TERMINFO_DIRS": "/etc/terminfo:/lib/terminfo:/usr/share/terminfo:/opt/tbench/share/terminfo",
        }
    )

    def variables(self) -> dict[str, str]:
        """What tmux and with it the shell find in their environment."""
        return {**self.environment, "TBENCH_HISTORY_EXPANSION": "on" if self.history_expansion else "off"}

    def argv(self) -> list[str]:
        """The control client: attaches to the session, or makes it where there is none."""
        # -D: a client that lost its way must not stay attached and keep the pane waiting for it.
        session = ["new-session", "-A", "-D", "-s", "main", "-x", str(COLUMNS), "-y", str(ROWS), *self.shell]
        return [self.tmux, "-u", "-f", self.config, "-S", self.socket, "-C", *session]


@dataclass(frozen=True)
class Settled:
    """How a wait ended: at the prompt (with the last exit code), or with the time that was given."""

    at_prompt: bool
    exit_code: int | None = None


class Terminal:
    """One tmux session over one stream. Not safe for concurrent use, except `last_line`.

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
        self._connect = connect
        self._unreachable_sec = unreachable_sec
        self._on_outage = on_outage
        self._spec = spec or TerminalSpec()
        self._recording = recording
        self._settling = settling
        self._reopened = 0
        self._reattached = 0
        self._changed = asyncio.Event()
        self._client = self._new_client()
        self._scanner = MarkScanner()
        self._shell = ShellState()
        self._screen = ScreenReader()
        self._marks = 0
        self._last_mark_at = 0.0
        self._capture: PlainText | None = None
        self._capturing = False
        self._last_output = b""

    def _new_client(self) -> ControlClient:
        return ControlClient(on_output=self._take_output, on_keys=self._keys_arrived, on_lost=self._changed.set)

    # -- opening, closing, and being cut off -----------------------------------------------------

    async def open(self) -> None:
        """Start the session and wait for its first prompt. Raises TerminalLost."""
        try:
            await self._attach()
            await self._until_settled(_SHELL_SEC)
            await self._screen.note_place(self._client)
        except OSError as error:
            raise TerminalLost(f"tmux did not start: {error}") from error

    async def close(self) -> None:
        """End the client; the session lives on in its container."""
        await self._client.close()
        if self._recording is not None:
            self._recording.close()

    async def _attach(self) -> bool:
        """Whether the session is a new one. Raises TerminalLost, and OSError where it cannot be reached."""
        self._scanner, self._capturing = MarkScanner(), False
        await self._client.open(self._connect, self._spec.argv(), self._spec.variables())
        try:
            was_here, _ = await self._client.commands(_WAS_HERE, _LEAVE_TRACE)
        except Silent as error:
            raise TerminalLost(str(error)) from None
        return not text(was_here.lines)

    async def _reopen_if_lost(self) -> None:
        # Before typing: what was typed into a terminal that was lost meanwhile is not typed again.
        if self._client.lost.is_set():
            await self._reopen()

    async def _reopen(self, wait_sec: float = 0.0) -> None:
        """A new client on the session, or on a new one where the agent killed tmux; then wait until settled."""
        while True:
            is_new = await self._reattach()
            with contextlib.suppress(ConnectionError):
                await self._until_settled(_SHELL_SEC if is_new else min(wait_sec, _AFTER_GAP_SEC))
                if is_new:
                    await self._screen.note_place(self._client)
                return

    async def _reattach(self) -> bool:
        """Whether the session is a new one. Raises TerminalLost, TerminalUnreachable."""
        if self._reopened > _REOPENINGS or self._reattached > _REATTACHMENTS:
            raise TerminalLost(f"the terminal was lost {self._reopened + self._reattached} times")
        is_new = await self._attach_again()
        if is_new:
            self._reopened += 1
            self._remark("the terminal was lost and opened again")
        else:
            self._reattached += 1
            self._remark("the connection was lost and made again: what was printed meanwhile is not recorded")
        if self._reopened > _REOPENINGS:
            await self._client.close()
            raise TerminalLost(f"the terminal was lost {self._reopened} times")
        return is_new

    async def _attach_again(self) -> bool:
        ends_at = _now() + self._unreachable_sec
        self._on_outage(self._unreachable_sec)
        try:
            return await self._attach_until(ends_at)
        finally:
            self._on_outage(_now() - ends_at)

    async def _attach_until(self, ends_at: float) -> bool:
        pause_sec = 0.05
        while True:
            await self._client.close()
            self._client = self._new_client()
            # Before attaching: the marks of a new session may come at once. Those of an old one may have passed unseen.
            self._shell = ShellState()
            self._shell.lose_sight()
            self._screen.lose_place()
            try:
                return await self._attach()
            except OSError as error:
                if _now() > ends_at:
                    raise TerminalUnreachable(f"out of reach for {self._unreachable_sec:g} s: {error}") from error
            await asyncio.sleep(pause_sec)
            pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)

    def _remark(self, label: str) -> None:
        if self._recording is not None:
            self._recording.marker(label)

    # -- what an agent does ----------------------------------------------------------------------

    async def send(self, keys: Keys) -> Settled:
        """Type, then wait until the shell has settled or `duration_sec` has passed.

        Empty keystrokes wait the whole duration, as does everything in strict mode.
        Raises TerminalLost when the terminal is gone for good, TerminalUnreachable when nobody can tell.
        """
        await self._reopen_if_lost()
        ends_at = _now() + keys.duration_sec
        try:
            await self._send(keys, ends_at)
        except ConnectionError:
            await self._reopen(ends_at - _now())
        return Settled(self._shell.at_prompt, self._shell.exit_code if self._shell.at_prompt else None)

    async def _send(self, keys: Keys, ends_at: float) -> None:
        if keys.key is not None:
            await self._press(keys.key)
        elif keys.keystrokes:
            await self._type_text(keys.keystrokes, keys.keystrokes)
        if self._settling == "strict" or (keys.key is None and not keys.keystrokes):
            await self._sleep_until(ends_at)
        await self._until_settled(ends_at - _now())

    async def run(self, command: str, limit_sec: float) -> View:
        """Run shell text to its end and return exactly what it printed.

        A command that outlives `limit_sec` is interrupted (C-c, C-\\, then its process group is killed, then the
        shell). Where the shell has no marks, the screen after the limit or a quiet prompt is returned instead.
        Raises as `send` does.
        """
        await self._reopen_if_lost()
        ends_at = _now() + limit_sec
        try:
            result = await self._run(command, limit_sec)
        except ConnectionError:
            self._capture = None
            await self._reopen(ends_at - _now())
            result = None
        return result if result is not None else await self.view()

    async def _run(self, command: str, limit_sec: float) -> CommandResult | None:
        self._capture, commands = PlainText(), self._shell.commands
        line = command.rstrip("\n") + "\n"
        await self._type_text(_quoted(line), line)
        await self._until_settled(limit_sec)
        timed_out = not self._shell.at_prompt
        if timed_out:
            await self._interrupt()
        capture, self._capture = self._capture, None
        if self._shell.commands == commands:
            return None
        captured = capture.captured()
        exit_code = None if timed_out else self._shell.exit_code
        return CommandResult(captured.text, exit_code, timed_out, captured.gap)

    async def view(self) -> ScreenView:
        """The screen, and the text since the last view where that can be told. Raises as `send` does."""
        for _ in range(2):
            try:
                return await self._screen.read(self._client)
            except ConnectionError:
                await self._reopen()
        raise TerminalLost(self._client.why_lost)

    @property
    def recording_problem(self) -> str | None:
        """Why the recording is incomplete, where it is."""
        return None if self._recording is None else self._recording.problem

    @property
    def last_line(self) -> str:
        """The last non-empty line that was printed, for a live display."""
        # What was kept may begin within an escape sequence: what follows a line break is whole,
        # and what follows an ESC in a full-screen program.
        output = self._last_output.replace(b"\r", b"\n")
        whole = output.partition(b"\n")[2] or output[max(0, output.find(b"\x1b")) :]
        return next((line.strip() for line in reversed(plain_text(whole).split("\n")) if line.strip()), "")

    # -- typing and waiting ----------------------------------------------------------------------

    async def _type_text(self, typed: str, meant: str) -> None:
        """Type `typed`; the shell reads it as the lines of `meant`."""
        self._shell.typed(meant.replace("\r\n", "\n").replace("\r", "\n"))
        data = typed.replace("\r\n", "\n").replace("\n", "\r").encode("utf-8", "replace")
        await self._type(control_mode.type_bytes("main", data), shown=typed)

    async def _press(self, key: str) -> None:
        self._shell.pressed(key)
        await self._type([control_mode.press_key("main", key)], shown=key)

    async def _type(self, commands: Sequence[bytes], *, shown: str) -> None:
        if self._recording is not None:
            self._recording.input(shown)
        await self._client.commands(*commands, keystrokes=True)

    def _keys_arrived(self) -> None:
        self._shell.keys_arrived()

    async def _until_settled(self, duration_sec: float) -> None:
        """Until settled or the time is over. Raises ConnectionError when the stream ended."""
        ends_at = _now() + duration_sec
        while True:
            if self._client.lost.is_set():
                raise ConnectionResetError(self._client.why_lost)
            wait_sec = self._shell.wait_sec
            if wait_sec == 0:
                return
            quiet_at = math.inf if wait_sec is None else self._last_mark_at + wait_sec
            if quiet_at <= _now():
                if await self._nothing_is_on_its_way():
                    self._shell.settle()
            elif _now() >= ends_at:
                return
            else:
                await self._changes(min(quiet_at, ends_at))

    async def _nothing_is_on_its_way(self) -> bool:
        # On a busy machine quiet may only mean that nothing was read yet; tmux answers behind its output.
        marks = self._marks
        await self._client.commands(_SYNC)
        return self._marks == marks

    async def _changes(self, until: float) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()

    async def _sleep_until(self, ends_at: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(ends_at):
                await self._client.lost.wait()

    async def _interrupt(self) -> None:
        """Gently first; the shell with its variables and directory goes last."""
        self._remark("the command has outlived its limit: it is interrupted")
        for key in ("C-c", "C-\\"):
            await self._press(key)
            await self._until_settled(_ESCALATION_SEC)
            if self._shell.at_prompt:
                return
        self._remark("the command does not react: it is killed")
        await self._client.commands(f"run-shell -t main '{self._spec.kill_foreground} #{{pane_pid}}'\n".encode())
        await self._until_settled(_ESCALATION_SEC)
        if not self._shell.at_prompt:
            self._remark("the shell is started anew")
            self._shell = ShellState()
            await self._client.commands(b"respawn-pane -k -t main\n", keystrokes=True)
            await self._until_settled(_SHELL_SEC)

    # -- the output ------------------------------------------------------------------------------

    def _take_output(self, data: bytes) -> None:
        if self._recording is not None:
            self._recording.output(data)
        self._last_output = (self._last_output + data[-400:])[-400:]
        self._screen.follow(data)
        for piece in self._scanner.feed(data):
            if isinstance(piece, Mark):
                self._take_mark(piece)
            elif self._capturing and self._capture is not None:
                self._capture.append(piece)

    def _take_mark(self, mark: Mark) -> None:
        if mark.kind in "CD":
            self._capturing = mark.kind == "C"
        self._marks += 1
        self._last_mark_at = _now()
        self._shell.take(mark)
        self._changed.set()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _quoted(command: str) -> str:
    """Control characters behind C-v: a tab in a here-document must arrive as one, not complete a file name."""
    return re.sub(r"[\x01-\x09\x0b-\x1f\x7f]", "\x16\\g<0>", command.replace("\r\n", "\n").replace("\0", ""))
