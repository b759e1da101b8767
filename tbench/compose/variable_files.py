"""Files of variables (`env_file`): lines `NAME=text` beside the compose file."""

from __future__ import annotations

import re
from pathlib import Path

from tbench.compose.interpolation import Variables
from tbench.compose.mounts import relative_to
from tbench.compose.yaml_tree import TEXT_BYTES, YamlNode

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
