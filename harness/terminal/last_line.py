"""The line that the cursor stands on, as far as the output tells, and whether it looks like a prompt."""

from __future__ import annotations

import re

from harness.terminal.plain_text import plain_text

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
        self._came = b""
        """The output that was not looked at yet: most of it never is."""
        self._is_fresh = False
        self._text: str | None = ""

    def begin(self) -> None:
        """Note that something is going to be typed."""
        self._catch_up()
        self._is_fresh = False

    def follow(self, data: bytes) -> None:
        """Take what the pane prints."""
        self._came += data
        if len(self._came) > _KEPT_BYTES:
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
        if not self._came:
            return
        came, self._came = self._came, b""
        _, broken, last = came.rpartition(b"\n")
        self._is_fresh = self._is_fresh or bool(broken) or _CLEARED.search(came) is not None
        self._line = (last if broken else self._line + last)[-_KEPT_BYTES:]
        self._text = None


def looks_like_prompt(text: str) -> bool:
    """Whether a line ends as prompts do: `$`, `>>>`, `(gdb)`, `In [1]:`."""
    return _PROMPT_END.search(text) is not None


def looks_like_shell_prompt(text: str) -> bool:
    """Whether a line ends as shells' prompts do, and not as bars of progress do (`####`, `50%`)."""
    return _SHELL_PROMPT_END.search(text) is not None


def same_prompt(one: str, other: str) -> bool:
    """Whether two prompts are the same but for a path and numbers in them: `a@b:~$` and `a@b:/tmp$`."""
    return bool(one) and _shape(one) == _shape(other)


def _shape(prompt: str) -> str:
    return _NUMBER.sub("0", _PATH.sub("/", prompt))
