"""Reads a task's compose file into a project, with its services in the order of their dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from tbench.compose import keys
from tbench.compose.keys import Notices
from tbench.compose.mounts import TaskFolder
from tbench.compose.project import (
    DEFAULT_NETWORK,
    MAIN,
    MAIN_LOGS_PLACEHOLDER,
    SHARED_LOGS,
    Project,
    Service,
    ServiceMount,
    TrialNetwork,
    TrialVolume,
    network_owner,
)
from tbench.compose.services import ReadService, ServiceReader
from tbench.compose.variables import RequestedVariable, Variables
from tbench.compose.yaml_tree import YamlNode, parse
from tbench.errors import TaskInvalid


def sort_by_needs(services: Mapping[str, Service], nodes: Mapping[str, YamlNode]) -> dict[str, Service]:
    """Sort services so that each comes after those that it needs. Raises TaskInvalid for unknown services and cycles.

    `nodes` are the services' nodes in the file, for error messages.
    """
    done: dict[str, Service] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            cycle = " -> ".join((*path[path.index(name) :], name))
            nodes[name].fail(f"depends on itself: {cycle}")
        if name in done:
            return
        for needed in services[name].needs:
            if needed not in services:
                near = get_close_matches(needed, services, 1)
                meant = f"; did you mean {near[0]}?" if near else ""
                nodes[name].fail(f"depends on an unknown service {needed}{meant}")
            visit(needed, (*path, name))
        done[name] = services[name]

    for name in services:
        visit(name, ())
    return done


_LOGS = {f"{MAIN_LOGS_PLACEHOLDER}-{below}": below for below in SHARED_LOGS}
"""Folders of logs by the names of their volumes."""


@dataclass(frozen=True)
class ComposeFile:
    """Content of a compose file with its variables filled in."""

    project: Project | None
    """None if the file cannot be read because variables are missing."""
    asked: tuple[RequestedVariable, ...] = ()
    """Variables that it uses and that are not the task's own."""
    unsupported: tuple[str, ...] = ()
    """Dotted keys that tbench does not support."""
    host_access: tuple[str, ...] = ()
    """Settings that give access to the engine's machine, as `KEY: value`."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Reasons why keys have no effect, by dotted key."""

    @property
    def missing(self) -> tuple[RequestedVariable, ...]:
        """Variables without a value or default."""
        return tuple(asked for asked in self.asked if not asked.is_given and not asked.has_default)


def read_compose(path: Path, text: bytes, variables: Variables, root: Path | None = None) -> ComposeFile:
    """Parse the content `text` of the compose file at `path`. Raises TaskInvalid with file, line and key.

    `root` is the task's directory, by default the file's directory.
    """
    notices = Notices()
    try:
        project = _read(path, text, variables, notices, root or path.parent)
    except TaskInvalid:
        if not variables.missing:
            raise
        project = None
    return ComposeFile(
        project, tuple(variables.asked), tuple(notices.unsupported), tuple(notices.host_access), notices.ignored
    )


def _read(path: Path, text: bytes, variables: Variables, notices: Notices, task: Path) -> Project:
    root = parse(str(path), text, variables.substitute)
    entries = notices.table(root, keys.FILE, None, keys.FILE_UNSUPPORTED)
    if "services" not in entries:
        root.fail("has no services")
    nodes = entries["services"].mapping()
    for node in nodes.values():
        YamlNode(node.file, node.key, node.line, node.key.partition(".")[2]).name()
    reader = ServiceReader(TaskFolder(path.parent, task), variables, notices)
    read = {name: reader.read(name, node) for name, node in nodes.items()}
    services = _link_services(read)
    for name, service in services.items():
        if name != MAIN and service.image is None and service.build is None:
            nodes[name].fail("has neither image nor build")
    _require_different_ports(read, services, nodes)
    services = sort_by_needs(services, nodes)
    networks = _networks(entries.get("networks"), services, nodes, notices)
    return Project(services, networks, _volumes(entries.get("volumes"), services, nodes, notices))


def _link_services(read: Mapping[str, ReadService]) -> dict[str, Service]:
    """Return the services to start, with aliases from each other's links and without absent optional dependencies."""
    started = {name: each for name, each in read.items() if not each.has_profiles}
    services = {name: each.service for name, each in started.items()}
    for name, each in started.items():
        gone = each.optional - services.keys()
        needed = {other: how for other, how in each.service.depends_on.items() if other not in gone}
        services[name] = replace(services[name], depends_on=needed)
    for each in started.values():
        for other, aliases in each.aliases_of_others.items():
            if aliases and other in services:
                wider = {network: (*own, *aliases) for network, own in services[other].networks.items()}
                services[other] = replace(services[other], networks=wider)
    services = {MAIN: Service(MAIN, networks={DEFAULT_NETWORK: ()}), **services}
    return {**services, MAIN: _with_shared_logs(services[MAIN], services)}


def _with_shared_logs(main: Service, services: Mapping[str, Service]) -> Service:
    """Return `main` with volumes for the folders of its logs that other services share."""
    sources = {mount.source for each in services.values() for mount in each.mounts if mount.kind == "volume"}
    shared = [ServiceMount("volume", name, f"/logs/{below}") for name, below in _LOGS.items() if name in sources]
    return replace(main, mounts=(*main.mounts, *shared))


def _require_different_ports(
    read: Mapping[str, ReadService], services: Mapping[str, Service], nodes: Mapping[str, YamlNode]
) -> None:
    """Check that no two services use the same port, of the machine or of a network that they share."""
    published = ((name, "on the machine", port) for name, each in read.items() for port in each.published)
    shared = (
        (each.name, f"in the network of {network_owner(services, each).name}", port)
        for each in services.values()
        for port in each.ports
    )
    _require_different(published, nodes)
    _require_different(shared, nodes)


def _require_different(ports: Iterable[tuple[str, str, str]], nodes: Mapping[str, YamlNode]) -> None:
    owners: dict[tuple[str, str], str] = {}
    for name, where, port in ports:
        if (other := owners.setdefault((where, port), name)) != name:
            nodes[name].fail(f"has the same port {port} {where} as {other}")


def _networks(
    node: YamlNode | None, services: Mapping[str, Service], nodes: Mapping[str, YamlNode], notices: Notices
) -> dict[str, TrialNetwork]:
    declared = {DEFAULT_NETWORK: TrialNetwork(DEFAULT_NETWORK)}
    for name, entry in node.mapping().items() if node is not None else ():
        given = notices.table(entry, keys.NETWORK, keys.NETWORK_IGNORED, keys.NETWORK_UNSUPPORTED)
        if "driver" in given and given["driver"].text() not in ("bridge", "default"):
            notices.add_unsupported(given["driver"], given["driver"].text())
        external = _external(name, given, notices)
        internal = "internal" in given and given["internal"].boolean()
        declared[name] = TrialNetwork(name, internal, external)
    used = dict.fromkeys(network for service in services.values() for network in service.networks)
    for service in services.values():
        for network in service.networks:
            _require_declared(network, declared, "network", nodes.get(service.name))
    return {name: declared[name] for name in used}


def _volumes(
    node: YamlNode | None, services: Mapping[str, Service], nodes: Mapping[str, YamlNode], notices: Notices
) -> dict[str, TrialVolume]:
    declared = {name: TrialVolume(name, world_writable=True) for name in _LOGS}
    for name, entry in node.mapping().items() if node is not None else ():
        given = notices.table(entry, keys.VOLUME, keys.VOLUME_IGNORED, keys.VOLUME_UNSUPPORTED)
        if "driver" in given and given["driver"].text() not in ("local", "default"):
            notices.add_unsupported(given["driver"], given["driver"].text())
        declared[name] = TrialVolume(name, _external(name, given, notices))
    used: dict[str, None] = {}
    for service in services.values():
        for mount in service.mounts:
            if mount.kind == "volume":
                _require_declared(mount.source, declared, "volume", nodes.get(service.name))
                used[mount.source] = None
    return {name: declared[name] for name in used}


def _external(name: str, given: Mapping[str, YamlNode], notices: Notices) -> str | None:
    """Return the engine's name of an external network or volume, or None.

    Without `external`, a `name` has no effect, since concurrent trials would share it.
    """
    node = given.get("external")
    own_name = given["name"].text() if "name" in given else name
    if node is not None and node.is_mapping:
        own_name = node.table({"name"})["name"].text() if node.mapping() else own_name
    elif node is None or not node.boolean():
        if "name" in given:
            notices.ignored[given["name"].key] = "every trial has its own"
        return None
    notices.add_host_access(node, own_name)
    return own_name


def _require_declared(name: str, declared: Mapping[str, object], what: str, node: YamlNode | None) -> None:
    if name not in declared and node is not None:
        near = get_close_matches(name, declared, 1)
        meant = f"; did you mean {near[0]}?" if near else f"; add it under {what}s:"
        node.fail(f"uses the {what} {name}, which the file does not declare{meant}")
