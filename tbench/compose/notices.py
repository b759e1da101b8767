"""What is found in a compose file beside its services: keys without effect, without support, and for the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tbench.compose.yaml_tree import YamlNode


@dataclass
class Notices:
    """Dotted keys, in the order of the file."""

    ignored: dict[str, str] = field(default_factory=dict)
    """Why a key has no effect, by key."""
    unsupported: list[str] = field(default_factory=list)
    host_access: list[str] = field(default_factory=list)
    """What asks for access to the engine's machine: `KEY: value` each."""

    def table(
        self,
        node: YamlNode,
        known: Collection[str],
        ignored: Mapping[str, str] | None = None,
        unsupported: Collection[str] = (),
    ) -> dict[str, YamlNode]:
        """The entries of a mapping that are to be obeyed; the others are noted. Raises TaskInvalid for unknown keys."""
        ignored = ignored or {}
        found = node.table({*known, *ignored, *unsupported})
        for key, value in found.items():
            if key in ignored:
                self.ignored[value.key] = ignored[key]
            elif key in unsupported:
                self.unsupported.append(value.key)
        return {key: value for key, value in found.items() if key in known}

    def lacks(self, node: YamlNode, what: str = "") -> None:
        """Note that a value is not supported."""
        self.unsupported.append(f"{node.key}{f': {what}' if what else ''}")

    def asks_for_host(self, node: YamlNode, what: str = "") -> None:
        """Note that a value gives access to the host."""
        self.host_access.append(f"{node.key}{f': {what}' if what else ''}")
