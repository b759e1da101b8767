"""tmux's control mode: its wire protocol, and a client for it over one byte stream.

Source: tmux(1), section CONTROL MODE; checked against tmux 3.3a.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.concurrency import cancel
from harness.errors import TerminalLost
from harness.stream import ByteStream, Connect


class Output(NamedTuple):
    """Bytes that a pane printed, unescaped."""

    pane: str
    data: bytes


class CommandReply(NamedTuple):
    """The answer to one command: the lines between %begin and %end, or %error."""

    ok: bool
    lines: tuple[bytes, ...]


class Notification(NamedTuple):
    """Any other line that starts with %, such as %session-changed or %exit."""

    name: str
    arguments: bytes


Event = Output | CommandReply | Notification

_OCTAL = re.compile(rb"\\([0-7]{3})")
_FREQUENT = (
    (b"\\015\\012", b"\r\n"),
    (b"\\012", b"\n"),
    (b"\\015", b"\r"),
    (b"\\033", b"\x1b"),
    (b"\\011", b"\t"),
)


def unescape(data: bytes) -> bytes:
    r"""Undo tmux's octal escapes (`\033`, `\134`).

    Every backslash of the escaped text starts an escape, so plain replacements are exact as long as the backslash
    itself is replaced last; they are far faster than a regular expression on floods of output.
    """
    if b"\\" not in data:
        return data
    for escaped, plain in _FREQUENT:
        data = data.replace(escaped, plain)
    if b"\\" not in data:
        return data
    return _OCTAL.sub(lambda match: bytes((int(match[1], 8) & 0xFF,)), data)


class Parser:
    """Splits a control client's stream into events. Lines may have any length and arrive in any pieces."""

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._block: list[bytes] | None = None
        self._ends: tuple[bytes, bytes] = (b"", b"")
        """The lines that can end the current block: %end and %error with the block's numbers."""

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes, in order."""
        head, newline, rest = data.partition(b"\n")
        if not newline:
            self._tail.append(data)
            return []
        lines = [b"".join((*self._tail, head)), *rest.split(b"\n")]
        last = lines.pop()
        self._tail = [last] if last else []
        events: list[Event] = []
        at = 0
        while at < len(lines):
            if self._block is not None:
                at = self._read_block(self._block, lines, at, events)
                continue
            if (event := self._line(lines[at])) is not None:
                events.append(event)
            at += 1
        return events

    def _line(self, line: bytes) -> Event | None:
        if line.startswith(b"%output "):
            pane, _, data = line[len(b"%output ") :].partition(b" ")
            return Output(pane.decode("ascii", "replace"), unescape(data))
        if line.startswith(b"%begin "):
            numbers = line[len(b"%begin ") :]
            self._block, self._ends = [], (b"%end " + numbers, b"%error " + numbers)
            return None
        if line.startswith(b"%"):
            name, _, arguments = line[1:].partition(b" ")
            return Notification(name.decode("ascii", "replace"), arguments)
        return None

    def _read_block(self, block: list[bytes], lines: list[bytes], start: int, events: list[Event]) -> int:
        """Add lines from `start` on to the block, and return the index of the first line after it."""
        # A screen may show a line that looks like %end: only one with the block's numbers ends it.
        end = len(lines)
        for line in self._ends:
            end = _index(lines, line, start, end)
        if end == len(lines):
            block += lines[start:]
            return end
        block += lines[start:end]
        events.append(CommandReply(lines[end] == self._ends[0], tuple(block)))
        self._block = None
        return end + 1


def _index(lines: list[bytes], line: bytes, start: int, stop: int) -> int:
    """Return the index of `line` in `lines` from `start` on; `stop` if it is not found before that."""
    try:
        return lines.index(line, start, stop)
    except ValueError:
        return stop


CHUNK_BYTES = 1024
_LITERAL = re.compile(rb"[ -~\n]+")
_BUFFER_BYTES = 16_000
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 /.,:-_=+")
_CONTROL_KEYS = {
    f"C-{key}": byte
    for keys, byte in (
        *((("1", "!"), b"1"), (("9", "("), b"9"), (("0", ")"), b"0"), (("=",), b"="), (("+",), b"+"), (("#",), b"#")),
        *(((";", ":"), b";"), (("'",), b"'"), ((",", "<"), b","), ((".", ">"), b"."), (("`",), b"\0")),
        *((("3", "Escape"), b"\x1b"), (("4",), b"\x1c"), (("5",), b"\x1d"), (("7",), b"\x1f"), (("8",), b"\x7f")),
        *((("Enter",), b"\r"), (("Tab",), b"\t"), (("BTab",), b"\x1b[Z"), (("BSpace",), b"\b")),
    )
    for key in keys
}
"""Bytes for keys that have no control character: tmux 3.3a types nothing for these keys. The bytes are a VT100's,
as in tmux 3.5 (input-keys.c, input_key_vt10x)."""


def type_bytes(target: str, data: bytes) -> list[bytes]:
    """Return command lines that type exactly `data`, without tmux's key-name and quoting rules: one for each chunk."""
    ends = chunk_ends(data)
    return [_type_chunk(target, data[start:end]) for start, end in zip((0, *ends), ends, strict=False)]


def chunk_ends(data: bytes) -> list[int]:
    """Return the positions at which the chunks of typed `data` end, none within a character of UTF-8."""
    ends, end = list[int](), 0
    while end + CHUNK_BYTES < len(data):
        end += CHUNK_BYTES
        # At most three: invalid UTF-8 must not make a chunk empty.
        end -= next((back for back in range(4) if data[end - back] & 0xC0 != 0x80), 0)
        ends.append(end)
    return [*ends, len(data)] if data else []


def _type_chunk(target: str, chunk: bytes) -> bytes:
    # tmux parses one literal argument in half the time.
    if _LITERAL.fullmatch(chunk):
        return b'send-keys -t %b -l -- "%b"\n' % (target.encode(), _quoted(chunk))
    return f"send-keys -t {target} -H {chunk.hex(' ')}\n".encode()


def press_key(target: str, key: str) -> bytes:
    """Return the command line that presses one key by its tmux name."""
    if key in _CONTROL_KEYS:
        return type_bytes(target, _CONTROL_KEYS[key])[0]
    quoted = "'" + key.replace("'", "'\\''") + "'"
    return f"send-keys -t {target} {quoted}\n".encode()


def write_file(path: str, data: bytes) -> list[bytes]:
    """Return command lines that make tmux write `data`, not empty and without NUL, to a file; one reply each."""
    chunks = [data[start : start + _BUFFER_BYTES] for start in range(0, len(data), _BUFFER_BYTES)]
    lines = [b'set-buffer -a -b tbench -- "%b"\n' % _quoted(chunk) for chunk in chunks]
    lines[0] = lines[0].replace(b" -a", b"", 1)
    return [*lines, b"save-buffer -b tbench %b\n" % path.encode()]


def read_file(path: str) -> list[bytes]:
    """Return command lines that read a small file: the first reply fails if it is missing, the last has its lines."""
    return [b"load-buffer -b tbench %b\n" % path.encode(), b"show-buffer -b tbench\n"]


def _quoted(data: bytes) -> bytes:
    """Quote `data` for tmux's double quotes, with special characters in octal."""
    data = data.replace(b"\\", b"\\134")
    for special in set(data) - _PLAIN - {0x5C}:
        data = data.replace(bytes((special,)), b"\\%03o" % special)
    return data


_ANSWER_SEC = 20.0
"""Longest time for any answer of tmux itself, which normally takes less than a millisecond."""
_START_SEC = 60.0
_BYTES_PER_SEC = 100_000
"""Typing rate for extending the time limit of large texts."""
_FLOOD_BYTES = 1 << 20
_FLOOD_PAUSE_SEC = 0.005
"""Pause between reads during a flood of output: fewer, larger reads cost far less. tmux stops reading the pane when we
fall behind, so nothing is lost and nothing piles up here."""


class NoAnswer(ConnectionResetError):
    """Raised if tmux does not answer in time."""


@dataclass
class _Batch:
    """Commands that were sent together, and their replies so far."""

    size: int
    done: asyncio.Future[list[CommandReply]]
    due_at: float
    """Event loop time at which the answer is overdue."""
    on_end: Callable[[], None] | None = None
    """Called when the stream has been read up to the end of the last reply."""
    replies: list[CommandReply] = field(default_factory=list)


class ControlClient:
    """A tmux control client: sends commands, which are answered in order, and passes on the pane's output.

    `on_keys` is called at the position in the stream where tmux has received typed keys, `on_lost` at the stream's end.
    """

    def __init__(
        self, *, on_output: Callable[[bytes], None], on_keys: Callable[[], None], on_lost: Callable[[], None]
    ) -> None:
        self._on_output = on_output
        self._on_keys = on_keys
        self._on_lost = on_lost
        self._stream: ByteStream | None = None
        self._reader: asyncio.Task[None] | None = None
        self._parser = Parser()
        self._waiting: deque[_Batch] = deque()
        self._since_command = 0
        self._watchdog: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()
        self.why_lost = "the terminal's stream ended"

    async def open(self, connect: Connect, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        """Attach to the session. Raises TerminalLost with tmux's message, and any OSError of `connect`."""
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
        """End the client; the session keeps running."""
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
        self, *commands: bytes, replies: int | None = None, on_end: Callable[[], None] | None = None
    ) -> list[CommandReply]:
        """Send command lines at once and return their replies: one for each, unless `replies` gives another number.

        `on_end` is called when the stream has been read up to the end of the replies. Raises ConnectionError, also if
        the replies do not come in time.
        """
        return await (await self._send(commands, replies or len(commands), on_end=on_end))

    async def type(self, *commands: bytes, replies: int) -> asyncio.Future[list[CommandReply]]:
        """Send command lines that type, and return the future of their replies. Raises ConnectionError."""
        # `on_keys` is not called by the waiting task, which may wake after a fast shell has answered.
        return await self._send(commands, replies, on_end=self._on_keys)

    async def _send(
        self, commands: Sequence[bytes], replies: int, *, on_end: Callable[[], None] | None
    ) -> asyncio.Future[list[CommandReply]]:
        if self.lost.is_set() or self._stream is None:
            raise ConnectionResetError(self.why_lost)
        data = b"".join(commands)
        done = self._expect(replies, on_end=on_end, sec=_ANSWER_SEC + len(data) / _BYTES_PER_SEC)
        self._since_command = 0
        try:
            await self._stream.write(data)
        except ConnectionError:
            self.lost.set()
            raise
        return done

    def _expect(
        self, replies: int, *, sec: float, on_end: Callable[[], None] | None = None
    ) -> asyncio.Future[list[CommandReply]]:
        loop = asyncio.get_running_loop()
        batch = _Batch(replies, loop.create_future(), loop.time() + sec, on_end)
        self._waiting.append(batch)
        if self._watchdog is None:
            self._watchdog = loop.call_at(batch.due_at, self._check_overdue)
        return batch.done

    def _check_overdue(self) -> None:
        """Close a stream whose oldest answer is overdue. One timer serves all answers, as one for each is costly."""
        self._watchdog = None
        if not self._waiting or self._stream is None:
            return
        loop, due_at = asyncio.get_running_loop(), self._waiting[0].due_at
        if due_at > loop.time():
            self._watchdog = loop.call_at(due_at, self._check_overdue)
        else:
            # The connection itself may hang: the caller finds out by opening a new one.
            self._fail(NoAnswer("tmux stopped answering"))
            self._closing = loop.create_task(self._stream.close(), name="closing a silent terminal")

    def _fail(self, error: ConnectionError) -> None:
        self.lost.set()
        self._on_lost()
        for batch in self._waiting:
            if not batch.done.done():
                batch.done.set_exception(error)
                batch.done.exception()  # marks it as retrieved, as no task may be waiting for it

    async def _read(self, stream: ByteStream) -> None:
        try:
            await stream.pass_on(self._feed)
        except OSError as error:
            self.why_lost = str(error)
        finally:
            self._fail(ConnectionResetError(self.why_lost))

    def _feed(self, data: bytes) -> float:
        for event in self._parser.feed(data):
            self._handle(event)
        self._since_command += len(data)
        return _FLOOD_PAUSE_SEC if self._since_command > _FLOOD_BYTES else 0.0

    def _handle(self, event: Event) -> None:
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
        if batch.on_end is not None:
            batch.on_end()
        if not batch.done.done():
            batch.done.set_result(batch.replies)


def text(lines: Sequence[bytes]) -> str:
    """Join reply lines to one line of text."""
    return b" ".join(lines).decode("utf-8", "replace")
