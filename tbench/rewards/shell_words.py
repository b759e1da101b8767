"""Finds the commands in a shell script: the first word of each simple command. Executes and expands nothing.

Supported: quotes, escapes, comments, line continuations; `;`, `&`, `&&`, `||`, `|`, `|&` and newlines; subshells and
groups, `$(…)`, backticks, `<(…)`, also within double quotes and `${…}`; assignments, arrays and redirections before the
command; here-documents, whose bodies are skipped; `if`, `while`, `until`, `for`, `case`, `[[ … ]]`, arithmetic,
function definitions; `sudo` and `env` with their options. `/usr/bin/find` is `find`.

Not supported: aliases, functions as commands, words made by expansion (`$TOOL file` names nothing), commands run by
other commands (`xargs grep`, `find -exec grep`, `bash -c '…'`, `eval`, `timeout 5 find`, `env -S`), expansions in a
here-document, commands within arithmetic, single quotes inside `${…}`, `$((` meant as `$( (`, and syntax errors: a
script that bash rejects has command words all the same. Linear time.
"""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["commands", "words", "quote", "parameter"]

_PLAIN = re.compile(r"[^\s;&|<>()#$`'\"\\]+")
_BLANKS = re.compile(r"[^\S\n]+")
_OPERATOR = re.compile(r";;&|;;|;&|;|&&|&|\|\||\|&|\|")
_REDIRECTION = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||<|>")
_IN_QUOTE = re.compile(r"[^\"\\$`]+")
_IN_PARAMETER = re.compile(r"[^}\"\\$`]+")
_VARIABLE = re.compile(r"\$(?:\w+|[-@*#?$!])")
_VARIABLE_OR_ANSI_QUOTE = re.compile(rf"{_VARIABLE.pattern}|\$'(?:[^'\\]++|\\.)*'?", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_PARENTHESIS = re.compile(r"[()]")

_BEFORE_A_COMMAND = {"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "coproc"}
_NO_COMMAND = {"for", "select", "fi", "done", "}"}
_WITH_ARGUMENT = {
    "sudo": {"-u", "-g", "-h", "-p", "-C", "-D", "-R", "-r", "-t", "-T", "-U", "--user", "--group", "--chdir"},
    "env": {"-u", "-C", "--unset", "--chdir"},
}


def command_words(script: str) -> list[str]:
    """Return the names of the commands in `script`, without directories, in the order in which the names end."""
    return _Scanner(script).scan()


class _Frame:
    """An open construct: a list of commands, an array's words, a double quote, or `${`."""

    __slots__ = ("cases", "closer", "expects", "in_test", "kind", "named", "opaque", "owner", "prefix", "quoted",
                 "redirection", "skips", "word")  # fmt: skip

    def __init__(self, kind: Kind, closer: str = "", owner: _Frame | None = None) -> None:
        self.kind = kind
        self.closer = closer
        self.owner = owner or self
        """Frame whose word is being read: a quote and `${` have none of their own."""
        self.word: list[str] | None = None
        self.opaque = False
        """Whether the word contains an expansion."""
        self.quoted = False
        self.expects = kind == "commands"
        """Whether the next word is a command's name."""
        self.named = False
        """Whether the last word was a command's name."""
        self.prefix = ""
        """`sudo` or `env` while its options are read, else empty."""
        self.skips = False
        """Whether the next word is an option's argument, or a function's name."""
        self.redirection = ""
        """Redirection operator whose target is the next word, else empty."""
        self.in_test = False
        self.cases: list[Literal["word", "pattern", "body"]] = []

    def add(self, piece: str, *, opaque: bool = False, quoted: bool = False) -> None:
        if self.word is None:
            self.word, self.opaque, self.quoted = [], False, False
        self.word.append(piece)
        self.opaque |= opaque
        self.quoted |= quoted


class _Scanner:
    """A single pass over the text without recursion, so that deep nesting cannot fail."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._stack = [_Frame("commands")]
        self._found: list[str] = []
        self._documents: list[tuple[str, bool]] = []
        """Delimiters of the here-documents that begin after this line, each with whether leading tabs are dropped."""

    def scan(self) -> list[str]:
        while self._at < len(self._text):
            frame = self._stack[-1]
            if frame.kind == "quote":
                self._inside(frame, '"', _IN_QUOTE)
            elif frame.kind == "parameter":
                self._inside(frame, "}", _IN_PARAMETER)
            else:
                self._step(frame)
        for frame in reversed(self._stack):
            self._end_word(frame)
        return self._found

    # -- characters ------------------------------------------------------------------------------

    def _step(self, frame: _Frame) -> None:
        """Read one token in a list of commands or words."""
        character = self._text[self._at]
        if found := _PLAIN.match(self._text, self._at):
            self._at = found.end()
            frame.add(found[0])
        elif character == "\n":
            self._at += 1
            self._end_command(frame)
            self._skip_documents()
        elif found := _BLANKS.match(self._text, self._at):
            self._at = found.end()
            self._end_word(frame)
        elif character == "#":
            self._hash(frame)
        elif character in "'\"\\$`":
            self._quote_or_expansion(frame, character)
        elif character in "<>" or self._text.startswith("&>", self._at):
            self._redirection(frame)
        elif character == "(":
            self._open(frame)
        elif character == ")":
            self._close(frame)
        else:
            self._operator(frame)

    def _inside(self, frame: _Frame, end: str, plain: re.Pattern[str]) -> None:
        """Read one token in a double quote or in `${…}`."""
        owner = frame.owner
        character = self._text[self._at]
        if found := plain.match(self._text, self._at):
            self._at = found.end()
            owner.add(found[0])
        elif character == end:
            self._at += 1
            self._stack.pop()
        else:
            self._quote_or_expansion(owner, character)

    def _quote_or_expansion(self, frame: _Frame, character: str) -> None:
        text, at = self._text, self._at
        if character == "\\":
            self._at += 2
            if text[at + 1 : at + 2] != "\n":
                frame.add(text[at + 1 : at + 2], quoted=True)
        elif character == "'":
            end = text.find("'", at + 1)
            end = len(text) if end < 0 else end
            self._at = end + 1
            frame.add(text[at + 1 : end], quoted=True)
        elif character == '"':
            self._at += 1
            frame.add("", quoted=True)
            self._stack.append(_Frame("quote", owner=frame))
        elif character == "`":
            self._at += 1
            if self._stack[-1].closer == "`":
                self._end_word(frame)
                self._stack.pop()
            else:
                self._substitute(frame, "`")
        else:
            self._dollar(frame)

    def _dollar(self, frame: _Frame) -> None:
        text, at = self._text, self._at
        if text.startswith("$((", at):
            frame.add("", opaque=True)
            self._skip_parentheses(at + 1)
        elif text.startswith("$(", at):
            self._at += 2
            self._substitute(frame, ")")
        elif text.startswith("${", at):
            self._at += 2
            frame.add("", opaque=True)
            self._stack.append(_Frame("parameter", owner=frame))
        elif found := (_VARIABLE if frame is not self._stack[-1] else _VARIABLE_OR_ANSI_QUOTE).match(text, at):
            self._at = found.end()
            frame.add("", opaque=True)
        else:
            self._at += 1
            frame.add("$")

    def _substitute(self, frame: _Frame, closer: str) -> None:
        frame.add("", opaque=True)
        self._stack.append(_Frame("commands", closer))

    def _hash(self, frame: _Frame) -> None:
        if frame.word is not None:
            self._at += 1
            frame.add("#")
            return
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _operator(self, frame: _Frame) -> None:
        found = _OPERATOR.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        self._end_command(frame)
        if found[0].startswith((";;", ";&")) and frame.cases:
            frame.cases[-1] = "pattern"

    def _redirection(self, frame: _Frame) -> None:
        if self._text[self._at + 1 : self._at + 2] == "(" and self._text[self._at] in "<>":
            self._at += 2
            self._substitute(frame, ")")
            return
        if frame.word is not None and not frame.quoted and "".join(frame.word).isdigit():
            frame.word = None  # a file descriptor
        self._end_word(frame)
        found = _REDIRECTION.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        frame.redirection = found[0]

    def _open(self, frame: _Frame) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if frame.word is not None:
            if "".join(frame.word[-1:]).endswith("="):
                self._at += 1
                self._stack.append(_Frame("words", ")"))
            elif following == ")":  # a function's name
                self._at += 2
                frame.word = None
            else:  # an extended pattern
                frame.add("", opaque=True)
                self._skip_parentheses(self._at)
        elif following == ")":
            self._at += 2
            if frame.named:
                self._found.pop()
            frame.expects, frame.named = True, False
        elif following == "(":
            self._skip_parentheses(self._at)
        else:
            self._at += 1
            if not (frame.in_test or frame.cases[-1:] == ["pattern"]):
                self._stack.append(_Frame("commands", ")"))

    def _close(self, frame: _Frame) -> None:
        self._at += 1
        self._end_word(frame)
        if frame.cases[-1:] == ["pattern"]:
            frame.cases[-1] = "body"
            frame.expects = True
        elif frame.closer == ")":
            self._stack.pop()
            below = self._stack[-1].owner
            if below.word is None:
                below.expects = False

    def _skip_parentheses(self, start: int) -> None:
        """Skip past the parenthesis that closes the one at `start`, or to the end."""
        depth = 0
        for found in _PARENTHESIS.finditer(self._text, start):
            depth += 1 if found[0] == "(" else -1
            if depth == 0:
                self._at = found.end()
                return
        self._at = len(self._text)

    def _skip_documents(self) -> None:
        for delimiter, tabs in self._documents:
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end]
                self._at = end + 1
                if (line.lstrip("\t") if tabs else line) == delimiter:
                    break
        self._documents.clear()

    # -- words -----------------------------------------------------------------------------------

    def _end_command(self, frame: _Frame) -> None:
        self._end_word(frame)
        if frame.kind == "commands" and not frame.in_test:
            frame.expects = True
            frame.prefix, frame.redirection = "", ""
            frame.named = frame.skips = False

    def _end_word(self, frame: _Frame) -> None:
        if frame.word is None:
            return
        word, plain = "".join(frame.word), not frame.quoted
        frame.word = None
        if frame.kind != "commands":
            return
        named, frame.named = frame.named, False
        if frame.redirection:
            if frame.redirection in ("<<", "<<-"):
                self._documents.append((word, frame.redirection == "<<-"))
            frame.redirection = ""
            frame.named = named
        elif frame.cases and frame.cases[-1] != "body":
            _in_case(frame, word if plain else "")
        elif not frame.expects:
            frame.in_test &= word != "]]"
        elif frame.skips:
            frame.skips = False
        elif not (plain and _is_reserved(frame, word)) and not _ASSIGNMENT.match(word):
            self._name(frame, word)

    def _name(self, frame: _Frame, word: str) -> None:
        """Process a word where a command's name is expected: the name, or `sudo`, `env` and their options."""
        if frame.prefix and word.startswith("-"):
            frame.skips = word in _WITH_ARGUMENT[frame.prefix]
            return
        name = word.rpartition("/")[2]
        if name in _WITH_ARGUMENT and not frame.opaque:
            frame.prefix = name
            return
        frame.expects, frame.prefix = False, ""
        if name and not frame.opaque:
            self._found.append(name)
            frame.named = True


def _is_reserved(frame: _Frame, word: str) -> bool:
    """Return whether `word` is a reserved word; note in `frame` what it begins or ends."""
    if word in _BEFORE_A_COMMAND:
        return True
    if word == "function":
        frame.skips = True  # its name
        return True
    if word == "case":
        frame.cases.append("word")
    elif word == "esac" and frame.cases:
        frame.cases.pop()
    elif word == "[[":
        frame.in_test = True
    elif word not in _NO_COMMAND:
        return False
    frame.expects = False
    return True


def _in_case(frame: _Frame, word: str) -> None:
    """Process a word between `case` and `in`, or a pattern."""
    if frame.cases[-1] == "word":
        if word == "in":
            frame.cases[-1] = "pattern"
    elif word == "esac":
        frame.cases.pop()
        frame.expects = False
