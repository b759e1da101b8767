"""Parses untrusted YAML into a tree of bounded size whose values know their key and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

import yaml

from tbench.errors import TaskInvalid
from tbench.text import one_line

TEXT_BYTES = 1 << 18
"""Maximum size of a compose file or a file of variables in bytes; PyYAML reads some 100 kB in a second."""
_VALUES, _DEPTH = 20_000, 40
"""Maximum number of values, with aliases counted each time they are used, and maximum nesting."""
_CHARACTERS = 4 << 20
"""Maximum number of characters of all texts, counted in the same way."""
_NULLS = {"", "~", "null", "Null", "NULL"}
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "timestamp", "value", "merge")}
_FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "y"), True),
    **dict.fromkeys(("false", "no", "off", "n"), False),
}
_WORD = re.compile(r"[A-Za-z0-9._-]+")

Substitute = Callable[[str, str], str]
"""Substitutes the variables in the text of a dotted key. Raises ValueError."""


@dataclass(frozen=True)
class YamlNode:
    """A value of a YAML file: a mapping, a list, a text, or null. Its methods raise TaskInvalid."""

    file: str
    key: str
    """Dotted key; empty for the whole file."""
    line: int
    content: dict[str, YamlNode] | list[YamlNode] | str | None

    def fail(self, problem: str) -> NoReturn:
        raise TaskInvalid(f"{self.file}:{self.line}: {f'{self.key}: ' if self.key else ''}{problem}")

    @property
    def is_null(self) -> bool:
        return self.content is None

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.content, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.content, list)

    def mapping(self) -> dict[str, YamlNode]:
        """Return the values by key; empty for null."""
        if self.content is None:
            return {}
        return self.content if isinstance(self.content, dict) else self.fail(f"has to be a mapping{self._found_text()}")

    def items(self) -> list[YamlNode]:
        """Return the values of a list; empty for null."""
        if self.content is None:
            return []
        return self.content if isinstance(self.content, list) else self.fail(f"has to be a list{self._found_text()}")

    def table(self, known: Collection[str]) -> dict[str, YamlNode]:
        """Return the values by key, without keys that begin with `x-`; all others have to be known."""
        found = self.mapping()
        for key, node in found.items():
            if key not in known and not key.startswith("x-"):
                near = get_close_matches(key, known, 1)
                node.fail(f"unknown key{f'; did you mean {near[0]}?' if near else ''}")
        return {key: node for key, node in found.items() if not key.startswith("x-")}

    def text(self) -> str:
        return self.content if isinstance(self.content, str) else self.fail(f"has to be a text{self._found_text()}")

    def boolean(self) -> bool:
        found = _FLAGS.get(self.text().lower())
        return self.fail(f"has to be true or false{self._found_text()}") if found is None else found

    def integer(self, least: int = 0) -> int:
        try:
            number = int(self.text(), 0)
        except ValueError:
            self.fail(f"has to be a whole number{self._found_text()}")
        return number if number >= least else self.fail(f"has to be at least {least}{self._found_text()}")

    def number(self) -> float:
        try:
            number = float(self.text())
        except ValueError:
            number = float("nan")
        # Neither inf nor nan is a limit.
        return number if 0 <= number < 1e12 else self.fail(f"has to be a number of 0 or more{self._found_text()}")

    def name(self) -> str:
        """Return a text that is a valid name on an engine."""
        if _WORD.fullmatch(self.text()) is None:
            self.fail(f"has to be a name of letters, digits and ._-{self._found_text()}")
        return self.text()

    def one_of(self, words: Collection[str]) -> str:
        return self.text() if self.text() in words else self.fail(f"has to be {' or '.join(words)}{self._found_text()}")

    def texts(self) -> tuple[str, ...]:
        """Return the texts of a list, or a single text."""
        return (self.text(),) if isinstance(self.content, str) else tuple(item.text() for item in self.items())

    def _found_text(self) -> str:
        if isinstance(self.content, str):
            return f" (got {one_line(repr(self.content), 80)})"
        return f" (got {'a mapping' if self.is_mapping else 'a list' if self.is_list else 'nothing'})"


def parse(file: str, text: bytes, substitute: Substitute = lambda _, text: text) -> YamlNode:
    """Parse a YAML file that is called `file` in messages. Raises TaskInvalid with the line.

    Scalars are read as in YAML 1.2: `22:22` and `yes` are texts. `substitute` is applied to values, not to keys.
    """
    if len(text) > TEXT_BYTES:
        raise TaskInvalid(f"{file}: has {len(text):,} bytes, more than {TEXT_BYTES:,}; make it shorter")
    try:
        loader = yaml.SafeLoader(text.decode("utf-8"))
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
        return YamlNode(file, "", 1, None) if root is None else _TreeBuilder(file, substitute).node(root, "", 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}" if mark else ""
        raise TaskInvalid(f"{file}{where}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise TaskInvalid(f"{file}: not valid YAML: {one_line(str(error), 200)}") from None


class _TreeBuilder:
    """Builds the tree of one file and enforces its limits."""

    def __init__(self, file: str, substitute: Substitute) -> None:
        self._file = file
        self._substitute = substitute
        self._values = 0
        self._characters = 0

    def node(self, raw: yaml.Node, key: str, depth: int) -> YamlNode:
        line = raw.start_mark.line + 1
        empty = YamlNode(self._file, key, line, None)
        self._values += 1
        if self._values > _VALUES:
            raise TaskInvalid(f"{self._file}: has more than {_VALUES:,} values, with aliases counted each time")
        if depth > _DEPTH:
            empty.fail(f"is nested deeper than {_DEPTH} levels")
        if isinstance(raw, yaml.MappingNode):
            self._require_tag(empty, raw, "map")
            return YamlNode(self._file, key, line, dict(self._entries(raw, key, depth, frozenset())))
        if isinstance(raw, yaml.SequenceNode):
            self._require_tag(empty, raw, "seq")
            return YamlNode(
                self._file, key, line, [self.node(each, f"{key}[{i}]", depth + 1) for i, each in enumerate(raw.value)]
            )
        if not isinstance(raw, yaml.ScalarNode) or raw.tag not in _TAGS:
            empty.fail(f"the tag {raw.tag} is unsupported")
        if raw.style is None and raw.value in _NULLS:
            return empty
        try:
            text = self._substitute(key, raw.value)
        except ValueError as error:
            empty.fail(str(error))
        self._characters += len(text)
        if self._characters > _CHARACTERS:
            raise TaskInvalid(f"{self._file}: has more than {_CHARACTERS:,} characters, including aliases")
        return YamlNode(self._file, key, line, text)

    def _require_tag(self, empty: YamlNode, raw: yaml.Node, kind: str) -> None:
        if raw.tag != f"tag:yaml.org,2002:{kind}":
            empty.fail(f"the tag {raw.tag} is unsupported")

    def _entries(
        self, raw: yaml.MappingNode, key: str, depth: int, merging: frozenset[int]
    ) -> Iterator[tuple[str, YamlNode]]:
        """Yield the entries so that later ones take precedence: merged ones (`<<`) before explicit ones."""
        seen: set[str] = set()
        own = []
        if depth > _DEPTH or id(raw) in merging:
            raise TaskInvalid(f"{self._file}:{raw.start_mark.line + 1}: {key}: is merged into itself")
        for name_node, value in raw.value:
            where = YamlNode(self._file, key, name_node.start_mark.line + 1, None)
            if not isinstance(name_node, yaml.ScalarNode):
                where.fail("a key has to be a text")
            name = name_node.value
            if name_node.tag.endswith(":merge") and name == "<<":
                merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for each in reversed(merged):
                    if not isinstance(each, yaml.MappingNode):
                        where.fail("<< has to be a mapping, or a list of mappings")
                    yield from self._entries(each, key, depth + 1, merging | {id(raw)})
                continue
            if name in seen:
                where.fail(f"duplicate key {one_line(name, 80)!r}")
            seen.add(name)
            own.append((name, value, name_node.start_mark.line + 1))
        for name, value, line in own:
            node = self.node(value, f"{key}.{name}" if key else name, depth + 1)
            yield name, YamlNode(node.file, node.key, line, node.content)
