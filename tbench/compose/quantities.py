"""Durations, sizes and command lines, as the Compose specification writes them."""

from __future__ import annotations

import re
import shlex

from tbench.compose.yaml_tree import YamlNode

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|us|ns|µs)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_LONGEST_SEC = 7 * 24 * 3600.0
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(b|k|kb|kib|m|mb|mib|g|gb|gib|t|tb|tib)?", re.IGNORECASE)
_BYTES = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def duration_sec(node: YamlNode) -> float:
    """Seconds of a duration such as `1m30s`. Raises TaskInvalid."""
    text = node.text().strip()
    parts = _DURATION.findall(text)
    if text == "0":
        return 0.0
    if not parts or "".join(number + unit for number, unit in parts) != text:
        node.fail(f"is no duration such as 2s or 1m30s (got {text!r})")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return seconds if seconds <= _LONGEST_SEC else node.fail(f"is longer than a week (got {text!r})")


def size_bytes(node: YamlNode) -> int:
    """Bytes of a size such as `512m`, or of a bare number. Raises TaskInvalid."""
    match = _SIZE.fullmatch(node.text().strip())
    if match is None:
        node.fail(f"is no size such as 512m or 2gb (got {node.text()!r})")
    size = int(float(match[1]) * _BYTES[(match[2] or "b")[0].lower()])
    return size if size < 1 << 50 else node.fail(f"is larger than any machine (got {node.text()!r})")


def words(node: YamlNode) -> tuple[str, ...] | None:
    """The words of a command: a list as it is, a text split as a shell would; None for nothing. Raises TaskInvalid."""
    if node.is_null:
        return None
    if node.is_list:
        return node.texts()
    try:
        return tuple(shlex.split(node.text()))
    except ValueError as error:
        node.fail(f"cannot be split into words: {error}")
