"""Commands of the debugger in words, as scripts write them, and what each asks of the run."""

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


class Told(NamedTuple):
    """A command in words: its name, and what it asks of the run; nothing where it only shows something."""

    name: str
    request: Request | None


Asked = Mapping[str, Any]
"""A request but for its trial."""
_NUMBER = re.compile(r"\d+\Z")
_ESCAPE = re.compile(r"(\\(?:[\\'\"abefnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}))")
SHOWN = ("screen", "steps", "draft", "help")
"""Commands that ask nothing of the trial, and only show something."""
_AS_THEY_ARE = ("edit", "type")
"""Commands whose text keeps its blanks."""


def told(line: str, trial: str) -> Told:
    """What a line of words, or of JSON, means for this trial. Raises UsageError."""
    words = line.lstrip()
    if words.startswith("{"):
        return _as_json(words, trial)
    name, _, rest = words.partition(" ")
    name = name.strip()
    if name in SHOWN:
        return Told(name, None)
    if name not in MEANINGS:
        near = difflib.get_close_matches(name, [*MEANINGS, *SHOWN], n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join([*MEANINGS, *SHOWN])}"
        raise UsageError(f"{plain(name)}: no such command; {hint}")
    usage, meaning = MEANINGS[name]
    try:
        asked = {"do": name, "trial": trial, **meaning(rest if name in _AS_THEY_ARE else rest.strip())}
        return Told(name, read_request(json.dumps(asked).encode()))
    except ValidationError as error:
        raise UsageError(f"{plain(words)}: {_first(error)}; write: {usage}") from None
    except ValueError:
        raise UsageError(f"{plain(words)}: cannot be understood; write: {usage}") from None


def _as_json(words: str, trial: str) -> Told:
    try:
        asked = json.loads(words)
        request = read_request(json.dumps({"trial": trial, **asked}).encode())
    except ValidationError as error:
        raise UsageError(f"{plain(words)}: {_first(error)}") from None
    except ValueError as error:
        raise UsageError(f"{plain(words)}: is no JSON: {error}") from None
    return Told(request.do, request)


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return one_line(f"{where}: {first['msg']}" if where else str(first["msg"]))


# -- what each command's words mean ------------------------------------------------------------------


def _nothing(rest: str) -> Asked:
    if rest:
        raise ValueError
    return {}


def _text(key: str) -> Callable[[str], Asked]:
    def meaning(rest: str) -> Asked:
        if not rest:
            raise ValueError
        return {key: rest}

    return meaning


def _number(key: str, default: int | None = None) -> Callable[[str], Asked]:
    def meaning(rest: str) -> Asked:
        return {key: int(rest) if rest or default is None else default}

    return meaning


def _run(rest: str) -> Asked:
    kind, _, what = rest.partition(" ")
    if not rest:
        return {"to_step": None, "until_text": None}
    if kind == "to" and _NUMBER.match(what):
        return {"to_step": int(what), "until_text": None}
    if kind == "until" and what:
        return {"to_step": None, "until_text": what}
    raise ValueError


def _sample(rest: str) -> Asked:
    asked: dict[str, Any] = {}
    for word in rest.split():
        name, has_name, value = word.partition("=")
        if not has_name:
            name, value = "number", word
        if name in asked or name not in ("number", "seed", "temperature"):
            raise ValueError
        asked[name] = float(value) if name == "temperature" else int(value)
    return asked


def _keys(rest: str) -> Asked:
    """Text with the escapes of Python and C: \\n is Enter, \\x03 is Ctrl-C."""
    if not rest:
        raise ValueError
    pieces = _ESCAPE.split(rest)
    return {"keys": "".join(_unescaped(each) if at % 2 else each for at, each in enumerate(pieces))}


def _unescaped(escape: str) -> str:
    return "\x1b" if escape == "\\e" else codecs.decode(escape, "unicode_escape")


def _quit(rest: str) -> Asked:
    if rest not in ("", "keep"):
        raise ValueError
    return {"keep": rest == "keep"}


MEANINGS: Mapping[str, tuple[str, Callable[[str], Asked]]] = {
    "step": ("step [N]", _number("count", 1)),
    "run": ("run, run to N, or run until TEXT", _run),
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
"""By name: how it is written, and its request."""
