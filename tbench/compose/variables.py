"""Variables of compose files: substitutes them, and reads files of lines `NAME=text`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tbench.compose.mounts import TaskFolder
from tbench.compose.yaml_tree import TEXT_BYTES, YamlNode
from tbench.text import one_line

# Substitutes `$VAR`, `${VAR}` and forms with defaults, as in the Compose specification, but never from the environment
# of this process. Other variables that a file uses are recorded.

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":?[-?+]")
_DEPTH = 8


@dataclass(frozen=True)
class RequestedVariable:
    """A variable that a compose file uses and that is not the task's own."""

    key: str
    """Dotted key of the value that uses it."""
    name: str
    has_default: bool
    is_given: bool
    advice: str = ""
    """The file's message for a missing variable, as in `${VAR:?advice}`."""


class Variables:
    """Variables available to a compose file, and those that it has requested."""

    def __init__(self, own: Mapping[str, str], given: Mapping[str, str]) -> None:
        """`own` are the task's variables; `given` are the user's, with lower priority."""
        self.asked: list[RequestedVariable] = []
        self._own = own
        self._given = given

    @property
    def missing(self) -> tuple[RequestedVariable, ...]:
        """Requested variables without a value or default."""
        return tuple(asked for asked in self.asked if not asked.is_given and not asked.has_default)

    def look_up(self, key: str, name: str, *, has_default: bool, advice: str = "") -> str | None:
        """Look up a variable for the value at `key`; None if it has no value."""
        if name in self._own:
            return self._own[name]
        asked = RequestedVariable(key, name, has_default, name in self._given, advice)
        if asked not in self.asked:
            self.asked.append(asked)
        return self._given.get(name)

    def substitute(self, key: str, text: str) -> str:
        """Substitute the variables in `text`; missing ones become empty. Raises ValueError for invalid syntax."""
        if "$" not in text:
            return text
        filled, end = self._substitute(key, text, 0, 0)
        assert end == len(text)
        return filled

    def _substitute(self, key: str, text: str, start: int, depth: int) -> tuple[str, int]:
        """Substitute up to the end, or inside braces up to the closing one; returns also that position."""
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
        """Return the value of the variable that begins at a `$`, and the position after it."""
        is_braced = text.startswith("${", at)
        name = _NAME.match(text, at + 1 + is_braced)
        if name is None:
            raise ValueError(f"no variable after the $ in {one_line(repr(text), 80)}; write $$ for a dollar sign")
        if not is_braced:
            return self.look_up(key, name[0], has_default=False) or "", name.end()
        operator, otherwise, end = "", "", name.end()
        if found := _OPERATOR.match(text, end):
            operator = found[0]
            otherwise, end = self._substitute(key, text, found.end(), depth + 1)
        if not text.startswith("}", end):
            raise ValueError(
                f"{one_line(repr(text), 80)} has an unclosed or unnamed {'${'}; write $$ for a dollar sign"
            )
        return self._with_default(key, name[0], operator, otherwise), end + 1

    def _with_default(self, key: str, name: str, operator: str, otherwise: str) -> str:
        kind = operator[-1:]
        found = self.look_up(key, name, has_default=kind in ("-", "+"), advice=otherwise if kind == "?" else "")
        is_set = found is not None and not (operator.startswith(":") and not found)
        if kind == "+":
            return otherwise if is_set else ""
        return (found or "") if is_set else (otherwise if kind == "-" else "")


_LINE = re.compile(r"\s*(?:export\s+)?([^\s=]+)\s*(?:=\s*(.*?))?\s*")
_COMMENT = re.compile(r"\s+#.*")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$$"}


def read_variable_files(node: YamlNode, folder: TaskFolder, variables: Variables) -> dict[str, str]:
    """Read the files of the key `env_file`; later files take precedence. Raises TaskInvalid."""
    found: dict[str, str] = {}
    for item in [node] if not node.is_list else node.items():
        is_required, raw = True, False
        where = item
        if item.is_mapping:
            given = item.table({"path", "required", "format"})
            where = given["path"] if "path" in given else item.fail("needs a path")
            is_required = given["required"].boolean() if "required" in given else True
            raw = "format" in given and given["format"].one_of(("raw",)) == "raw"
        text = _content(where, folder, is_required=is_required)
        found |= _variables(where, text, None if raw else variables)
    return found


def _content(node: YamlNode, folder: TaskFolder, *, is_required: bool) -> str:
    inside = folder.relative(node.text())
    if inside is None:
        node.fail(f"{node.text()} is not in the task")
    path = folder.path / inside
    if not path.is_file():
        return node.fail(f"{node.text()}: no such file in the task") if is_required else ""
    with path.open("rb") as file:
        content = file.read(TEXT_BYTES + 1)
    if len(content) > TEXT_BYTES:
        node.fail(f"{node.text()} has more than {TEXT_BYTES:,} bytes; make it shorter")
    return content.decode("utf-8", "replace")


def _variables(node: YamlNode, text: str, variables: Variables | None) -> dict[str, str]:
    """Parse the variables of one file; without `variables` texts are taken literally, including quotes."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or "\0" in line:
            node.fail(f"{node.text()}, line {number}: has to be NAME=text")
        name, value = match.groups()
        key = f"{node.key} ({node.text()}, {name})"
        if value is None:
            if variables is not None and (taken := variables.look_up(key, name, has_default=True)) is not None:
                found[name] = taken
            continue
        try:
            found[name] = value if variables is None else _substitute_value(key, value, variables)
        except ValueError as error:
            node.fail(f"{node.text()}, line {number}: {error}")
    return found


def _substitute_value(key: str, value: str, variables: Variables) -> str:
    quote = value[:1]
    if quote in ("'", '"'):
        end = value.rfind(quote)
        if end == 0:
            raise ValueError("a quote is not closed")
        inner = value[1:end]
        if quote == "'":
            return inner
        return variables.substitute(key, re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), inner))
    return variables.substitute(key, _COMMENT.sub("", value))
