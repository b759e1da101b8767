"""Reads YAML of a stranger: plain data only, within bounds, and every fault named by file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tbench.errors import TaskInvalid
from tbench.tasks.bounds import read_bounded

MOST_VALUES = 20_000
"""Most values of a file, counted as often as an alias repeats them: ten lines of aliases can mean billions."""
_BAD_VALUES = (ValueError, TypeError, AttributeError, KeyError, OverflowError)
"""What PyYAML lets through for a value that is not of the type that its tag names."""


def read_yaml(path: Path) -> Any:
    """The content of a YAML file. Raises OSError, and TaskInvalid with the line where it is no YAML or too much."""
    try:
        # Not the loader in C: it recurses without a bound, and a row of brackets ends the process.
        loader = yaml.SafeLoader(read_bounded(path).decode("utf-8"))
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _require_few(node, path)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise TaskInvalid(f"{path}: {where}is no YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:  # characters that YAML does not allow
        raise TaskInvalid(f"{path}: is no YAML: {error}") from None
    except UnicodeDecodeError:
        raise TaskInvalid(f"{path}: is no YAML: it is not UTF-8") from None
    except RecursionError:
        raise TaskInvalid(f"{path}: is nested too deeply") from None
    except _BAD_VALUES as error:
        raise TaskInvalid(f"{path}: is no YAML that can be used: {error}") from None


def _require_few(root: yaml.Node, path: Path) -> None:
    """Raise TaskInvalid where there are too many values, or one holds itself."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, above: frozenset[int]) -> int:
        if id(node) in above:
            raise TaskInvalid(f"{path}: line {node.start_mark.line + 1}: an alias stands within what it means")
        if id(node) not in sizes:
            within = above | {id(node)} if isinstance(node, yaml.CollectionNode) else above
            sizes[id(node)] = 1 + sum(size(each, within) for each in _children(node))
        return sizes[id(node)]

    if (found := size(root, frozenset())) > MOST_VALUES:
        raise TaskInvalid(f"{path}: holds {found:,} values, and at most {MOST_VALUES:,} are read")


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
