"""A whole compose file of a task, merged with what `main` has by itself; its services in the order of their needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from tbench.compose import keys
from tbench.compose.keys import Notices
from tbench.compose.project import (
    DEFAULT_NETWORK,
    LOGS_OF_MAIN,
    MAIN,
    SHARED_LOGS,
    Project,
    Service,
    ServiceMount,
    TrialNetwork,
    TrialVolume,
)
from tbench.compose.services import ReadService, ServiceReader
from tbench.compose.variables import AskedVariable, Variables
from tbench.compose.yaml_tree import YamlNode, parse
from tbench.errors import TaskInvalid

# The order of services: each comes after those that it needs; what refers to nothing, or to itself, is an error.


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


_LOGS = {f"{LOGS_OF_MAIN}-{below}": below for below in SHARED_LOGS}
"""Names of volumes for folders of logs."""


@dataclass(frozen=True)
class ComposeFile:
    """What a compose file comes to with the variables that it was given."""

    project: Project | None
    """None where variables that are missing leave a file that cannot be read."""
    asked: tuple[AskedVariable, ...] = ()
    """Variables that it asks for and that are none of the task's own."""
    unsupported: tuple[str, ...] = ()
    """What tbench lacks, as dotted keys."""
    host_access: tuple[str, ...] = ()
    """What gives access to the engine's machine, as `KEY: value`."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Why a key has no effect, by dotted key."""

    @property
    def missing(self) -> tuple[AskedVariable, ...]:
        """Variables without a default that were not given."""
        return tuple(asked for asked in self.asked if not asked.is_given and not asked.has_default)


def read_compose(path: Path, text: bytes, variables: Variables) -> ComposeFile:
    """The content `text` of the compose file at `path`. Raises TaskInvalid, which names file, line and key."""
    notices = Notices()
    try:
        project = _read(path, text, variables, notices)
    except TaskInvalid:
        if not variables.missing:
            raise
        project = None
    return ComposeFile(
        project, tuple(variables.asked), tuple(notices.unsupported), tuple(notices.host_access), notices.ignored
    )


def _read(path: Path, text: bytes, variables: Variables, notices: Notices) -> Project:
    root = parse(str(path), text, variables.fill_in)
    entries = notices.table(root, keys.FILE, None, keys.FILE_UNSUPPORTED)
    if "services" not in entries:
        root.fail("names no services")
    nodes = entries["services"].mapping()
    for node in nodes.values():
        _require_name(node)
    reader = ServiceReader(path.parent, variables, notices)
    read = {name: reader.read(name, node) for name, node in nodes.items()}
    services = _joined(read)
    for name, service in services.items():
        if name != MAIN and service.image is None and service.build is None:
            nodes[name].fail("has neither image nor build")
    _require_different_ports(read, services, nodes)
    services = in_order(services, nodes)
    networks = _networks(entries.get("networks"), services, nodes, notices)
    return Project(services, networks, _volumes(entries.get("volumes"), services, nodes, notices))


def _require_name(node: YamlNode) -> None:
    YamlNode(node.file, node.key, node.line, node.key.partition(".")[2]).name()


def _joined(read: Mapping[str, ReadService]) -> dict[str, Service]:
    """The services that are started, with what they say of each other."""
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
    """`main` with volumes in place of those folders of its logs that other services share."""
    sources = {mount.source for each in services.values() for mount in each.mounts if mount.kind == "volume"}
    shared = [ServiceMount("volume", name, f"/logs/{below}") for name, below in _LOGS.items() if name in sources]
    return replace(main, mounts=(*main.mounts, *shared))


def _require_different_ports(
    read: Mapping[str, ReadService], services: Mapping[str, Service], nodes: Mapping[str, YamlNode]
) -> None:
    """Check that no two services have one port: one of the machine, or one of a network that they share."""
    published = ((name, "on the machine", port) for name, each in read.items() for port in each.published)
    shared = (
        (each.name, f"in the network of {_network_owner(each, services)}", port)
        for each in services.values()
        for port in each.ports
    )
    _require_different(published, nodes)
    _require_different(shared, nodes)


def _network_owner(service: Service, services: Mapping[str, Service]) -> str:
    """The service whose network a service is in at last."""
    seen = {service.name}
    while (other := service.shares_network_of) in services and other not in seen:
        seen.add(str(other))
        service = services[str(other)]
    return service.name


def _require_different(ports: Iterable[tuple[str, str, str]], nodes: Mapping[str, YamlNode]) -> None:
    owners: dict[tuple[str, str], str] = {}
    for name, where, port in ports:
        if (other := owners.setdefault((where, port), name)) != name:
            nodes[name].fail(f"has port {port} {where}, and so has {other}")


def _networks(
    node: YamlNode | None, services: Mapping[str, Service], nodes: Mapping[str, YamlNode], notices: Notices
) -> dict[str, TrialNetwork]:
    declared = {DEFAULT_NETWORK: TrialNetwork(DEFAULT_NETWORK)}
    for name, entry in node.mapping().items() if node is not None else ():
        given = notices.table(entry, keys.NETWORK, keys.NETWORK_IGNORED, keys.NETWORK_UNSUPPORTED)
        if "driver" in given and given["driver"].text() not in ("bridge", "default"):
            notices.lacks(given["driver"], given["driver"].text())
        external = _external(name, given, notices)
        internal = "internal" in given and given["internal"].flag()
        declared[name] = TrialNetwork(name, internal, external)
    used = dict.fromkeys(network for service in services.values() for network in service.networks)
    for service in services.values():
        for network in service.networks:
            _require_declared(network, declared, "network", nodes.get(service.name))
    return {name: declared[name] for name in used}


def _volumes(
    node: YamlNode | None, services: Mapping[str, Service], nodes: Mapping[str, YamlNode], notices: Notices
) -> dict[str, TrialVolume]:
    declared = {name: TrialVolume(name, for_all=True) for name in _LOGS}
    for name, entry in node.mapping().items() if node is not None else ():
        given = notices.table(entry, keys.VOLUME, keys.VOLUME_IGNORED, keys.VOLUME_UNSUPPORTED)
        if "driver" in given and given["driver"].text() not in ("local", "default"):
            notices.lacks(given["driver"], given["driver"].text())
        declared[name] = TrialVolume(name, _external(name, given, notices))
    used: dict[str, None] = {}
    for service in services.values():
        for mount in service.mounts:
            if mount.kind == "volume":
                _require_declared(mount.source, declared, "volume", nodes.get(service.name))
                used[mount.source] = None
    return {name: declared[name] for name in used}


def _external(name: str, given: Mapping[str, YamlNode], notices: Notices) -> str | None:
    """Name of what is not of the trial; a `name` of what is has no effect, as two trials at once would share it."""
    node = given.get("external")
    own_name = given["name"].text() if "name" in given else name
    if node is not None and node.is_mapping:
        own_name = node.table({"name"})["name"].text() if node.mapping() else own_name
    elif node is None or not node.flag():
        if "name" in given:
            notices.ignored[given["name"].key] = "every trial has its own"
        return None
    notices.asks_for_host(node, own_name)
    return own_name


def _require_declared(name: str, declared: Mapping[str, object], what: str, node: YamlNode | None) -> None:
    if name not in declared and node is not None:
        near = get_close_matches(name, declared, 1)
        meant = f"; did you mean {near[0]}?" if near else f"; add it under {what}s:"
        node.fail(f"uses the {what} {name}, which the file does not declare{meant}")
