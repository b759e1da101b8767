"""Parser of the debugger's commands: turns a line into a request to the run."""

from __future__ import annotations

import codecs
import difflib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from tbench.control.wire import Request, read_request
from tbench.errors import UsageError
from tbench.text import one_line, plain


class ParsedCommand(NamedTuple):
    """A parsed command: its name, and its request to the run, None for commands that only show something."""

    name: str
    request: Request | None


RequestFields = Mapping[str, Any]
"""Fields of a request without its trial."""
_NUMBER = re.compile(r"\d+\Z")
_ESCAPE = re.compile(r"(\\(?:[\\'\"abefnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}))")
LOCAL_COMMANDS = ("screen", "steps", "draft", "help")
"""Commands that only show something, and send no request."""
_RAW_TEXT = ("edit", "type")
"""Commands whose text keeps its whitespace."""


def parse_command(line: str, trial: str) -> ParsedCommand:
    """Parse a line of words or JSON as a command for a trial. Raises UsageError."""
    text = line.lstrip()
    if text.startswith("{"):
        return _as_json(text, trial)
    name, _, rest = text.partition(" ")
    name = name.strip()
    if name in LOCAL_COMMANDS:
        return ParsedCommand(name, None)
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, [*COMMANDS, *LOCAL_COMMANDS], n=1)
        hint = f"did you mean {near[0]}?" if near else f"commands: {', '.join([*COMMANDS, *LOCAL_COMMANDS])}"
        raise UsageError(f"{plain(name)}: no such command; {hint}")
    usage, meaning = COMMANDS[name]
    try:
        asked = {"do": name, "trial": trial, **meaning(rest if name in _RAW_TEXT else rest.strip())}
        return ParsedCommand(name, read_request(json.dumps(asked).encode()))
    except ValidationError as error:
        raise UsageError(f"{plain(text)}: {_first(error)}; usage: {usage}") from None
    except ValueError:
        raise UsageError(f"{plain(text)}: not understood; usage: {usage}") from None


def _as_json(text: str, trial: str) -> ParsedCommand:
    try:
        asked = json.loads(text)
        request = read_request(json.dumps({"trial": trial, **asked}).encode())
    except ValidationError as error:
        raise UsageError(f"{plain(text)}: {_first(error)}") from None
    except ValueError as error:
        raise UsageError(f"{plain(text)}: invalid JSON: {error}") from None
    return ParsedCommand(request.do, request)


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return one_line(f"{where}: {first['msg']}" if where else str(first["msg"]))


# -- arguments of the commands -----------------------------------------------------------------------


def _nothing(rest: str) -> RequestFields:
    if rest:
        raise ValueError
    return {}


def _text(key: str) -> Callable[[str], RequestFields]:
    def meaning(rest: str) -> RequestFields:
        if not rest:
            raise ValueError
        return {key: rest}

    return meaning


def _number(key: str, default: int | None = None) -> Callable[[str], RequestFields]:
    def meaning(rest: str) -> RequestFields:
        return {key: int(rest) if rest or default is None else default}

    return meaning


def _run(rest: str) -> RequestFields:
    kind, _, what = rest.partition(" ")
    if not rest:
        return {}
    if kind == "to" and _NUMBER.match(what):
        return {"to_step": int(what)}
    if kind == "until" and what:
        return _until(what.strip())
    raise ValueError


def _until(what: str) -> RequestFields:
    kind, _, name = what.partition(" ")
    name = name.strip()
    if what == "exit":
        return {"until_exit": True}
    if kind == "test":
        return {"until_test": name}
    if kind == "changed" and name.startswith("/"):
        return {"until_changed": name}
    if kind == "changed":
        raise ValueError
    return {"until_text": name if kind == "text" and name else what}


def _sample(rest: str) -> RequestFields:
    asked: dict[str, Any] = {}
    for word in rest.split():
        name, has_name, value = word.partition("=")
        if not has_name:
            name, value = "number", word
        if name in asked or name not in ("number", "seed", "temperature"):
            raise ValueError
        asked[name] = float(value) if name == "temperature" else int(value)
    return asked


def _keys(rest: str) -> RequestFields:
    """Parse keys with escapes as in Python and C: \\n is Enter, \\x03 is Ctrl-C."""
    if not rest:
        raise ValueError
    pieces = _ESCAPE.split(rest)
    return {"keys": "".join(_unescape(each) if at % 2 else each for at, each in enumerate(pieces))}


def _unescape(escape: str) -> str:
    return "\x1b" if escape == "\\e" else codecs.decode(escape, "unicode_escape")


def _quit(rest: str) -> RequestFields:
    if rest not in ("", "keep"):
        raise ValueError
    return {"keep": rest == "keep"}


UNTIL = "TEXT, changed /PATH, test [NAME], exit"
"""Breakpoints; `text TEXT` stops at a text that is itself a kind of breakpoint."""
COMMANDS: Mapping[str, tuple[str, Callable[[str], RequestFields]]] = {
    "step": ("step [N]", _number("count", 1)),
    "run": (f"run, run to N, run until {UNTIL}", _run),
    "edit": ("edit TEXT", _text("text")),
    "drop": ("drop WHY", _text("why")),
    "sample": ("sample [N] [seed=S] [temperature=T]", _sample),
    "choose": ("choose N", _number("sample")),
    "type": ("type KEYS, where \\n is Enter", _keys),
    "say": ("say TEXT", _text("text")),
    "verify": ("verify", _nothing),
    "snapshot": ("snapshot", _nothing),
    "rewind": ("rewind N", _number("step")),
    "cassette": ("cassette", _nothing),
    "pause": ("pause", _nothing),
    "continue": ("continue", _nothing),
    "quit": ("quit, or quit keep", _quit),
}
"""Usage and argument parser of each command, by name."""
