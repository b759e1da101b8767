"""One tmux control client over one byte stream: commands go in, replies and the pane's output come back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import TerminalLost
from harness.stream import ByteStream, Connect
from harness.terminal import control_mode
from harness.terminal.control_mode import CommandReply, Output
from harness.turns import cancel

_ANSWER_SEC = 20.0
"""Longest time for any answer of tmux itself, which takes less than a millisecond."""
_START_SEC = 60.0
_BYTES_PER_SEC = 100_000
"""The rate by which typing a large text is given more time."""
_FLOOD_BYTES = 1 << 20
_FLOOD_PAUSE_SEC = 0.005
"""How long bytes are left to collect in the socket during a flood: fewer, larger reads cost far less. tmux stops
reading the pane when we fall behind, so nothing is lost and nothing piles up here."""


class Silent(ConnectionResetError):
    """Raised where no answer came in time."""


@dataclass
class _Batch:
    """Commands that were sent together, and what has come back so far."""

    size: int
    done: asyncio.Future[list[CommandReply]]
    due_at: float
    """The event loop's time at which the answer is overdue."""
    at_end: Callable[[], None] | None = None
    """Called at the place in the stream where the last reply ends."""
    replies: list[CommandReply] = field(default_factory=list)


class ControlClient:
    """A client that sends commands, which are answered in order, and hands output on as it is read.

    `on_keys` is called at the place in the stream where tmux has taken what was typed, `on_lost` at its end.
    """

    def __init__(
        self, *, on_output: Callable[[bytes], None], on_keys: Callable[[], None], on_lost: Callable[[], None]
    ) -> None:
        self._on_output = on_output
        self._on_keys = on_keys
        self._on_lost = on_lost
        self._stream: ByteStream | None = None
        self._reader: asyncio.Task[None] | None = None
        self._parser = control_mode.Parser()
        self._waiting: deque[_Batch] = deque()
        self._since_command = 0
        self._watchdog: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()
        self.why_lost = "the terminal's stream ended"

    async def open(self, connect: Connect, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        """Attach. Raises TerminalLost with tmux's own words, and OSError where `connect` does."""
        try:
            await self._open(connect, argv, variables)
        except BaseException:
            await self.close()
            raise

    async def _open(self, connect: Connect, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        attached = self._expect(1, sec=_START_SEC)
        try:
            async with asyncio.timeout(_START_SEC):
                self._stream = await connect(argv, variables)
                self._reader = asyncio.create_task(self._read(self._stream), name="terminal reader")
                await asyncio.wait([attached])
        except TimeoutError:
            raise TerminalLost(f"tmux did not answer within {_START_SEC:.0f} s") from None
        if (error := attached.exception()) is not None:
            raise TerminalLost(f"tmux did not start: {error}")
        (reply,) = attached.result()
        if not reply.ok:
            raise TerminalLost(f"tmux refused the session: {text(reply.lines)}")

    async def close(self) -> None:
        """End the client; the session lives on where it is."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        try:
            if self._closing is not None:
                await self._closing
            elif self._stream is not None:
                await self._stream.close()
        finally:
            if self._reader is not None:
                await cancel(self._reader)

    async def commands(
        self, *commands: bytes, replies: int | None = None, at_end: Callable[[], None] | None = None
    ) -> list[CommandReply]:
        """Send command lines in one go, and return their replies: `replies` in all where a line holds several commands.

        `at_end` is called at the place in the stream where the replies end. Raises ConnectionError, also where no reply
        comes in time.
        """
        return await (await self._send(commands, replies or len(commands), at_end=at_end))

    async def type(self, *commands: bytes, replies: int) -> asyncio.Future[list[CommandReply]]:
        """Send command lines that type, and return the batch that their replies come into. Raises ConnectionError."""
        # Here and not in the waiting task, which wakes later than a fast shell answers.
        return await self._send(commands, replies, at_end=self._on_keys)

    async def _send(
        self, commands: Sequence[bytes], replies: int, *, at_end: Callable[[], None] | None
    ) -> asyncio.Future[list[CommandReply]]:
        if self.lost.is_set() or self._stream is None:
            raise ConnectionResetError(self.why_lost)
        data = b"".join(commands)
        done = self._expect(replies, at_end=at_end, sec=_ANSWER_SEC + len(data) / _BYTES_PER_SEC)
        self._since_command = 0
        try:
            await self._stream.write(data)
        except ConnectionError:
            self.lost.set()
            raise
        return done

    def _expect(
        self, replies: int, *, sec: float, at_end: Callable[[], None] | None = None
    ) -> asyncio.Future[list[CommandReply]]:
        loop = asyncio.get_running_loop()
        batch = _Batch(replies, loop.create_future(), loop.time() + sec, at_end)
        self._waiting.append(batch)
        if self._watchdog is None:
            self._watchdog = loop.call_at(batch.due_at, self._check_overdue)
        return batch.done

    def _check_overdue(self) -> None:
        """End a stream whose oldest answer is overdue. One timer serves all answers: one for each would be costly."""
        self._watchdog = None
        if not self._waiting or self._stream is None:
            return
        loop, due_at = asyncio.get_running_loop(), self._waiting[0].due_at
        if due_at > loop.time():
            self._watchdog = loop.call_at(due_at, self._check_overdue)
        else:
            # The way to it may be what hangs: whoever asked tries a new one, which tells.
            self._fail(Silent("tmux stopped answering"))
            self._closing = loop.create_task(self._stream.close(), name="closing a silent terminal")

    def _fail(self, error: ConnectionError) -> None:
        self.lost.set()
        self._on_lost()
        for batch in self._waiting:
            if not batch.done.done():
                batch.done.set_exception(error)
                batch.done.exception()  # nobody may be waiting for it

    async def _read(self, stream: ByteStream) -> None:
        try:
            await stream.pass_on(self._read_on)
        except OSError as error:
            self.why_lost = str(error)
        finally:
            self._fail(ConnectionResetError(self.why_lost))

    def _read_on(self, data: bytes) -> float:
        for event in self._parser.feed(data):
            self._handle(event)
        self._since_command += len(data)
        return _FLOOD_PAUSE_SEC if self._since_command > _FLOOD_BYTES else 0.0

    def _handle(self, event: control_mode.Event) -> None:
        if isinstance(event, Output):
            self._on_output(event.data)
        elif isinstance(event, CommandReply):
            self._take_reply(event)
        elif event.name == "exit" and event.arguments:
            self.why_lost = f"tmux ended: {text([event.arguments])}"

    def _take_reply(self, reply: CommandReply) -> None:
        if not self._waiting:
            return
        batch = self._waiting[0]
        batch.replies.append(reply)
        if len(batch.replies) < batch.size:
            return
        self._waiting.popleft()
        if batch.at_end is not None:
            batch.at_end()
        if not batch.done.done():
            batch.done.set_result(batch.replies)


def text(lines: Sequence[bytes]) -> str:
    """Reply lines as one line of text."""
    return b" ".join(lines).decode("utf-8", "replace")
