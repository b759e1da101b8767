"""A tmux session as an agent uses it: type keystrokes, wait until the shell has settled, read.

Speaks through a tmux control client over one byte stream; knows nothing of containers. Everything the pane
prints goes through here once: into the recording, past the marks that tell when a command has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness import control_mode
from harness.control_client import ControlClient, text
from harness.errors import TerminalLost
from harness.marks import CapturedOutput, Mark, MarkScanner, plain_text
from harness.protocols.base import CommandResult, Keys, ScreenView, View
from harness.recording import Recording
from harness.stream import Connect

COLUMNS, ROWS = 160, 40
HISTORY_LINES = 50_000
_SHELL_SEC = 10.0
"""How long the first prompt may take; a shell without marks is used as it is."""
_PROMPT_GRACE_SEC = 0.02
"""For prompts that no longer print the B mark (the agent set its own PS1)."""
_QUIET_SEC = 0.03
"""No new command for this long: settled, where one mark alone does not prove it."""
_UNANSWERED_SEC = 1.0
"""The same where typed lines are still unanswered: the next one may be at work, or a program has read them."""
_ESCALATION_SEC = 2.0
_REOPENINGS = 3
_VIEW_LINES = 5_000
"""Lines of head and of tail that are read; an observation holds fewer."""
# Whatever moves the cursor home or clears makes "new since last time" a guess.
_REDRAWN = re.compile(rb"\x1b(?:\[[23]?J|\[[0-9;]*H|c|\[\?1049[hl])")

Settling = Literal["adaptive", "strict"]


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
    environment: Mapping[str, str] = field(
        default_factory=lambda: {
            "TERM": "tmux-256color",
            "TERMINFO_DIRS": "/etc/terminfo:/lib/terminfo:/usr/share/terminfo:/opt/tbench/share/terminfo",
        }
    )

    def variables(self) -> dict[str, str]:
        """What tmux and with it the shell find in their environment."""
        return {**self.environment, "TBENCH_HISTORY_EXPANSION": "on" if self.history_expansion else "off"}

    def argv(self) -> list[str]:
        """The control client: attaches to the session, or makes it where there is none."""
        session = ["new-session", "-A", "-s", "main", "-x", str(COLUMNS), "-y", str(ROWS), *self.shell]
        return [self.tmux, "-u", "-f", self.config, "-S", self.socket, "-C", *session]


@dataclass(frozen=True)
class Settled:
    """How a wait ended: at the prompt (with the last exit code), or with the time that was given."""

    at_prompt: bool
    exit_code: int | None = None


class Terminal:
    """One tmux session over one stream. Not safe for concurrent use, except `last_line`."""

    def __init__(
        self,
        connect: Connect,
        spec: TerminalSpec | None = None,
        *,
        recording: Recording | None = None,
        settling: Settling = "adaptive",
    ) -> None:
        self._connect = connect
        self._spec = spec or TerminalSpec()
        self._recording = recording
        self._settling = settling
        self._reopened = 0
        self._reset()

    def _reset(self) -> None:
        self._settled = asyncio.Event()
        # A mark that comes before tmux has our keys is older than they are: waiting begins when it has them.
        self._client = ControlClient(
            on_output=self._take_output, on_keys=self._begin_waiting, on_lost=self._settled.set
        )
        self._scanner = MarkScanner()
        self._at_prompt = False
        self._exact = False
        self._unanswered = 0
        self._exit_code: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._capture: CapturedOutput | None = None
        self._capturing = False
        self._commands_seen = 0
        self._redrawn = False
        self._scrolled_at_most = 0
        self._base_line = 0
        self._base_history = 0
        self._last_output = b""

    # -- opening and closing ---------------------------------------------------------------------

    async def open(self) -> None:
        """Start (or attach to) the session and wait for its first prompt. Raises TerminalLost."""
        await self._client.open(self._connect, self._spec.argv(), self._spec.variables())
        try:
            await self._wait(_SHELL_SEC)
            await self._note_base()
        except ConnectionError as error:
            raise TerminalLost(f"tmux did not start: {error}") from error

    async def close(self) -> None:
        """End the client; the session lives on in its container."""
        if self._timer is not None:
            self._timer.cancel()
        await self._client.close()
        if self._recording is not None:
            self._recording.close()

    async def _reopen_if_lost(self) -> None:
        # Before typing: what was typed into a terminal that was lost meanwhile is not typed again.
        if self._client.lost.is_set():
            await self._reopen()

    async def _reopen(self) -> None:
        """A new client, and a new session where the old one is gone (the agent killed tmux)."""
        if self._reopened >= _REOPENINGS:
            raise TerminalLost(f"the terminal was lost {_REOPENINGS + 1} times")
        self._reopened += 1
        await self._client.close()
        self._reset()
        if self._recording is not None:
            self._recording.marker("the terminal was lost and opened again")
        await self.open()

    # -- what an agent does ----------------------------------------------------------------------

    async def send(self, keys: Keys) -> Settled:
        """Type, then wait until the shell has settled or `duration_sec` has passed.

        Empty keystrokes wait the whole duration, as does everything in strict mode.
        Raises TerminalLost when the terminal is gone for good.
        """
        await self._reopen_if_lost()
        try:
            await self._send(keys)
        except ConnectionError:
            await self._reopen()
        return Settled(self._at_prompt, self._exit_code if self._at_prompt else None)

    async def _send(self, keys: Keys) -> None:
        started = time.monotonic()
        if keys.key is not None:
            await self._press(keys.key)
        elif keys.keystrokes:
            await self._type_text(keys.keystrokes)
        left_sec = keys.duration_sec - (time.monotonic() - started)
        if self._settling == "strict" or (keys.key is None and not keys.keystrokes):
            await self._sleep(left_sec)
        else:
            await self._wait(left_sec)

    async def run(self, command: str, limit_sec: float) -> View:
        """Run shell text to its end and return exactly what it printed.

        A command that outlives `limit_sec` is interrupted (C-c, C-\\, then its process group is killed).
        Where the shell has no marks, the screen after the limit or a quiet prompt is returned instead.
        """
        await self._reopen_if_lost()
        try:
            result = await self._run(command, limit_sec)
        except ConnectionError:
            await self._reopen()
            result = None
        return result if result is not None else await self.view()

    async def _run(self, command: str, limit_sec: float) -> CommandResult | None:
        self._capture, self._commands_seen = CapturedOutput(), 0
        await self._type_text(_quoted(command.rstrip("\n")) + "\n")
        await self._wait(limit_sec)
        timed_out = not self._at_prompt
        if timed_out:
            await self._interrupt()
        capture, self._capture = self._capture, None
        if not self._commands_seen:
            return None
        return CommandResult(
            output=capture.text(),
            exit_code=None if timed_out else self._exit_code,
            timed_out=timed_out,
            elided_bytes=capture.elided_bytes,
        )

    async def view(self) -> ScreenView:
        """The screen, and the text since the last view where that can be told. Raises TerminalLost."""
        try:
            return await self._view()
        except ConnectionError:
            await self._reopen()
        try:
            return await self._view()
        except ConnectionError as error:
            raise TerminalLost(str(error)) from error

    async def _view(self) -> ScreenView:
        history, cursor, alternate = await self._position()
        screen = await self._capture_pane()
        start = None if alternate else self._first_new_line(history, cursor)
        new_output, elided = None, 0
        if start is not None:
            new_output, elided = await self._lines_between(start, cursor)
        self._base_line, self._base_history = history + cursor, history
        self._redrawn, self._scrolled_at_most = alternate, 0
        return ScreenView(screen=screen, new_output=new_output, elided_lines=elided)

    def _first_new_line(self, history: int, cursor: int) -> int | None:
        """Line (0 is the top of the screen) where new text starts; None where that cannot be told."""
        base_line = self._base_line
        if self._redrawn:
            return None
        if self._base_history + self._scrolled_at_most >= HISTORY_LINES:
            # A full history loses a tenth of its lines at once; once is seen, twice would be guessed.
            if self._scrolled_at_most >= HISTORY_LINES // 10:
                return None
            if history < self._base_history:
                base_line -= HISTORY_LINES // 10
        elif history < self._base_history:
            return None
        start = base_line - history
        return start if -history <= start <= cursor else None

    @property
    def last_line(self) -> str:
        """The last non-empty line that was printed, for a live display."""
        # What was kept may begin within an escape sequence: what follows a line break is whole,
        # and what follows an ESC in a full-screen program.
        output = self._last_output.replace(b"\r", b"\n")
        whole = output.partition(b"\n")[2] or output[max(0, output.find(b"\x1b")) :]
        return next((line.strip() for line in reversed(plain_text(whole).split("\n")) if line.strip()), "")

    # -- typing and waiting ----------------------------------------------------------------------

    async def _type_text(self, text: str) -> None:
        data = text.replace("\r\n", "\n").replace("\n", "\r").encode("utf-8", "replace")
        self._unanswered += data.count(b"\r")
        await self._type(control_mode.type_bytes("main", data), shown=text)

    async def _press(self, key: str) -> None:
        # Whatever lines still wait, a key like C-c may have thrown them away.
        self._unanswered = 0
        await self._type([control_mode.press_key("main", key)], shown=key)

    async def _type(self, commands: Sequence[bytes], *, shown: str) -> None:
        # From an idle prompt one line gives one mark, which is proof; anything else is confirmed by quiet.
        self._exact = self._at_prompt and self._unanswered == 1 and len(commands) == 1
        self._begin_waiting()
        if self._recording is not None:
            self._recording.input(shown)
        await self._client.command(*commands, keystrokes=True)

    def _begin_waiting(self) -> None:
        self._settled.clear()
        self._at_prompt = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wait(self, duration_sec: float) -> None:
        """Until settled or the time is over. Raises ConnectionError when the stream ended."""
        await self._until(self._settled, duration_sec)

    async def _sleep(self, duration_sec: float) -> None:
        await self._until(self._client.lost, duration_sec)

    async def _until(self, event: asyncio.Event, duration_sec: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(duration_sec, 0.0)):
                await event.wait()
        if self._client.lost.is_set():
            raise ConnectionResetError(self._client.why_lost)

    async def _interrupt(self) -> None:
        for key in ("C-c", "C-\\"):
            await self._press(key)
            await self._wait(_ESCALATION_SEC)
            if self._at_prompt:
                return
        self._exact = False
        await self._client.command(b"respawn-pane -k -t main\n", keystrokes=True)
        await self._wait(_SHELL_SEC)

    # -- reading ---------------------------------------------------------------------------------

    async def _position(self) -> tuple[int, int, bool]:
        reply = await self._client.command(
            b"display-message -p -t main '#{history_size} #{cursor_y} #{alternate_on}'\n"
        )
        history, cursor, alternate = text(reply.lines).split()
        return int(history), int(cursor), alternate == "1"

    async def _note_base(self) -> None:
        self._base_history, cursor, _ = await self._position()
        self._base_line = self._base_history + cursor
        self._redrawn, self._scrolled_at_most = False, 0

    async def _capture_pane(self, start: int | None = None, end: int | None = None) -> str:
        span = "" if start is None else f" -J -S {start} -E {end}"
        reply = await self._client.command(f"capture-pane -p -t main{span}\n".encode())
        text = b"\n".join(line.rstrip() for line in reply.lines).decode("utf-8", "replace")
        return text.rstrip("\n")

    async def _lines_between(self, start: int, end: int) -> tuple[str, int]:
        """Lines from `start` to `end` (0 is the top of the screen), the middle left out where there are many."""
        elided = end - start + 1 - 2 * _VIEW_LINES
        if elided <= 0:
            return await self._capture_pane(start, end), 0
        head = await self._capture_pane(start, start + _VIEW_LINES - 1)
        tail = await self._capture_pane(end - _VIEW_LINES + 1, end)
        return f"{head}\n[… {elided} lines left out …]\n{tail}", elided

    # -- the output ------------------------------------------------------------------------------

    def _take_output(self, data: bytes) -> None:
        if self._recording is not None:
            self._recording.output(data)
        self._last_output = (self._last_output + data[-400:])[-400:]
        self._scrolled_at_most += data.count(b"\n") + len(data) // COLUMNS
        if not self._redrawn and b"\x1b" in data and _REDRAWN.search(data):
            self._redrawn = True
        for piece in self._scanner.feed(data):
            if isinstance(piece, Mark):
                self._take_mark(piece)
            elif self._capturing and self._capture is not None:
                self._capture.append(piece)

    def _take_mark(self, mark: Mark) -> None:
        match mark.kind:
            case "C":
                self._begin_waiting()
                self._capturing = True
                self._commands_seen += 1
            case "D":
                self._capturing = False
                self._exit_code = mark.exit_code
                self._unanswered -= 1
                if not mark.pending:
                    self._settle_after(self._quiet_sec(mark))
            case "P":
                self._begin_waiting()
                self._unanswered -= 1
            case "B":
                if self._timer is not None and self._exact:
                    self._settle()

    def _quiet_sec(self, mark: Mark) -> float:
        if mark.pending is None and self._unanswered > 0:
            return _UNANSWERED_SEC
        return _PROMPT_GRACE_SEC if self._exact and mark.pending is False else _QUIET_SEC

    def _settle_after(self, delay_sec: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_sec, self._settle)

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unanswered = 0
        self._at_prompt = True
        self._settled.set()


def _quoted(command: str) -> str:
    """Control characters behind C-v: a tab in a here-document must arrive as one, not complete a file name."""
    return re.sub(r"[\x01-\x09\x0b-\x1f\x7f]", "\x16\\g<0>", command.replace("\r\n", "\n").replace("\0", ""))
