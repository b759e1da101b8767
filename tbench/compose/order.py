"""The order of services: each comes after those that it needs; what refers to nothing, or to itself, is an error."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from tbench.compose.project import Service
from tbench.compose.yaml_tree import YamlNode


def in_order(services: Mapping[str, Service], nodes: Mapping[str, YamlNode]) -> dict[str, Service]:
    """The same services, each after those that it needs. Raises TaskInvalid for a name without a service, and a cycle.

    `nodes` are those of the services in the file; of one that is not in it, nothing can be wrong.
    """
    done: dict[str, Service] = {}

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            cycle = " -> ".join((*way[way.index(name) :], name))
            nodes[name].fail(f"depends on itself: {cycle}")
        if name in done:
            return
        for needed in services[name].needs:
            if needed not in services:
                near = get_close_matches(needed, services, 1)
                meant = f"; did you mean {near[0]}?" if near else ""
                nodes[name].fail(f"depends on {needed}, and there is no such service{meant}")
            visit(needed, (*way, name))
        done[name] = services[name]

    for name in services:
        visit(name, ())
    return done
