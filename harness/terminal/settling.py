"""Determines from the output whether the shell has settled: by its OSC 133 marks, and by the cursor's line.

With the marks D and B, bash reports the number of lines that it has read (LINENO): once it equals the number of typed
lines, no typed line is left to run, which is proof. Other shells answer each line with one prompt, which is counted. If
a program has read some of the lines, the count stays open, and a quiet period decides.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.terminal.plain_text import plain_text

# The shell's OSC 133 marks in the output stream, which delimit the exact output of each command.
#
# The shell set-up in the tools volume prints them: C when a command is about to run; D when it has ended, with the
# exit code and whether another typed line already waits; B when the prompt has been drawn; P if a command needs more
# lines; X with the exit code of a shell that has ended; S before output of the set-up itself. Shells without bash's
# hooks print D with the prompt. A delivered command has a C and a D with its own id. Source:
# https://gitlab.freedesktop.org/Per_Bothner/specifications/-/blob/master/proposals/semantic-prompts.md

_MARK = re.compile(
    rb"\x1b\]133;([BCDPSX])(?:;(-?\d+))?;aid=tbench(?:;id=(\d+))?(?:;line=(\d*))?(?:;pid=(\d+))?(?:;number=(\d+))?(?:;pending=(\w+))?"
    rb"(?:;note=(\w+))?(?:\x1b\\|\x07)"
)
_OPENING = b"\x1b]133;"
_LONGEST_MARK = 128


class Mark(NamedTuple):
    """One mark: `kind` is its letter; the exit code is set on D and X, pending on D."""

    kind: str
    exit_code: int | None = None
    pending: bool | None = None
    """Whether another typed line already waits; None if the shell cannot tell."""
    line: int | None = None
    """Number of lines that the shell has read so far (bash, on D and B)."""
    pid: int | None = None
    """The shell's process id."""
    id: int | None = None
    """The delivered command's id."""
    number: int | None = None
    """The prompt's number (bash, on B), which increases by one after each command."""
    note: str | None = None
    """Kind of note in a delivered command's D."""


class MarkScanner:
    """Splits output into text and marks, in order; the stream may be split anywhere."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes | Mark]:
        if self._tail:
            data, self._tail = self._tail + data, b""
        if b"\x1b" not in data:
            return [data]
        pieces: list[bytes | Mark] = []
        position = 0
        for match in _MARK.finditer(data):
            if match.start() > position:
                pieces.append(data[position : match.start()])
            pieces.append(_mark(match))
            position = match.end()
        rest = data[position:]
        cut = _unfinished_mark_start(rest)
        if cut is not None:
            rest, self._tail = rest[:cut], rest[cut:]
        if rest:
            pieces.append(rest)
        return pieces


def _mark(match: re.Match[bytes]) -> Mark:
    kind, code, identity, line, pid, number, pending, note = match.groups()
    return Mark(
        kind.decode(),
        int(code) if code else None,
        {b"0": False, b"1": True}.get(pending or b""),
        int(line) if line else None,
        int(pid) if pid else None,
        int(identity) if identity else None,
        int(number) if number else None,
        note.decode() if note else None,
    )


def _unfinished_mark_start(data: bytes) -> int | None:
    """Return the index of a mark that may have begun and will be completed by the next read."""
    start = data.rfind(_OPENING, max(0, len(data) - _LONGEST_MARK))
    if start >= 0:
        return start
    start = data.rfind(b"\x1b", max(0, len(data) - len(_OPENING)))
    return start if start >= 0 and _OPENING.startswith(data[start:]) else None


GRACE_SEC = 0.02
"""Seconds to wait for a prompt once the shell must have settled, if its prompts have had no mark so far."""
PROMPT_SEC = 1.0
"""Seconds to wait for a prompt if earlier ones had marks: a mark is coming, unless the agent has just changed it."""
QUIET_SEC = 0.03
"""Quiet period after which the effect of a key is complete."""
UNPROVEN_SEC = 0.1
"""Quiet period required if lines are unaccounted for, although the shell reports none waiting: a program has read them,
or they are still arriving."""
UNSEEN_SEC = 5.0
"""Quiet period required after the stream was lost: the expected mark may have been missed."""
UNANSWERED_SEC = 1.0
"""Quiet period required if a shell cannot report whether lines wait: the next one may be running."""

_LINE_KEYS = frozenset({"enter", "c-m", "c-j", "kpenter"})
_CONTROL = "c-"
_INTERRUPTS = re.compile(r"[\x03\x04\x1a\x1c]")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_MAX_SHELLS = 64


class ShellState:
    """The shell's state. `wait_sec` is None while it is busy, 0 once settled, else the quiet period that settles it."""

    def __init__(self) -> None:
        self.at_prompt = False
        self.exit_code: int | None = None
        self.wait_sec: float | None = None
        self.commands = 0
        """Number of marks C so far."""
        self._read: dict[int, int] = {}
        """Number of lines that each shell had read when it last settled, by pid, as shells nest."""
        self._last: tuple[int | None, int | None] = (None, None)
        self._typed = 0
        self._answers = 0
        self._from_prompt = False
        self._ends_with_newline = True
        self._saw_control_key = False
        self._proven = False
        self._ran = False
        """Whether a mark C came since the keys arrived."""
        self._prompt: tuple[int | None, int | None] = (None, None)
        """Shell and number of the last prompt."""
        self._after_command = False
        """Whether a mark C came since the last prompt."""
        self._prompted_by: int | None = None
        """The shell (its pid, or 0) that drew a prompt with a mark after its last D."""
        self._lacks_end_marks = False
        """Whether commands are no longer followed by a mark D."""
        self.answer: str | None = None
        """Kind of the last mark since the keys arrived."""
        self._in_line = False
        """Whether only text was typed at the prompt."""

    @property
    def pid(self) -> int | None:
        """Pid of the shell that last reported a command's end; None if not reported."""
        return self._last[0]

    @property
    def awaits_answer(self) -> bool:
        """Whether a line was typed at the prompt that the shell has not acknowledged yet."""
        return self._from_prompt and self._typed > 0 and self.answer is None

    @property
    def edits(self) -> bool:
        """Whether the shell's line editor reads the next keys, and no key has changed the meaning of a line end."""
        return self.at_prompt or self.answer == "P" or self._in_line

    def note_typed(self, text: str) -> None:
        """Record that `text` is on its way to the terminal; each newline in it ends a line."""
        in_line = self.edits and "\n" not in text and not _CONTROLS.search(text)
        self._begin()
        self._in_line = in_line
        self._typed += text.count("\n")
        self._ends_with_newline = text.endswith("\n")
        if _INTERRUPTS.search(text):
            self._saw_control_key = True

    def note_pressed(self, key: str) -> None:
        """Record that a key is on its way. Control keys make the line count unreliable: C-c discards typed lines."""
        if key.lower() in _LINE_KEYS:
            self.note_typed("\n")
            return
        self._begin()
        if key.lower().startswith(_CONTROL):
            self._saw_control_key = True

    def _begin(self) -> None:
        if self.at_prompt:
            self._typed = self._answers = 0
            self._saw_control_key = False
        self._from_prompt = self.at_prompt
        self._in_line = False
        self.keys_arrived()

    def lose_track(self) -> None:
        """Record that marks may have been missed: nothing is known, and counts are invalid until the shell settles."""
        self.keys_arrived()
        self._saw_control_key = True
        self.wait_sec = UNSEEN_SEC

    def keys_arrived(self) -> None:
        """Record that the terminal has received the typed keys: earlier marks do not refer to them."""
        self.at_prompt = False
        self.wait_sec = None
        self._proven = False
        self._ran = False
        self.answer = None

    def take(self, mark: Mark) -> None:
        """Process a mark from the terminal."""
        if mark.kind in "BCDP":
            self.answer = mark.kind
        match mark.kind:
            case "C":
                self.at_prompt = False
                self.wait_sec = None
                self._proven = False
                self._ran = True
                self._after_command = self._after_command or mark.id is None
                self.commands += 1
            case "P":
                self.wait_sec = None
                self._answers += 1
            case "D" if mark.id is not None:
                self._take_delivered_end(mark)
            case "D":
                self._take_end(mark)
            case "B":
                self._take_prompt(mark)

    def _take_end(self, mark: Mark) -> None:
        self.exit_code = mark.exit_code
        self._lacks_end_marks = False
        self._ran = False
        self._answers += 1
        self._last = (mark.pid, mark.line)
        if mark.pending:
            self.wait_sec = None
            return
        self._proven = self._proves(mark)
        self.wait_sec = self._quiet_sec(mark)

    def _take_delivered_end(self, mark: Mark) -> None:
        """Process a delivered command's end: only the requesting line was typed, which has had its mark D."""
        self.exit_code = mark.exit_code
        self._ran = False
        self._proven = not self._saw_control_key
        self.wait_sec = self._quiet_sec(Mark("D", pending=False, pid=self.pid))

    def _take_prompt(self, mark: Mark) -> None:
        if self._is_copy(mark):
            return
        self._prompt, self._after_command = (mark.pid, mark.number), False
        if self.at_prompt:
            return
        if self._proven:
            if mark.pid == self.pid:
                self.settle(prompted=True)
        elif self.wait_sec is None and mark.line is not None:
            self._take_lone_prompt(mark)

    def _is_copy(self, mark: Mark) -> bool:
        """Whether a command printed this mark: a real prompt after a command has a higher number than the last one."""
        pid, number = self._prompt
        is_new = mark.number is None or number is None or mark.pid != pid or mark.number > number
        return self._after_command and not is_new

    def _take_lone_prompt(self, mark: Mark) -> None:
        """Process a prompt without a preceding D: PROMPT_COMMAND unset, a failed expansion, or redrawn by a key."""
        self._lacks_end_marks = self._lacks_end_marks or self._ran
        if self._saw_control_key:
            self.wait_sec = UNPROVEN_SEC if not self._typed else None
            return
        only_line = self._from_prompt and self._typed == 1 and self._ran and self._is_known(mark.pid)
        if self._typed and (only_line or self._lines_read(mark) == self._typed):
            self.exit_code = None
            if self._lacks_end_marks:
                self._last = (mark.pid, mark.line)  # else bash uncounts the line, which it never read as a command
            self.settle()

    def _proves(self, mark: Mark) -> bool:
        if self._saw_control_key or not self._ends_with_newline or not self._is_known(mark.pid):
            return False
        if self._typed == 0 or (self._typed == 1 and self._from_prompt):
            return True
        if mark.pending is None:
            return self._answers == self._typed
        return self._lines_read(mark) == self._typed

    def _is_known(self, pid: int | None) -> bool:
        """Whether this shell has settled before: another one may run in a nested terminal (expect, script)."""
        return pid is None or not self._read or pid in self._read

    def _quiet_sec(self, mark: Mark) -> float:
        if self._proven:
            return PROMPT_SEC if self._prompted_by == (mark.pid or 0) else GRACE_SEC
        if self._typed <= self._answers or (self._saw_control_key and self._typed == 0):
            return QUIET_SEC
        return UNANSWERED_SEC if mark.pending is None else UNPROVEN_SEC

    def _lines_read(self, mark: Mark) -> int | None:
        before = self._read.get(mark.pid or 0)
        return None if before is None or mark.line is None else mark.line - before

    def settle(self, *, prompted: bool = False) -> None:
        """Mark the shell as settled, by proof or enough quiet: no typed line is left to run."""
        if self._proven:
            self._prompted_by = (self._last[0] or 0) if prompted else None
        self.wait_sec = 0.0
        self.at_prompt = True
        pid, line = self._last
        if line is not None:
            if len(self._read) >= _MAX_SHELLS:
                self._read.clear()
            self._read[pid or 0] = line


# The cursor's line according to the output, and whether it looks like a prompt.

_KEPT_BYTES = 4096
_CLEARED = re.compile(rb"\x1b(?:\[[23]?J|\[[0-9;]*H|c)")
_PATH = re.compile(r"[~/][^\s:$#%>)\]]*")
_NUMBER = re.compile(r"\d+")
_SHELL_PROMPT_END = re.compile(r"(?:(?<!#)#|\$|(?<!\d)%)$")
_PROMPT_END = re.compile(r"(?:[$#>❯»λ]|(?<!\d)%|\(\w+\)|\[\d+\]:)$")


class LastLine:
    """The output since the last line break, and whether there was a line break since `begin`."""

    def __init__(self) -> None:
        self._line = b""
        self._unread = b""
        """Output that was not processed yet; most of it never is."""
        self._is_fresh = False
        self._text: str | None = ""

    def begin(self) -> None:
        """Record that keys are about to be typed."""
        self._catch_up()
        self._is_fresh = False

    def follow(self, data: bytes) -> None:
        """Receive output of the pane."""
        self._unread += data
        if len(self._unread) > _KEPT_BYTES:
            self._catch_up()

    @property
    def is_fresh(self) -> bool:
        """Whether the line began, or the screen was cleared, since `begin`."""
        self._catch_up()
        return self._is_fresh

    @property
    def text(self) -> str:
        """The line as the terminal shows it."""
        self._catch_up()
        if self._text is None:
            self._text = plain_text(self._line).rstrip()
        return self._text

    def _catch_up(self) -> None:
        if not self._unread:
            return
        came, self._unread = self._unread, b""
        _, broken, last = came.rpartition(b"\n")
        self._is_fresh = self._is_fresh or bool(broken) or _CLEARED.search(came) is not None
        self._line = (last if broken else self._line + last)[-_KEPT_BYTES:]
        self._text = None


def looks_like_prompt(text: str) -> bool:
    """Whether a line ends like a prompt: `$`, `>>>`, `(gdb)`, `In [1]:`."""
    return _PROMPT_END.search(text) is not None


def looks_like_shell_prompt(text: str) -> bool:
    """Whether a line ends like a shell prompt, and not like a progress bar (`####`, `50%`)."""
    return _SHELL_PROMPT_END.search(text) is not None


def same_prompt(one: str, other: str) -> bool:
    """Whether two prompts differ only in paths and numbers: `a@b:~$` and `a@b:/tmp$`."""
    return bool(one) and _shape(one) == _shape(other)


def _shape(prompt: str) -> str:
    return _NUMBER.sub("0", _PATH.sub("/", prompt))
