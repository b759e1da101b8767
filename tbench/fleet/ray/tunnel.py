"""The process that speaks to Ray: it has an actor on each node with an engine, and a socket here that leads to it.

As a program: `python -m tbench.fleet.ray.tunnel ADDRESS DIRECTORY`. What it tells is one JSON object per line on its
standard output (`NodeNews`); it ends when its standard input ends. It is a process of its own since Ray ends a driver
without asking when the head is gone, prints where it likes, and ends with the signals of a terminal.
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
from tbench.sandbox.docker import owner
from tbench.sandbox.docker.owner import KEPT_PREFIX, LABEL_OWNER
from tbench.text import one_line

RESOURCE = "engine"
"""Custom resource of the nodes that have trials; a run takes one of it on each."""
LOOK_EVERY_SEC = 2.0
HEAD_AWAY_SEC = 30.0
"""How long the head may be away: one with a store of its own comes back sooner."""
BUSY_AFTER_SEC = 20.0
AGAIN_SEC = 15.0
"""Pause before a node is tried again whose actor has ended, or that could not be used."""
MOST_ACTORS = 5
"""How many actors a node may lose in a run before it is left alone."""
_CLOSE_SEC = 5.0
_REACH_SEC = 5.0

Kind = Literal["nodes", "joined", "refused", "busy", "lost", "ended"]


@dataclass(frozen=True)
class NodeNews:
    """What the process tells of the cluster, or of one node of it."""

    kind: Kind
    """`nodes` comes first: how many nodes have the resource; `ended` last: nothing comes after it."""
    name: str = ""
    why: str = ""
    number: int = 0
    """With `nodes`, how many; with `joined`, how many containers of dead runs were removed there."""
    socket: str = ""
    owner: str = ""
    cpus: float = 0.0
    """CPUs that Ray has on the node; 0 where it has none."""
    gpus: int = 0


class Tunnel:
    """The nodes of a cluster that Ray is connected to."""

    def __init__(self, head: str, directory: Path, out: int) -> None:
        """`head` is HOST:PORT of the cluster's control store; `out` a file descriptor for what is told."""
        self._head, self._directory, self._out = head, directory, out
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._names: dict[str, str] = {}
        self._sockets = 0

    def tell(self, told: NodeNews) -> None:
        """Tell the process that has started this one."""
        with contextlib.suppress(OSError):
            os.write(self._out, json.dumps(asdict(told)).encode() + b"\n")

    async def run(self) -> str:
        """Serve all nodes, those that come later among them, until the head is gone; what to say then."""
        loop = asyncio.get_running_loop()
        told, seen = False, loop.time()
        while True:
            if await self._answers():
                seen = loop.time()
                nodes = {each["NodeID"]: each for each in await asyncio.to_thread(ray.nodes)}
                able = {key: each for key, each in nodes.items() if each["Alive"] and each["Resources"].get(RESOURCE)}
                if not told:
                    self.tell(NodeNews("nodes", number=len(able)))
                    told = True
                self._follow(able)
            elif loop.time() - seen > HEAD_AWAY_SEC:
                return f"the head of the cluster at {self._head} is gone"
            await asyncio.sleep(LOOK_EVERY_SEC)

    async def _answers(self) -> bool:
        """Whether the head takes connections: a call of Ray's would wait for it, and then end the process."""
        return await asyncio.to_thread(_is_there, self._head)

    def _follow(self, able: Mapping[str, Mapping[str, Any]]) -> None:
        for key, node in able.items():
            if key not in self._tasks:
                name = self._names.setdefault(key, self._name_of(key, node))
                served = _Served(self, key, name, node["Resources"])
                self._tasks[key] = asyncio.create_task(served.serve(), name=f"node {name}")
        for key in self._tasks.keys() - able.keys():
            self._tasks[key].cancel("the node is gone")

    def _name_of(self, key: str, node: Mapping[str, Any]) -> str:
        """A name for a node that no other one has had: its own, or its host's."""
        own, address = node.get("NodeName", ""), node.get("NodeManagerAddress", "")
        name = own if own and own != address else node.get("NodeManagerHostname") or address
        return f"{name}-{key[:6]}" if name in self._names.values() else name

    def new_socket(self) -> Path:
        """A path for another socket."""
        self._sockets += 1
        return self._directory / f"{self._sockets}.sock"

    async def close(self) -> None:
        """End all actors."""
        for task in self._tasks.values():
            task.cancel("the run has ended")
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


class _Served:
    """One node: an actor there, and another one when that has ended."""

    def __init__(self, tunnel: Tunnel, key: str, name: str, resources: Mapping[str, float]) -> None:
        self._tunnel, self._key, self._name = tunnel, key, name
        self._has: dict[str, Any] = {"cpus": resources.get("CPU", 0.0), "gpus": int(resources.get("GPU", 0))}
        self._told: Counter[str] = Counter()

    def _tell(self, kind: Kind, why: str = "", **more: Any) -> None:
        if kind in ("refused", "busy"):
            # Once is enough, however often it is tried again.
            self._told[f"{kind} {why}"] += 1
            if self._told[f"{kind} {why}"] > 1:
                return
        self._tunnel.tell(NodeNews(kind, self._name, why, **self._has, **more))

    async def serve(self) -> None:
        for _ in range(MOST_ACTORS):
            handle, joined = None, False
            try:
                handle = self._create()
                found = await self._look(handle)
                while why := found.get("why_not"):
                    self._tell("refused", why)
                    await asyncio.sleep(AGAIN_SEC)
                    found = await handle.look.remote()
                joined = True
                await self._carry(handle, found)
            except asyncio.CancelledError as error:
                if joined:
                    self._tell("lost", str(error) or "the run has ended")
                raise
            except (RayError, OSError) as error:
                self._tell("lost" if joined else "refused", why_failed(error))
            finally:
                if handle is not None:
                    with contextlib.suppress(Exception):
                        ray.kill(handle)
            await asyncio.sleep(AGAIN_SEC)
        self._tell("refused", f"its actor has ended {MOST_ACTORS} times; it is left alone")

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

    async def _look(self, handle: Any) -> dict[str, Any]:
        looking = asyncio.ensure_future(asyncio.wrap_future(handle.look.remote().future()))
        done, _ = await asyncio.wait([looking], timeout=BUSY_AFTER_SEC)
        if not done:
            why = f"its resource `{RESOURCE}` is taken by another run, or its actor does not start; it is waited for"
            self._tell("busy", why)
        found: dict[str, Any] = await looking
        return found

    async def _carry(self, handle: Any, found: Mapping[str, Any]) -> None:
        """Lead connections to the actor until it ends. Raises RayError then."""
        carrying, path = Channel(), self._tunnel.new_socket()
        server = await asyncio.start_unix_server(carrying.carry, path)
        try:
            self._tell("joined", socket=str(path), owner=found["owner"], number=found.get("left", 0))
            async with asyncio.TaskGroup() as group:
                group.create_task(_pushing(carrying, handle))
                group.create_task(_pulling(carrying, handle))
        except* (RayError, OSError) as failed:
            raise failed.exceptions[0] from None
        finally:
            server.close()
            carrying.close()
            path.unlink(missing_ok=True)


async def _pushing(carrying: Channel, handle: Any) -> None:
    while True:
        await handle.push.remote(await carrying.batch())


async def _pulling(carrying: Channel, handle: Any) -> None:
    while True:
        carrying.take(await handle.pull.remote())


def why_failed(error: BaseException) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, ActorUnavailableError):
        return "its actor cannot be reached any more"
    if not isinstance(error, RayActorError):
        return one_line(" ".join(lines), 300)
    if "creation task" in lines[0]:
        return f"its actor does not start: {one_line(lines[-1], 200)}"
    return "its node has died" if "node has died" in str(error) else "its actor has ended"


def connect(address: str) -> str:
    """Connect this process to a cluster; HOST:PORT of its control store. Raises what Ray raises."""
    for module in (actor, channel, guard, owner):
        # Nodes need no tbench: its modules for them go there as they are here.
        cloudpickle.register_pickle_by_value(module)
    if address == "auto" and (known := _known_address()):
        if not _is_there(known):
            raise ConnectionError(f"no Ray runs at {known}, where one ran before")
        # Named, as with `auto` Ray takes a token that it finds for one of this cluster, which need not have any.
        address = known
    local: dict[str, Any] = {"resources": {RESOURCE: 1}, "include_dashboard": False} if address == "local" else {}
    context = ray.init(address=address, log_to_driver=False, logging_level="error", **local)
    return str(context.address_info["gcs_address"])


def _known_address() -> str:
    """Where Ray would look with `auto`, also for a cluster that has ended; empty where it would look for processes."""
    with contextlib.suppress(OSError):
        return os.environ.get("RAY_ADDRESS") or Path(_ray_temp(), "ray_current_cluster").read_text().strip()
    return ""


def _ray_temp() -> str:
    """Directory of Ray's own files."""
    return str(Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray"))


def _is_there(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SEC).close()
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
        tunnel.tell(NodeNews("ended", why=running.result() if not running.exception() else repr(running.exception())))
    for task in (running, ending):
        task.cancel()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SEC):
            await tunnel.close()


def main() -> None:
    address, directory = sys.argv[1:]
    # What is told has a descriptor of its own: Ray prints into standard output.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        head = connect(address)
    except Exception as error:  # noqa: BLE001 - Ray has no common class for them; the line says which it was
        os.write(out, json.dumps(asdict(NodeNews("ended", why=why_failed(error)))).encode() + b"\n")
        return
    asyncio.run(serve(head, Path(directory), out))
    atexit.unregister(ray.shutdown)  # which waits for a head that may be gone


if __name__ == "__main__":
    main()
