"""A Ray cluster as machines of a run: runs the process connected to Ray, and divides engines among nodes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tbench.errors import TbenchError, UsageError
from tbench.fleet.fleet import Fleet
from tbench.fleet.machine import EngineMachine, FleetMachine, NamedEngine
from tbench.sandbox.docker.engine import Engine, EngineInfo
from tbench.text import counted, one_line


@dataclass(frozen=True)
class _NodeShare:
    """A node's share of an engine."""

    engine: Engine
    whole: EngineInfo
    """The engine's info before it was divided."""
    identity: str
    wanted: int
    """Number of CPUs that the node may use: at most those that Ray and the engine have."""
    gpus: int


class EngineSharing:
    """Divides engines among the nodes on one machine, by replacing the info of their connections with their shares."""

    def __init__(self) -> None:
        self._shares: dict[str, _NodeShare] = {}
        self._lock = threading.Lock()
        """Needed since engines are connected in several threads."""

    def take(self, name: str, engine: Engine, cpus: float, gpus: int) -> None:
        """Limit a node to Ray's resources on the machine, and divide the engine among the nodes that share it.

        Raises UsageError if there are more nodes than CPUs.
        """
        whole = engine.info
        # An engine without an identity counts as not shared.
        identity = whole.identity or f"that of {name}"
        wanted = min(whole.cpus, int(cpus)) if cpus >= 1 else whole.cpus
        with self._lock:
            others = self._shares_with(identity)
            if len(others) >= max(1, whole.cpus):
                raise UsageError(f"has the same engine as {', '.join(others)}, which has no free CPU")
            self._shares[name] = _NodeShare(engine, whole, identity, wanted, gpus)
            self._divide(identity)

    def give_back(self, name: str) -> bool:
        """Distribute a node's share among the other nodes of its engine; returns whether it had a share."""
        with self._lock:
            share = self._shares.pop(name, None)
            if share is not None:
                self._divide(share.identity)
        return share is not None

    def _shares_with(self, identity: str) -> Mapping[str, _NodeShare]:
        return {name: share for name, share in self._shares.items() if share.identity == identity}

    def _divide(self, identity: str) -> None:
        shares = self._shares_with(identity)
        whole = max((share.whole.cpus for share in shares.values()), default=0)
        for name, cpus in divide_cpus({name: share.wanted for name, share in shares.items()}, whole).items():
            share = shares[name]
            share.engine.info = replace(
                share.whole,
                cpus=cpus,
                memory_mb=share.whole.memory_mb * cpus / max(1, share.whole.cpus),
                has_gpus=share.whole.has_gpus and share.gpus > 0,
                gpus=share.gpus if share.whole.has_gpus else None,
            )


def divide_cpus(wanted: Mapping[str, int], whole: int) -> dict[str, int]:
    """Divide `whole` CPUs in proportion to `wanted`, with at least one and at most the wanted number for each.

    `whole` has to be at least the number of entries.
    """
    given = dict.fromkeys(wanted, 1)
    for _ in range(whole - len(given)):
        hungry = [name for name in given if given[name] < wanted[name]]
        if not hungry:
            break
        given[min(hungry, key=lambda name: given[name] / wanted[name])] += 1
    return given


START_SEC = 90.0
"""Time limit for the first answers of all nodes."""
_CONNECT_SEC = 5.0
_END_SEC = 15.0
_POLL_SEC = 0.5
_REFUSED, _TOKEN_MODE = "InvalidAuthToken", "RAY_AUTH_MODE"
_HOST_AND_PORT = re.compile(r"(?P<host>[^\s/@]+):(?P<port>[0-9]{1,5})")
_PORT = "use the port of `ray start --head` (default 6379), not the dashboard's"
_FORMS = "use HOST:PORT of its head, auto for the cluster on this machine, or local for a new one on this machine only"
_START_NODES = """start nodes with: ray start --address=HOST:PORT --resources='{"engine": 1}'"""

News = dict[str, Any]
"""A message of the process connected to Ray, with the fields of `NodeNews` in tbench/fleet/ray/tunnel.py."""


class TokenRefused(UsageError):
    """The cluster requires a token, or another one."""


class RayCluster:
    """The nodes of a cluster that have an engine; the caller of `connect` has to close it."""

    def __init__(self, address: str, concurrency: int, variables: Mapping[str, str] = MappingProxyType({})) -> None:
        """`variables` are added to the environment of the process connected to Ray."""
        self.first: list[NamedEngine] = []
        """Engines available at the start."""
        self.notices: list[str] = []
        """Messages for the user about nodes."""
        self._address, self._concurrency = address, concurrency
        self._directory = Path(tempfile.mkdtemp(prefix="tb-ray-"))
        self._buffer = b""
        self._is_connected = False
        self._sharing = EngineSharing()
        self._standing_by: dict[str, News] = {}
        """Messages of nodes whose engine has no free share, by name."""
        command = [sys.executable, "-m", "tbench.fleet.ray.tunnel", address, str(self._directory)]
        with (self._directory / "ray.log").open("wb") as log:
            # In a new session, so that Ctrl-C does not end it: the nodes are needed for cleaning up.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **variables},
            )

    @classmethod
    def connect(cls, address: str, concurrency: int = 8) -> RayCluster:
        """Connect to the cluster at `address` and the engines of its nodes. Raises UsageError."""
        require_address(address, has_ray=importlib.util.find_spec("ray") is not None)
        try:
            return cls._start_cluster(address, concurrency)
        except TokenRefused:
            if _TOKEN_MODE in os.environ:
                raise
        # With the token that this machine has: by itself, Ray uses it only in some cases.
        return cls._start_cluster(address, concurrency, {_TOKEN_MODE: "token"})

    @classmethod
    def _start_cluster(
        cls, address: str, concurrency: int, variables: Mapping[str, str] = MappingProxyType({})
    ) -> RayCluster:
        cluster = cls(address, concurrency, variables)
        try:
            cluster._start()
        except BaseException:
            cluster.close()
            raise
        return cluster

    def _start(self) -> None:
        """Wait until every node has reported whether it can be used."""
        ends_at = time.monotonic() + START_SEC
        expected: int | None = None
        count = 0
        while expected is None or count < expected:
            news = self._next(ends_at)
            if news is None:
                break
            if news["kind"] == "nodes":
                self._is_connected = True
                expected = news["number"]
            elif news["kind"] == "ended":
                raise UsageError(f"--ray {self._address}: {with_advice(news['why'])}")
            elif news["kind"] == "joined":
                count += 1
                self._connect_first(news)
            elif news["kind"] in ("refused", "busy"):
                count += 1
                self.notices.append(_notice(news))
        if expected is None:
            raise UsageError(f"--ray {self._address}: {self._why_silent()}")
        if not self.first:
            why = "; ".join(self.notices) or f"no node of the cluster has the resource `engine`; {_START_NODES}"
            raise UsageError(f"--ray {self._address}: {why}")

    def _connect_first(self, news: News) -> None:
        try:
            self.first.append(self._engine(news))
        except UsageError as error:
            self.notices.append(_unused_notice(news["name"], str(error)))
        self.notices += _cleanup_notices(news)

    def _engine(self, news: News) -> NamedEngine:
        """Connect the engine of a node that has joined. Raises UsageError."""
        engine = Engine.connect(self._concurrency, f"unix://{news['socket']}", is_forwarded=True, owner=news["owner"])
        try:
            self._sharing.take(news["name"], engine, news["cpus"], news["gpus"])
        except UsageError:
            self._standing_by[news["name"]] = news
            engine.close()
            raise
        return NamedEngine(news["name"], engine, host=f"unix://{news['socket']}")

    def _why_silent(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"Ray does not answer within {START_SEC:.0f} s; {_PORT}"
        lines = self._ray_output().strip().splitlines() or [f"exit code {code}"]
        return f"the process connected to Ray has ended: {one_line(lines[-1], 200)}"

    def _ray_output(self) -> str:
        """Return Ray's output."""
        return (self._directory / "ray.log").read_text("utf-8", "replace")

    # -- messages ----------------------------------------------------------------------------------

    @property
    def _pipe(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _next(self, ends_at: float) -> News | None:
        """Wait for the next message; None at the time limit or after the last message. Raises UsageError."""
        while b"\n" not in self._buffer:
            left = ends_at - time.monotonic()
            if left <= 0:
                return None
            if not select.select([self._pipe], [], [], min(left, _POLL_SEC))[0]:
                if not self._is_connected and _REFUSED in self._ray_output():
                    # Ray would keep trying, and finally report a missing answer.
                    raise TokenRefused(f"--ray {self._address}: {_WRONG_TOKEN}")
                continue
            if not self._read():
                return None
        return self._line()

    def _read(self) -> bool:
        """Read the available output; returns False at its end."""
        data = os.read(self._pipe, 1 << 16)
        self._buffer += data
        return bool(data)

    def _line(self) -> News:
        line, _, self._buffer = self._buffer.partition(b"\n")
        news: News = json.loads(line)
        return news

    async def follow(self, fleet: Fleet, machine_of: Callable[[NamedEngine], EngineMachine]) -> None:
        """Let nodes join and leave a fleet until the cluster is gone; then stop the fleet."""
        for line in self.notices:
            fleet.say(line)
        nodes = _FleetNodes(fleet, lambda news: machine_of(self._engine(news)))
        try:
            while (news := await self._wait_for_news()) is not None and news["kind"] != "ended":
                if news["kind"] == "joined":
                    nodes.join(news)
                elif news["kind"] == "lost":
                    waiting = self._give_back(news["name"])
                    nodes.lose(news["name"], news["why"])
                    for each in waiting:
                        nodes.join(each)
                else:
                    fleet.say(_notice(news))
            fleet.stop(f"Ray: {self._why_silent() if news is None else news['why']}")
        finally:
            await nodes.end()

    def _give_back(self, name: str) -> list[News]:
        """Release a lost node's share of its engine; returns the nodes that were waiting for a share."""
        self._standing_by.pop(name, None)
        if not self._sharing.give_back(name):
            return []
        waiting, self._standing_by = self._standing_by, {}
        return list(waiting.values())

    async def _wait_for_news(self) -> News | None:
        """Wait for the next message; None after the last one."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._buffer:
            readable = asyncio.Event()
            loop.add_reader(self._pipe, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._pipe)
            if not self._read():
                return None
        return self._line()

    def close(self) -> None:
        """End the process connected to Ray, and with it the actors. Never raises."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            # While it is still connecting it does not notice the end of its input.
            self._process.wait(_END_SEC if self._is_connected else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class _FleetNodes:
    """The nodes of a cluster that are in a fleet or about to join it."""

    def __init__(self, fleet: Fleet, connect: Callable[[News], EngineMachine]) -> None:
        self._fleet, self._connect = fleet, connect
        self._machines: dict[str, FleetMachine] = {each.name: each for each in fleet.machines}
        self._joining: dict[str, asyncio.Task[None]] = {}

    def join(self, news: News) -> None:
        """Let a node join in the background, since preparing its engine takes time."""
        for line in _cleanup_notices(news):
            self._fleet.say(line)
        name = news["name"]
        self._joining[name] = asyncio.create_task(self._join(name, news), name=f"{name} joins")

    async def _join(self, name: str, news: News) -> None:
        try:
            machine = await asyncio.to_thread(self._connect, news)
            await self._fleet.join(machine)
            self._machines[name] = machine
        except TbenchError as error:
            self._fleet.say(_unused_notice(name, str(error)))

    def lose(self, name: str, why: str) -> None:
        """Remove a node from the fleet."""
        if (joining := self._joining.pop(name, None)) is not None:
            joining.cancel()
        if name in self._machines:
            self._fleet.leave(self._machines.pop(name), why)

    async def end(self) -> None:
        """Cancel all joins."""
        for joining in self._joining.values():
            joining.cancel()
        await asyncio.gather(*self._joining.values(), return_exceptions=True)


def require_address(address: str, *, has_ray: bool) -> None:
    """Check an address without Ray: its form, the installation of Ray, and that something listens there.

    Raises UsageError.
    """
    if address.startswith("ray://"):
        raise UsageError(f"--ray {address}: is for clients outside the cluster; run on one of its nodes, and {_FORMS}")
    found = _HOST_AND_PORT.fullmatch(address)
    if address not in ("auto", "local") and (found is None or not 0 < int(found["port"]) < 1 << 16):
        raise UsageError(f"--ray {address or '(empty)'}: not the address of a cluster; {_FORMS}")
    if not has_ray:
        raise UsageError("--ray: Ray is not installed; install it with: pip install 'tbench[ray]'")
    if found is not None:
        try:
            socket.create_connection((found["host"].strip("[]"), int(found["port"])), _CONNECT_SEC).close()
        except OSError as error:
            why = error.strerror or str(error)
            raise UsageError(f"--ray {address}: no head of a cluster answers there: {why}") from error


def with_advice(why: str) -> str:
    """Replace known error messages of Ray by messages with advice."""
    for text, advice in _ADVICE.items():
        if text in why:
            return advice
    return why


_NO_RAY = "no Ray runs on this machine; start it, or use HOST:PORT of the head"
_WRONG_TOKEN = (
    "the cluster refuses the token, or requires one; set RAY_AUTH_TOKEN or ~/.ray/auth_token to the head's token"
)
_ADVICE = {
    "Could not find any running Ray instance": _NO_RAY,
    "no Ray runs at": _NO_RAY,
    "token": _WRONG_TOKEN,
}


def _notice(news: News) -> str:
    if news["kind"] == "busy":
        return f"{news['name']}: {news['why']}"
    return _unused_notice(news["name"], news["why"])


def _unused_notice(name: str, why: str) -> str:
    return f"{name}: is not used: {why.removeprefix(f'{name}: ')}"


def _cleanup_notices(news: News) -> list[str]:
    if not news["number"]:
        return []
    return [f"{news['name']}: removed {counted(news['number'], 'container')} of dead runs"]
