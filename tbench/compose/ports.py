"""The ports of services. None is published: two trials at once would want the same one of the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tbench.compose.notices import Notices
from tbench.compose.yaml_tree import YamlNode

_PORT = re.compile(
    r"(?:(?P<address>\[[\da-fA-F:]+\]|\d+(?:\.\d+){3}):)?(?:(?P<published>\d*(?:-\d+)?):)?"
    r"(?P<target>\d+(?:-\d+)?)(?:/(?P<protocol>tcp|udp|sctp))?"
)
_LONG = {"target", "published", "protocol"}
_LONG_IGNORED = dict.fromkeys(("host_ip", "mode", "name", "app_protocol"), "nothing is published")
_MOST = 2_000
"""Most ports of one entry."""


@dataclass(frozen=True)
class ServicePorts:
    """Ports within a service's network, and those that it would have on the machine: `8080/tcp` each."""

    inside: tuple[str, ...] = ()
    published: tuple[str, ...] = ()


def read_expose(node: YamlNode) -> tuple[str, ...]:
    """The ports of the key `expose`. Raises TaskInvalid."""
    found: list[str] = []
    for item in node.items():
        match = _PORT.fullmatch(item.text())
        if match is None or match["published"] or match["address"]:
            item.fail(f"is no port such as 8080 or 53/udp (got {item.text()!r})")
        found += _numbered(item, match["target"], match["protocol"] or "tcp")
    return tuple(found)


def read_ports(node: YamlNode, notices: Notices) -> ServicePorts:
    """The ports of the key `ports`. Raises TaskInvalid."""
    inside: list[str] = []
    published: list[str] = []
    for item in node.items():
        target, outside, protocol = _long(item, notices) if item.is_mapping else _short(item)
        inside += _numbered(item, target, protocol)
        if outside:
            published += _numbered(item, outside, protocol)
    if node.items():
        notices.ignored[node.key] = "no port is published on the machine; services reach each other by name"
    return ServicePorts(tuple(dict.fromkeys(inside)), tuple(dict.fromkeys(published)))


def _short(node: YamlNode) -> tuple[str, str, str]:
    match = _PORT.fullmatch(node.text())
    if match is None:
        node.fail(f"is no [PUBLISHED:]PORT such as 8080:80 (got {node.text()!r})")
    return match["target"], match["published"] or "", match["protocol"] or "tcp"


def _long(node: YamlNode, notices: Notices) -> tuple[str, str, str]:
    entries = notices.table(node, _LONG, _LONG_IGNORED)
    if "target" not in entries:
        node.fail("needs a target")
    texts = {key: entry.text() for key, entry in entries.items()}
    return texts["target"], texts.get("published", ""), texts.get("protocol", "tcp")


def _numbered(node: YamlNode, ports: str, protocol: str) -> Iterator[str]:
    """Each port of a number or a range."""
    first, _, last = ports.partition("-")
    if not first.isdigit() or (last and not last.isdigit()):
        node.fail(f"is no port, and no range of them (got {ports!r})")
    low, high = int(first), int(last or first)
    if not 0 < low <= high < 1 << 16 or high - low >= _MOST:
        node.fail(f"is no port from 1 to 65535, and no range of at most {_MOST:,} (got {ports!r})")
    return (f"{port}/{protocol}" for port in range(low, high + 1))
