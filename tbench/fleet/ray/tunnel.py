"""The process that is connected to Ray: starts an actor on each node with an engine, and a local socket for it.

As a program: `python -m tbench.fleet.ray.tunnel ADDRESS DIRECTORY`. It writes one JSON object per line (`NodeNews`) to
standard output, and ends when its standard input ends. It is a separate process, since Ray kills a driver when the head
is gone, prints to its output, and reacts to signals of the terminal.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import ray
from ray import cloudpickle
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tbench.fleet.ray import actor, channel, guard
from tbench.fleet.ray.actor import NodeActor
from tbench.fleet.ray.channel import Channel
from tbench.sandbox import owner
from tbench.sandbox.docker import discovery
from tbench.sandbox.owner import KEPT_PREFIX, LABEL_OWNER
from tbench.text import one_line

RESOURCE = "engine"
"""Custom resource of nodes for trials; a run takes one unit of it on each node."""
POLL_EVERY_SEC = 2.0
HEAD_AWAY_SEC = 30.0
"""Seconds that the head may be down; a head with persistent storage comes back sooner."""
BUSY_AFTER_SEC = 20.0
RETRY_SEC = 15.0
"""Pause before another attempt on a node whose actor has ended, or whose engine could not be used."""
MAX_ACTORS = 5
"""Number of actors that a node may lose in a run before it is given up."""
_CLOSE_SEC = 5.0
_CONNECT_SEC = 5.0

Kind = Literal["nodes", "joined", "refused", "busy", "lost", "ended"]


@dataclass(frozen=True)
class NodeNews:
    """A message about the cluster, or about one of its nodes."""

    kind: Kind
    """`nodes` is the first message, with the number of nodes that have the resource; `ended` is the last."""
    name: str = ""
    why: str = ""
    number: int = 0
    """Number of nodes (`nodes`), or of removed containers of dead runs (`joined`)."""
    socket: str = ""
    owner: str = ""
    cpus: float = 0.0
    """Ray's CPUs on the node; may be 0."""
    gpus: int = 0


class Tunnel:
    """The nodes of the cluster to which this process is connected."""

    def __init__(self, head: str, directory: Path, out: int) -> None:
        """`head` is HOST:PORT of the cluster's control store; `out` is a file descriptor for messages."""
        self._head, self._directory, self._out = head, directory, out
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._names: dict[str, str] = {}
        self._sockets = 0

    def report(self, news: NodeNews) -> None:
        """Send a message to the parent process."""
        with contextlib.suppress(OSError):
            os.write(self._out, json.dumps(asdict(news)).encode() + b"\n")

    async def run(self) -> str:
        """Serve all nodes, including later ones, until the head is gone; returns the reason."""
        loop = asyncio.get_running_loop()
        is_first, seen = True, loop.time()
        while True:
            # One of Ray's calls would wait for the head, and then end the process.
            if await asyncio.to_thread(_accepts_connections, self._head):
                seen = loop.time()
                nodes = {each["NodeID"]: each for each in await asyncio.to_thread(ray.nodes)}
                able = {key: each for key, each in nodes.items() if each["Alive"] and each["Resources"].get(RESOURCE)}
                if is_first:
                    self.report(NodeNews("nodes", number=len(able)))
                    is_first = False
                self._update(able)
            elif loop.time() - seen > HEAD_AWAY_SEC:
                return f"the head of the cluster at {self._head} is gone"
            await asyncio.sleep(POLL_EVERY_SEC)

    def _update(self, able: Mapping[str, Mapping[str, Any]]) -> None:
        """Start to serve new nodes, and stop to serve those that are gone."""
        for key, node in able.items():
            if key not in self._tasks:
                name = self._names.setdefault(key, self._unique_name(key, node))
                server = _NodeServer(self, key, name, node["Resources"])
                self._tasks[key] = asyncio.create_task(server.serve(), name=f"node {name}")
        for key in self._tasks.keys() - able.keys():
            self._tasks[key].cancel("the node is gone")

    def _unique_name(self, key: str, node: Mapping[str, Any]) -> str:
        """Return a unique name for a node: its own, or its host's."""
        own, address = node.get("NodeName", ""), node.get("NodeManagerAddress", "")
        name = own if own and own != address else node.get("NodeManagerHostname") or address
        return f"{name}-{key[:6]}" if name in self._names.values() else name

    def new_socket(self) -> Path:
        """Return a path for another socket."""
        self._sockets += 1
        return self._directory / f"{self._sockets}.sock"

    async def close(self) -> None:
        """End all actors."""
        for task in self._tasks.values():
            task.cancel("the run has ended")
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


class _NodeServer:
    """Serves one node: starts an actor there, and another one after it has ended."""

    def __init__(self, tunnel: Tunnel, key: str, name: str, resources: Mapping[str, float]) -> None:
        self._tunnel, self._key, self._name = tunnel, key, name
        self._has: dict[str, Any] = {"cpus": resources.get("CPU", 0.0), "gpus": int(resources.get("GPU", 0))}
        self._reported: Counter[str] = Counter()

    def _report(self, kind: Kind, why: str = "", **more: Any) -> None:
        if kind in ("refused", "busy"):
            # Reported once, even if it happens at every attempt.
            self._reported[f"{kind} {why}"] += 1
            if self._reported[f"{kind} {why}"] > 1:
                return
        self._tunnel.report(NodeNews(kind, self._name, why, **self._has, **more))

    async def serve(self) -> None:
        for _ in range(MAX_ACTORS):
            handle, joined = None, False
            try:
                handle = self._create()
                found = await self._prepare(handle)
                while why := found.get("why_not"):
                    self._report("refused", why)
                    await asyncio.sleep(RETRY_SEC)
                    found = await handle.prepare.remote()
                joined = True
                await self._forward(handle, found)
            except asyncio.CancelledError as error:
                if joined:
                    self._report("lost", str(error) or "the run has ended")
                raise
            except (RayError, OSError) as error:
                self._report("lost" if joined else "refused", describe_failure(error))
            finally:
                if handle is not None:
                    with contextlib.suppress(Exception):
                        ray.kill(handle)
            await asyncio.sleep(RETRY_SEC)
        self._report("refused", f"its actor has ended {MAX_ACTORS} times; it is given up")

    def _create(self) -> Any:
        remote = ray.remote(NodeActor).options(
            num_cpus=0,
            resources={RESOURCE: 1},
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=1000,
            scheduling_strategy=NodeAffinitySchedulingStrategy(self._key, soft=False),
        )
        return remote.remote(Path(guard.__file__).read_text(encoding="utf-8"), LABEL_OWNER, KEPT_PREFIX)

    async def _prepare(self, handle: Any) -> dict[str, Any]:
        preparing = asyncio.ensure_future(asyncio.wrap_future(handle.prepare.remote().future()))
        done, _ = await asyncio.wait([preparing], timeout=BUSY_AFTER_SEC)
        if not done:
            why = f"its resource `{RESOURCE}` is taken by another run, or its actor does not start; waiting for it"
            self._report("busy", why)
        found: dict[str, Any] = await preparing
        return found

    async def _forward(self, handle: Any, found: Mapping[str, Any]) -> None:
        """Forward connections to the actor until it ends. Raises RayError then."""
        streams, path = Channel(), self._tunnel.new_socket()
        server = await asyncio.start_unix_server(streams.forward, path)
        try:
            self._report("joined", socket=str(path), owner=found["owner"], number=found.get("left", 0))
            async with asyncio.TaskGroup() as group:
                group.create_task(_pushing(streams, handle))
                group.create_task(_pulling(streams, handle))
        except* (RayError, OSError) as failed:
            raise failed.exceptions[0] from None
        finally:
            server.close()
            streams.close()
            path.unlink(missing_ok=True)


async def _pushing(streams: Channel, handle: Any) -> None:
    while True:
        await handle.push.remote(await streams.batch())


async def _pulling(streams: Channel, handle: Any) -> None:
    while True:
        streams.take(await handle.pull.remote())


def describe_failure(error: BaseException) -> str:
    """Describe an error of Ray in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, ActorUnavailableError):
        return "its actor can no longer be reached"
    if not isinstance(error, RayActorError):
        return one_line(" ".join(lines), 300)
    if "creation task" in lines[0]:
        return f"its actor does not start: {one_line(lines[-1], 200)}"
    return "its node has died" if "node has died" in str(error) else "its actor has ended"


def connect(address: str) -> str:
    """Connect this process to a cluster; returns HOST:PORT of its control store. Raises Ray's errors."""
    for module in (actor, channel, discovery, guard, owner):
        # Sent to the nodes, which need not have tbench.
        cloudpickle.register_pickle_by_value(module)
    if address == "auto" and (known := _known_address()):
        if not _accepts_connections(known):
            raise ConnectionError(f"no Ray runs at {known}, where one ran before")
        # The explicit address, since with `auto` Ray uses any token that it finds, even if the cluster needs none.
        address = known
    local: dict[str, Any] = {"resources": {RESOURCE: 1}, "include_dashboard": False} if address == "local" else {}
    context = ray.init(address=address, log_to_driver=False, logging_level="error", **local)
    return str(context.address_info["gcs_address"])


def _known_address() -> str:
    """Return the address that Ray uses for `auto`, even of an ended cluster; empty if it would search for processes."""
    with contextlib.suppress(OSError):
        own_files = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray")
        return os.environ.get("RAY_ADDRESS") or (own_files / "ray_current_cluster").read_text().strip()
    return ""


def _accepts_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SEC).close()
    except (OSError, ValueError):
        return False
    return True


async def serve(head: str, directory: Path, out: int) -> None:
    """Serve the nodes of the cluster until standard input ends, or the head is gone."""
    tunnel = Tunnel(head, directory, out)
    loop, ends = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            ends.set()

    loop.add_reader(0, read)
    running, ending = asyncio.create_task(tunnel.run()), asyncio.create_task(ends.wait())
    await asyncio.wait([running, ending], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        tunnel.report(NodeNews("ended", why=running.result() if not running.exception() else repr(running.exception())))
    for task in (running, ending):
        task.cancel()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SEC):
            await tunnel.close()


def main() -> None:
    address, directory = sys.argv[1:]
    # Messages use a duplicated descriptor, since Ray prints to standard output.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        head = connect(address)
    except Exception as error:  # noqa: BLE001 - Ray's errors have no common class; the message describes the error
        os.write(out, json.dumps(asdict(NodeNews("ended", why=describe_failure(error)))).encode() + b"\n")
        return
    asyncio.run(serve(head, Path(directory), out))
    atexit.unregister(ray.shutdown)  # it would wait for a head that may be gone


if __name__ == "__main__":
    main()
