"""The pretend shell behind tests/fake_tmux.py: a prompt, an echo, marks, and answers out of a script."""

from __future__ import annotations

import asyncio
import codecs
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"
_READ_KEYS, _TAKE_KEYS = "\x1b[?2004h", "\x1b[?2004l\r"
_TYPED = re.compile(r"\x1b\[20[01]~|\x16.|[\x00-\x1f\x7f]|[^\x00-\x1f\x7f]+", re.DOTALL)
PROMPT_BACK = "\r\x1b[A\x1b[K"
"""Takes the place of the prompt, one line above: the only time that the cursor moves up."""
_NUMBER = re.compile(rb"__tbench_id=(\d+)")
_INTERRUPTS = {"\x03": ("^C\n", 130), "\x1c": ("^\\Quit\n", 131)}


@dataclass(frozen=True)
class Answer:
    """Reaction of the fake shell to one line."""

    output: str | Sequence[str] = ""
    """Printed at once, or piece by piece."""
    exit_code: int = 0
    delay_sec: float = 0.0
    """Passes before each piece; infinite is a command that only C-c ends."""


def scripted(answers: Mapping[str, Answer | str]) -> Callable[[str], Answer]:
    """Answers by line; a text is the output of a command that ends with 0, any other line is an unknown command."""

    def answer(line: str) -> Answer:
        found = answers.get(line, Answer(f"bash: {line.split(maxsplit=1)[0]}: command not found\n", 127))
        return Answer(found) if isinstance(found, str) else found

    return answer


class PretendShell:
    """A bash at its prompt, as far as its terminal shows it: echo, marks (images/tools/share/bashrc), type-ahead."""

    def __init__(
        self,
        prompt: str,
        pid: int,
        print_: Callable[[str], None],
        run: Callable[[str], Answer],
        files: dict[str, bytes],
    ) -> None:
        self._prompt = prompt
        self._pid = pid
        self._print = print_
        self._run = run
        self._files = files
        """By name; a command that was delivered lies at NAME.command.text, and is asked for by NAME.command."""
        self._delivered: str | None = None
        """The number of the delivered command that runs."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""
        self._lines_read = 0
        self._ahead = ""
        """Typed, and read by no program yet."""
        self._busy = True
        self._pasting = False
        self._exit_code = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """A command runs."""
        return self._busy

    def begin(self) -> None:
        self._finish(0)
        self._read()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def feed(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        if self._busy:
            text = self._take_as_kernel(text)
        self._ahead += text
        self._read()

    def _take_as_kernel(self, text: str) -> str:
        """While a command runs, what is typed is echoed at once (and again when it is read); C-c interrupts."""
        interrupt = re.search("[\x03\x1c]", text)
        if interrupt is None:
            self._print(text.replace("\r", "\n"))
            return text
        self._interrupt(*_INTERRUPTS[interrupt[0]])
        return text[interrupt.end() :]

    def _interrupt(self, words: str, exit_code: int) -> None:
        self.end()
        self._ahead = ""
        self._print(words)
        self._finish(exit_code)

    def _read(self) -> None:
        while self._ahead and not self._busy:
            token = _TYPED.match(self._ahead)
            assert token is not None
            self._ahead = self._ahead[token.end() :]
            self._edit(token[0])

    def _edit(self, token: str) -> None:
        """One token at the prompt."""
        if token in (_PASTE, _PASTED):
            self._pasting = token == _PASTE
        elif token in "\r\n" and not self._pasting:
            self._enter()
        elif token == "\x03":
            self._line = ""
            self._lines_read += 1
            self._print("^C\n" + _TAKE_KEYS)
            self._finish(130)
        elif token[0] >= " " or token[0] == "\x16" or token in "\r\n\t":
            typed = token.removeprefix("\x16").replace("\r", "\n")
            self._line += typed
            self._print(typed)

    def _enter(self) -> None:
        line, self._line = self._line, ""
        self._lines_read += 1 + line.count("\n")
        self._busy = True
        self._print("\n" + _TAKE_KEYS)
        if line.strip():
            self._print("\x1b]133;C;aid=tbench\x1b\\")
            self._answer(line)
        elif (name := next((name for name, script in self._files.items() if _is_asked(name, script)), None)) is None:
            self._finish(self._exit_code)
        else:
            self._deliver(self._files[f"{name}.text"].decode("utf-8", "replace"), self._files.pop(name))

    def _deliver(self, text: str, script: bytes) -> None:
        """As the prompt's hook does: see deliver.sh."""
        number = _NUMBER.search(script)
        assert number is not None
        self._delivered = number[1].decode()
        self._print(self._mark_of_end(self._exit_code))
        self._print(
            f"\x1b]133;S;aid=tbench\x1b\\{PROMPT_BACK}$ {text}\n\x1b]133;C;aid=tbench;id={self._delivered}\x1b\\"
        )
        self._answer(text)

    def _answer(self, line: str) -> None:
        answer = self._run(line)
        pieces = [answer.output] if isinstance(answer.output, str) else list(answer.output)
        self._go_on(pieces, answer)

    def _go_on(self, pieces: list[str], answer: Answer) -> None:
        if not (pieces and answer.delay_sec):
            self._print("".join(pieces))
            self._finish(answer.exit_code)
        elif math.isfinite(answer.delay_sec):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(answer.delay_sec, self._print_next, pieces, answer)

    def _print_next(self, pieces: list[str], answer: Answer) -> None:
        self._print(pieces[0])
        self._go_on(pieces[1:], answer)
        self._read()

    def _finish(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._busy = False
        end = self._mark_of_end(exit_code)
        if self._delivered is not None:
            end, self._delivered = f"\x1b]133;D;{exit_code};aid=tbench;id={self._delivered}\x1b\\", None
        self._print(f"{end}{_READ_KEYS}{self._prompt}\x1b]133;B;{self._where}\x1b\\")

    @property
    def _where(self) -> str:
        return f"aid=tbench;line={self._lines_read};pid={self._pid}"

    def _mark_of_end(self, exit_code: int) -> str:
        pending = int("\r" in self._ahead or "\n" in self._ahead)
        return f"\x1b]133;D;{exit_code};{self._where};pending={pending}\x1b\\"


def _is_asked(name: str, script: bytes) -> bool:
    return name.endswith(".command") and bool(script)
