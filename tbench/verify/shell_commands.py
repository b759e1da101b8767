"""Reads the commands of a shell script, with their arguments. Pure: nothing is executed or expanded.

Understood: quotes, comments, line continuations, here-documents, subshells, substitutions (also within double quotes),
patterns of `case`, arrays. The shell's own words (`if`, `!`, `{` …) and assignments are left where they stand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

Words = list[str]

_BLANKS = re.compile(r"(?:[ \t\r]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_OPERATOR = re.compile(r"[;&|()\n]")
_ARITHMETIC = re.compile(r"\(\([^\n]*?\)\)")
_ARITHMETIC_EXPANSION = re.compile(r"\$\(\([^\n]*?\)\)")
_REDIRECTION = re.compile(r"(\d*)(<<<|<<-?|&>>?|<>|>>|>\||[<>]&?)(?!\()")
_PLAIN = re.compile(r"[^ \t\r\n;&|()<>'\"\\`$]+")
_PLAIN_IN_QUOTES = re.compile(r"[^\"\\`$]+")
_SINGLE_QUOTES = re.compile(r"'([^']*)'?")
_ANSI_QUOTES = re.compile(r"\$'((?:[^'\\]|\\.)*)'?", re.DOTALL)
_BACKTICKS = re.compile(r"`((?:[^`\\]|\\.)*)`?", re.DOTALL)
_PARAMETER = re.compile(r"\$(?:\{[^}]*\}?)?")
_BEFORE_PARENTHESIS = re.compile(r"[=?*+@!]$")
"""End of a word before the parenthesis of an array or a pattern."""
_SHOWN = {"", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/fd/1", "/dev/fd/2"}
"""Targets whose output is still shown; the first stands for a process substitution, such as `>(tee log)`."""


@dataclass
class SimpleCommand:
    """A simple command: its words without quotes and redirections; expansions stay as text.

    The text that a here-document or a here-string feeds to it follows as `-c` and the text: what a shell makes of it.
    """

    words: Words = field(default_factory=list)
    is_shown: bool = True
    """Whether its output is the script's: neither redirected to a file nor taken by a substitution."""


def simple_commands(script: str) -> list[SimpleCommand]:
    """Every simple command of `script`. Raises RecursionError for what is nested too deeply."""
    reader = _Reader(script)
    reader.read()
    return reader.commands


class _Reader:
    """One pass over a script."""

    def __init__(self, text: str) -> None:
        self.commands: list[SimpleCommand] = []
        self._text = text
        self._at = 0
        self._documents: list[tuple[str, bool, SimpleCommand]] = []
        """The here-documents that begin after this line: delimiter, whether leading tabs are dropped, whose input."""

    def read(self, closer: str = "") -> None:
        """Read on to `closer`, or to the end."""
        command = SimpleCommand()
        while self._at < len(self._text):
            if self._take(_BLANKS) or self._take(_COMMENT) or self._take(_ARITHMETIC):
                continue
            if found := self._take(_REDIRECTION):
                self._redirect(found[1], found[2], command)
            elif found := self._take(_OPERATOR):
                if found[0] == ")":
                    if closer:
                        break
                    command = SimpleCommand()  # what was read is a pattern of `case`
                command = self._end_command(command, found[0])
            elif self._text.startswith(("<(", ">("), self._at):
                self._at += 2
                self.read(")")
                command.words.append("")
            else:
                command.words.append(self._word())
        self._end_command(command, "")

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        if found := pattern.match(self._text, self._at):
            self._at = found.end()
        return found

    def _end_command(self, command: SimpleCommand, operator: str) -> SimpleCommand:
        """Finish a command at `operator`; returns the next one, still empty."""
        is_function = operator == "(" and self._text.startswith(")", self._at)
        if command.words and not is_function:
            self.commands.append(command)
        if operator == "(":
            self.read(")")
        elif operator == "\n":
            self._read_documents()
        return SimpleCommand()

    def _redirect(self, descriptor: str, operator: str, command: SimpleCommand) -> None:
        self._take(_BLANKS)
        target = self._word()
        if operator == "<<<":
            command.words += ["-c", target]
        elif operator.startswith("<<"):
            self._documents.append((target, operator == "<<-", command))
        elif operator in (">", ">>", ">|", "&>", "&>>") and descriptor in ("", "1"):
            command.is_shown = target in _SHOWN

    def _read_documents(self) -> None:
        for delimiter, drops_tabs, command in self._documents:
            body = []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end]
                self._at = end + 1
                if (line.lstrip("\t") if drops_tabs else line) == delimiter:
                    break
                body.append(line)
            command.words += ["-c", "\n".join(body)]
        self._documents = []

    def _word(self) -> str:
        pieces: Words = []
        while self._at < len(self._text):
            if found := self._take(_PLAIN):
                pieces.append(found[0])
            elif found := self._take(_SINGLE_QUOTES) or self._take(_ANSI_QUOTES):
                pieces.append(found[1])
            elif self._text.startswith('"', self._at):
                self._at += 1
                pieces.append(self._double_quoted())
            elif self._text[self._at] in "\\`$":
                pieces.append(self._expansion())
            elif self._text.startswith("(", self._at) and _BEFORE_PARENTHESIS.search("".join(pieces[-1:])):
                self._skip_parentheses()
            else:
                break
        return "".join(pieces)

    def _double_quoted(self) -> str:
        pieces: Words = []
        while self._at < len(self._text):
            if found := self._take(_PLAIN_IN_QUOTES):
                pieces.append(found[0])
            elif self._text.startswith('"', self._at):
                self._at += 1
                break
            else:
                pieces.append(self._expansion())
        return "".join(pieces)

    def _expansion(self) -> str:
        """Read an escape (returns what it stands for) or an expansion (returns it as it is, and reads its commands)."""
        if self._text.startswith("\\", self._at):
            self._at += 2
            return self._text[self._at - 1 : self._at].removesuffix("\n")
        if found := self._take(_BACKTICKS):
            inner = _Reader(found[1].replace("\\`", "`"))
            inner.read()
            self.commands += _hidden(inner.commands)
            return "``"
        if found := self._take(_ARITHMETIC_EXPANSION):
            return found[0]
        if self._text.startswith("$(", self._at):
            known = len(self.commands)
            self._at += 2
            self.read(")")
            self.commands[known:] = _hidden(self.commands[known:])
            return "$()"
        found = self._take(_PARAMETER)
        assert found is not None
        return found[0]

    def _skip_parentheses(self) -> None:
        """Skip an array or a pattern, which holds no commands."""
        known = len(self.commands)
        self._at += 1
        self.read(")")
        del self.commands[known:]


def _hidden(commands: list[SimpleCommand]) -> list[SimpleCommand]:
    return [replace(command, is_shown=False) for command in commands]
