"""A tmux that is not there: a control client's byte stream, one pane, and a pretend shell that follows a script.

For tests and simulations of everything above the stream. The screen knows lines, wrapping and history; escape
sequences are dropped, and every character takes one column. test_fake_tmux.py plays the same steps to a real tmux.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from fake_shell import PROMPT_BACK, Answer, PretendShell, scripted

from harness.stream import ByteStream
from harness.terminal.plain_text import without_escapes
from harness.terminal.spec import COLUMNS, HISTORY_LINES, ROWS

__all__ = ["Answer", "FakeTmux", "escape", "scripted"]

_PRINTED_AT_ONCE = 4096
"""Bytes of a pane that one %output line holds at most."""
_ESCAPED = re.compile(rb"[\x00-\x1f]")
_QUOTING = re.compile(r"['\"\\]")
_OCTAL = re.compile(rb"\\([0-7]{3})")
_KEYS = {"Enter": "\r", "Space": " ", "C-c": "\x03", "C-m": "\r", "C-j": "\r", "C-v": "\x16", "C-\\": "\x1c"}


class FakeTmux:
    """One tmux server with one session; its `connect` is a `harness.stream.Connect`.

    `answer` says what a typed line does. `read_bytes` cuts what a client reads into pieces of that size.
    `typed` holds the lines that were entered and the commands that were delivered, `files` what tmux was made to write;
    `stop` ends the server as `kill-server` does.
    """

    def __init__(
        self,
        answer: Callable[[str], Answer] | None = None,
        *,
        prompt: str = "root@fake:/app# ",
        read_bytes: int = 1 << 16,
    ) -> None:
        self.typed: list[str] = []
        self.files: dict[str, bytes] = {}
        self._buffer = b""
        self._answer = answer or scripted({})
        self._prompt = prompt
        self._read_bytes = read_bytes
        self._numbers = 0
        self._pid = 100
        self._options: dict[str, str] = {}
        self._clients: list[_Client] = []
        self._shell: PretendShell | None = None
        self._screen = _Screen()

    async def connect(self, argv: Sequence[str], environment: Mapping[str, str]) -> _Client:
        client = _Client(self._take_line, self._read_bytes)
        self._clients.append(client)
        self._reply(client, [], flags=0)
        client.put(b"%session-changed $0 main\n")
        if self._shell is None:
            self._screen, self._options = _Screen(), {}
            self._respawn()
        return client

    def stop(self) -> None:
        """The server ends, and with it every client; connecting again starts a new one."""
        self._end_shell()
        for client in self._clients:
            client.put(b"%exit server exited\n")
            client.end()
        self._clients.clear()

    def print(self, text: str) -> None:
        """Let the pane print something, as a program in the background would."""
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        self._screen.feed(text)
        data = text.encode("utf-8", "replace")
        for start in range(0, len(data), _PRINTED_AT_ONCE):
            line = b"%output %0 " + escape(data[start : start + _PRINTED_AT_ONCE]) + b"\n"
            for client in self._clients:
                client.put(line)

    # -- commands --------------------------------------------------------------------------------

    def _take_line(self, client: _Client, line: bytes) -> None:
        if line.startswith(b"send-keys "):  # the hot one: not worth a tokenizer
            first, then, rest = line.partition(b" ; ")
            self._reply(client, [])
            self._type(_keys(first))
            if then:
                self._take_line(client, rest)
        elif line.startswith(b"set-buffer "):
            self._buffer = (self._buffer if b" -a " in line.partition(b'"')[0] else b"") + _unquoted(line)
            self._reply(client, [])
        elif line.startswith(b"if-shell "):
            # The only thing that is asked so is who has the foreground; its own reply and those of a branch.
            for reply in ([], [], [self._foreground()]):
                self._reply(client, reply)
        else:
            for words in _commands(line.decode("utf-8", "replace")):
                self._reply(client, self._perform(words))

    def _foreground(self) -> str:
        """The report of images/tools/tty.c on who has the foreground."""
        if self._shell is None or self._shell.is_busy:
            return "group=2 running=0 waiting=n cpu=0 queue=0 canonical=y echo=y crnl=y name=command"
        return f"group={self._pid} running=0 waiting=y cpu=0 queue=0 canonical=n echo=n crnl=n name=bash"

    def _perform(self, words: Sequence[str]) -> list[str]:
        """The lines that a command answers with: none for those that mean nothing here."""
        options, rest = _options(words[1:])
        match words[0]:
            case "display-message":
                values = self._screen.values()
                return [re.sub(r"#\{(\w+)\}", lambda name: values.get(name[1], ""), " ".join(rest))]
            case "capture-pane":
                return self._screen.capture(options.get("-S"), options.get("-E"), joined="-J" in options)
            case "respawn-pane":
                self._respawn()
            case "set-option":
                self._options[rest[0]] = " ".join(rest[1:])
            case "show-options":
                return [self._options[name] for name in rest if name in self._options]
            case "save-buffer":
                self.files[rest[0]] = self._buffer
            case "load-buffer":
                self._buffer = self.files.get(rest[0], b"")
            case "show-buffer":
                return self._buffer.decode("utf-8", "replace").splitlines()
            case "kill-server":
                asyncio.get_running_loop().call_soon(self.stop)
        return []

    def _reply(self, client: _Client, lines: Sequence[str], flags: int = 1) -> None:
        self._numbers += 1
        guard = f"1700000000 {self._numbers} {flags}"
        client.put("\n".join((f"%begin {guard}", *lines, f"%end {guard}", "")).encode())

    def _type(self, data: bytes) -> None:
        # After the reply, as there: the shell answers when tmux has passed the keys on.
        asyncio.get_running_loop().call_soon(self._feed, data)

    def _feed(self, data: bytes) -> None:
        if self._shell is not None:
            self._shell.feed(data)

    def _respawn(self) -> None:
        self._end_shell()
        self._pid += 1
        self._shell = PretendShell(self._prompt, self._pid, self.print, self._run, self.files)
        asyncio.get_running_loop().call_soon(self._shell.begin)

    def _end_shell(self) -> None:
        if self._shell is not None:
            self._shell.end()
            self._shell = None

    def _run(self, line: str) -> Answer:
        self.typed.append(line)
        return self._answer(line)


class _Client(ByteStream):
    """The byte stream of one control client."""

    def __init__(self, take_line: Callable[[_Client, bytes], None], read_bytes: int) -> None:
        self._take_line = take_line
        self._read_bytes = read_bytes
        self._unfinished = b""
        self._waiting = bytearray()
        self._changed = asyncio.Event()
        self._ended = False

    async def read(self) -> bytes:
        while not self._waiting and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._waiting[: self._read_bytes])
        del self._waiting[: self._read_bytes]
        return data

    async def write(self, data: bytes) -> None:
        if self._ended:
            raise BrokenPipeError("the fake tmux has ended")
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        for line in lines:
            self._take_line(self, line)

    async def close(self) -> None:
        self.end()

    def put(self, data: bytes) -> None:
        if not self._ended:
            self._waiting += data
            self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()


class _Screen:
    """Rows of text, the last ROWS of them visible; the cursor is in the last one."""

    def __init__(self) -> None:
        self._rows = [""]
        self._wraps = [False]
        """Whether a row goes on in the next."""

    def feed(self, text: str) -> None:
        before, back, text = text.rpartition(PROMPT_BACK)
        if back:
            self.feed(before)
            del self._rows[-1], self._wraps[-1]
            self._rows[-1] = ""
        first, *others = without_escapes(text).replace("\r\n", "\n").split("\n")
        self._append(first)
        for line in others:
            self._rows.append("")
            self._wraps.append(False)
            self._append(line)
        if len(self._rows) > ROWS + HISTORY_LINES:  # a tenth at once, as tmux does
            del self._rows[: HISTORY_LINES // 10]
            del self._wraps[: HISTORY_LINES // 10]

    def _append(self, text: str) -> None:
        text = text.replace("\r", "")
        column = len(self._rows[-1])
        if "\t" in text:
            text = f"{'':{column}}{text}".expandtabs()[column:]
        room = COLUMNS - column
        self._rows[-1] += text[:room]
        for start in range(room, len(text), COLUMNS):
            self._wraps[-1] = True
            self._rows.append(text[start : start + COLUMNS])
            self._wraps.append(False)

    @property
    def _history(self) -> int:
        return max(0, len(self._rows) - ROWS)

    def values(self) -> dict[str, str]:
        """tmux's format variables."""
        return {
            "history_size": str(self._history),
            "cursor_y": str(len(self._rows) - 1 - self._history),
            "cursor_x": str(len(self._rows[-1])),
            "alternate_on": "0",
            "cursor_flag": "1",
            "keypad_cursor_flag": "0",
            "keypad_flag": "0",
            "insert_flag": "0",
            "origin_flag": "0",
            "wrap_flag": "1",
            "scroll_region_upper": "0",
            "scroll_region_lower": str(ROWS - 1),
            "pane_id": "%0",
            "pane_width": str(COLUMNS),
            "pane_height": str(ROWS),
        }

    def capture(self, start: str | None, end: str | None, *, joined: bool) -> list[str]:
        first = 0 if start == "-" else max(0, self._history + int(start or 0))
        last = self._history + (ROWS - 1 if end in (None, "-") else int(end))
        rows = self._rows[first : last + 1]
        if joined:
            rows = _joined(rows, self._wraps[first:])
        return rows + [""] * (last - len(self._rows) + 1)


def _joined(rows: Sequence[str], wraps: Sequence[bool]) -> list[str]:
    lines: list[str] = []
    goes_on = False
    for row, wrapped in zip(rows, wraps, strict=False):
        if goes_on:
            lines[-1] += row
        else:
            lines.append(row)
        goes_on = wrapped
    return lines


def escape(data: bytes) -> bytes:
    """A pane's bytes in the form that tmux gives them in an %output line."""
    data = data.replace(b"\\", b"\\134").replace(b"\r\n", b"\\015\\012")
    return _ESCAPED.sub(lambda match: b"\\%03o" % match[0][0], data)


@lru_cache(4096)
def _commands(line: str) -> Sequence[Sequence[str]]:
    """The commands of a line, `;` between them."""
    commands: list[list[str]] = [[]]
    for word in shlex.split(line) if _QUOTING.search(line) else line.split():
        if word == ";":
            commands.append([])
        else:
            commands[-1].append(word)
    return [words for words in commands if words]


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options with their values, and the other words."""
    options: dict[str, str] = {}
    waiting = list(words)
    while waiting and re.fullmatch(r"-\w+", waiting[0]):
        option = waiting.pop(0)
        # Of the commands that the terminal sends, these options take a value.
        options[option] = waiting.pop(0) if option in ("-t", "-S", "-E", "-b", "-f", "-A") and waiting else ""
    return options, waiting


def _unquoted(line: bytes) -> bytes:
    """The text between double quotes in a command line."""
    return _OCTAL.sub(lambda match: bytes((int(match[1], 8),)), line[line.index(b'"') + 1 : line.rindex(b'"')])


def _keys(line: bytes) -> bytes:
    """The keys that a send-keys command types."""
    if b' -l -- "' in line:
        return _unquoted(line)
    _, is_hex, digits = line.partition(b" -H ")
    if is_hex:
        return bytes.fromhex(digits.decode())
    _, names = _options(shlex.split(line.decode("utf-8", "replace"))[1:])
    return "".join(_KEYS.get(name, name if len(name) == 1 else "") for name in names).encode()
