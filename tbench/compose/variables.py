"""The variables of compose files: filled in, and read from files of lines `NAME=text`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tbench.compose.mounts import relative_to
from tbench.compose.yaml_tree import TEXT_BYTES, YamlNode
from tbench.text import one_line

# Fills the variables of a compose file in: `$VAR`, `${VAR}`, and with defaults, as the Compose specification has them.
#
# A variable comes from what is given, never from the environment of this process. What is asked for beyond that is
# written down.

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":?[-?+]")
_DEPTH = 8


@dataclass(frozen=True)
class AskedVariable:
    """A variable that a compose file asks for and that is none of a task's own."""

    key: str
    """Dotted key of the value that asks."""
    name: str
    has_default: bool
    is_given: bool
    advice: str = ""
    """What the file says of a variable that is missing, as `${VAR:?advice}`."""


class Variables:
    """What a compose file may take, and what it has asked for."""

    def __init__(self, own: Mapping[str, str], given: Mapping[str, str]) -> None:
        """`own` is the task's; `given` comes from elsewhere, with consent. The former wins."""
        self.asked: list[AskedVariable] = []
        self._own = own
        self._given = given

    @property
    def missing(self) -> tuple[AskedVariable, ...]:
        """What is asked for without a default and not given."""
        return tuple(asked for asked in self.asked if not asked.is_given and not asked.has_default)

    def look_up(self, key: str, name: str, *, has_default: bool, advice: str = "") -> str | None:
        """The value of a variable for the value at `key`; None where there is none."""
        if name in self._own:
            return self._own[name]
        asked = AskedVariable(key, name, has_default, name in self._given, advice)
        if asked not in self.asked:
            self.asked.append(asked)
        return self._given.get(name)

    def fill_in(self, key: str, text: str) -> str:
        """`text` with its variables. Those that are missing are empty. Raises ValueError for what cannot be read."""
        if "$" not in text:
            return text
        filled, end = self._filled(key, text, 0, 0)
        assert end == len(text)
        return filled

    def _filled(self, key: str, text: str, start: int, depth: int) -> tuple[str, int]:
        """Fill in up to the end, or, inside of braces, up to the one that closes; returns also where that is."""
        if depth > _DEPTH:
            raise ValueError(f"variables are nested deeper than {_DEPTH} levels")
        parts, at = [], start
        while at < len(text):
            char = text[at]
            if char == "}" and depth:
                break
            if char != "$":
                parts.append(char)
                at += 1
            elif text.startswith("$$", at):
                parts.append("$")
                at += 2
            else:
                part, at = self._variable(key, text, at, depth)
                parts.append(part)
        return "".join(parts), at

    def _variable(self, key: str, text: str, at: int, depth: int) -> tuple[str, int]:
        """The value of the variable that begins at a `$`, and where the text goes on."""
        is_braced = text.startswith("${", at)
        name = _NAME.match(text, at + 1 + is_braced)
        if name is None:
            raise ValueError(f"no variable follows the $ in {one_line(repr(text), 80)}; $$ is a dollar")
        if not is_braced:
            return self.look_up(key, name[0], has_default=False) or "", name.end()
        operator, otherwise, end = "", "", name.end()
        if found := _OPERATOR.match(text, end):
            operator = found[0]
            otherwise, end = self._filled(key, text, found.end(), depth + 1)
        if not text.startswith("}", end):
            raise ValueError(
                f"{one_line(repr(text), 80)} has a {'${'} that does not end, or no name in it; $$ is a dollar"
            )
        return self._with_default(key, name[0], operator, otherwise), end + 1

    def _with_default(self, key: str, name: str, operator: str, otherwise: str) -> str:
        kind = operator[-1:]
        found = self.look_up(key, name, has_default=kind in ("-", "+"), advice=otherwise if kind == "?" else "")
        is_there = found is not None and not (operator.startswith(":") and not found)
        if kind == "+":
            return otherwise if is_there else ""
        return (found or "") if is_there else (otherwise if kind == "-" else "")


# Files of variables (`env_file`): lines `NAME=text` beside the compose file.

_LINE = re.compile(r"\s*(?:export\s+)?([^\s=]+)\s*(?:=\s*(.*?))?\s*")
_COMMENT = re.compile(r"\s+#.*")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$$"}


def read_variable_files(node: YamlNode, folder: Path, variables: Variables) -> dict[str, str]:
    """Variables of all files of the key `env_file`; a later file wins. Raises TaskInvalid."""
    found: dict[str, str] = {}
    for item in [node] if not node.is_list else node.items():
        is_required, raw = True, False
        where = item
        if item.is_mapping:
            given = item.table({"path", "required", "format"})
            where = given["path"] if "path" in given else item.fail("needs a path")
            is_required = given["required"].flag() if "required" in given else True
            raw = "format" in given and given["format"].one_of(("raw",)) == "raw"
        text = _content(where, folder, is_required=is_required)
        found |= _variables(where, text, None if raw else variables)
    return found


def _content(node: YamlNode, folder: Path, *, is_required: bool) -> str:
    inside = relative_to(folder, node.text())
    if inside is None:
        node.fail(f"{node.text()} is not beside the compose file")
    path = folder / inside
    if not path.is_file():
        return node.fail(f"{node.text()}: there is no such file beside the compose file") if is_required else ""
    with path.open("rb") as file:
        content = file.read(TEXT_BYTES + 1)
    if len(content) > TEXT_BYTES:
        node.fail(f"{node.text()} holds more than {TEXT_BYTES:,} bytes; make it shorter")
    return content.decode("utf-8", "replace")


def _variables(node: YamlNode, text: str, variables: Variables | None) -> dict[str, str]:
    """The variables of one file; without `variables` texts are taken as they are, quotes and all."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or "\0" in line:
            node.fail(f"{node.text()}, line {number}: is no NAME=text")
        name, value = match.groups()
        key = f"{node.key} ({node.text()}, {name})"
        if value is None:
            if variables is not None and (taken := variables.look_up(key, name, has_default=True)) is not None:
                found[name] = taken
            continue
        try:
            found[name] = value if variables is None else _filled_in(key, value, variables)
        except ValueError as error:
            node.fail(f"{node.text()}, line {number}: {error}")
    return found


def _filled_in(key: str, value: str, variables: Variables) -> str:
    quote = value[:1]
    if quote in ("'", '"'):
        end = value.rfind(quote)
        if end == 0:
            raise ValueError("a quote does not end")
        inner = value[1:end]
        if quote == "'":
            return inner
        return variables.fill_in(key, re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), inner))
    return variables.fill_in(key, _COMMENT.sub("", value))
