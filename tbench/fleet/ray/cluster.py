"""A Ray cluster as machines of a run: starts the process that speaks to Ray, follows it, and shares engines out."""

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

# Who has how much of an engine: nodes of a cluster that are on one machine have one between them.


@dataclass(frozen=True)
class _NodeShare:
    """A node's part of an engine."""

    engine: Engine
    whole: EngineInfo
    """The engine as it is, before it was divided."""
    identity: str
    wanted: int
    """The cpus that Ray has on the node."""
    gpus: int


class Sharing:
    """The engines of nodes, by name. What a connection says of its engine becomes the node's part of that."""

    def __init__(self) -> None:
        self._shares: dict[str, _NodeShare] = {}
        self._lock = threading.Lock()
        """Engines are connected in threads of their own."""

    def take(self, name: str, engine: Engine, cpus: float, gpus: int) -> None:
        """Have a node have no more of its engine than Ray has of the machine, and those that share it a part each.

        Raises UsageError where there are more nodes than cpus.
        """
        whole = engine.info
        # An engine that does not say which it is counts as nobody else's.
        identity = whole.identity or f"that of {name}"
        wanted = min(whole.cpus, int(cpus)) if cpus >= 1 else whole.cpus
        with self._lock:
            others = self._with(identity)
            if len(others) >= max(1, whole.cpus):
                raise UsageError(f"has the same engine as {', '.join(others)}, and no cpu of it is left")
            self._shares[name] = _NodeShare(engine, whole, identity, wanted, gpus)
            self._divide(identity)

    def give_back(self, name: str) -> bool:
        """Let the others have the part of a node; whether it had one."""
        with self._lock:
            part = self._shares.pop(name, None)
            if part is not None:
                self._divide(part.identity)
        return part is not None

    def _with(self, identity: str) -> Mapping[str, _NodeShare]:
        return {name: part for name, part in self._shares.items() if part.identity == identity}

    def _divide(self, identity: str) -> None:
        parts = self._with(identity)
        whole = max((part.whole.cpus for part in parts.values()), default=0)
        for name, cpus in divided({name: part.wanted for name, part in parts.items()}, whole).items():
            part = parts[name]
            part.engine.info = replace(
                part.whole,
                cpus=cpus,
                memory_mb=part.whole.memory_mb * cpus / max(1, part.whole.cpus),
                has_gpus=part.whole.has_gpus and part.gpus > 0,
                gpus=part.gpus if part.whole.has_gpus else None,
            )


def divided(wanted: Mapping[str, int], whole: int) -> dict[str, int]:
    """Cpus for those who want some: one each at the least, what they want at the most, and else evenly.

    `whole` is how many there are, at least one for each.
    """
    given = dict.fromkeys(wanted, 1)
    for _ in range(whole - len(given)):
        hungry = [name for name in given if given[name] < wanted[name]]
        if not hungry:
            break
        given[min(hungry, key=lambda name: given[name] / wanted[name])] += 1
    return given


START_SEC = 90.0
"""How long it may take until all nodes that there are have been asked."""
_REACH_SEC = 5.0
_END_SEC = 15.0
_LOOK_SEC = 0.5
_REFUSED, _TOKEN_MODE = "InvalidAuthToken", "RAY_AUTH_MODE"
_HOST_AND_PORT = re.compile(r"(?P<host>[^\s/@]+):(?P<port>[0-9]{1,5})")
_PORT = "give the port that `ray start --head` had, 6379 if it had none: not that of the dashboard"
_FORMS = "give HOST:PORT of its head, auto for the one that runs here, or local for one of this machine alone"
_START_NODES = """start nodes with: ray start --address=HOST:PORT --resources='{"engine": 1}'"""

Told = dict[str, Any]
"""What the process tells; tbench/fleet/ray/tunnel.py has its fields."""


class TokenRefused(UsageError):
    """The cluster wants a token, or another one."""


class RayCluster:
    """The nodes of a cluster that have an engine. Whoever connects it closes it."""

    def __init__(self, address: str, concurrency: int, variables: Mapping[str, str] = MappingProxyType({})) -> None:
        """`variables` are set in the environment of the process that speaks to Ray."""
        self.first: list[NamedEngine] = []
        """The engines that were there in the beginning."""
        self.said: list[str] = []
        """What there is to say of other nodes, a line each."""
        self._address, self._concurrency = address, concurrency
        self._directory = Path(tempfile.mkdtemp(prefix="tb-ray-"))
        self._buffer = b""
        self._is_connected = False
        self._sharing = Sharing()
        self._standing_by: dict[str, Told] = {}
        """Nodes to which others leave nothing of an engine, by name."""
        command = [sys.executable, "-m", "tbench.fleet.ray.tunnel", address, str(self._directory)]
        with (self._directory / "said").open("wb") as said:
            # A session of its own: Ctrl-C is for this process alone, and the nodes are needed while it cleans up.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
                env={**os.environ, **variables},
            )

    @classmethod
    def connect(cls, address: str, concurrency: int = 8) -> RayCluster:
        """Connect to the cluster at `address`, and to the engines of its nodes. Raises UsageError."""
        require_address(address, has_ray=importlib.util.find_spec("ray") is not None)
        try:
            return cls._connected(address, concurrency)
        except TokenRefused:
            if _TOKEN_MODE in os.environ:
                raise
        # With a token that is there, but for which nobody has asked: Ray itself looks for it only now and then.
        return cls._connected(address, concurrency, {_TOKEN_MODE: "token"})

    @classmethod
    def _connected(
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
        """Wait until every node has said whether it can be used."""
        ends_at = time.monotonic() + START_SEC
        expected: int | None = None
        heard = 0
        while expected is None or heard < expected:
            told = self._next(ends_at)
            if told is None:
                break
            if told["kind"] == "nodes":
                self._is_connected = True
                expected = told["number"]
            elif told["kind"] == "ended":
                raise UsageError(f"--ray {self._address}: {advised(told['why'])}")
            elif told["kind"] == "joined":
                heard += 1
                self._connect_first(told)
            elif told["kind"] in ("refused", "busy"):
                heard += 1
                self.said.append(_words(told))
        if expected is None:
            raise UsageError(f"--ray {self._address}: {self._why_silent()}")
        if not self.first:
            why = "; ".join(self.said) or f"no node of the cluster has the resource `engine`; {_START_NODES}"
            raise UsageError(f"--ray {self._address}: {why}")

    def _connect_first(self, told: Told) -> None:
        try:
            self.first.append(self._engine(told))
        except UsageError as error:
            self.said.append(_unused(told["name"], str(error)))
        self.said += _cleaned(told)

    def _engine(self, told: Told) -> NamedEngine:
        """The engine of a node that has joined. Raises UsageError."""
        engine = Engine.connect(self._concurrency, f"unix://{told['socket']}", is_forwarded=True, owner=told["owner"])
        try:
            self._sharing.take(told["name"], engine, told["cpus"], told["gpus"])
        except UsageError:
            self._standing_by[told["name"]] = told
            engine.close()
            raise
        return NamedEngine(told["name"], engine, host=f"unix://{told['socket']}")

    def _why_silent(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"Ray does not answer within {START_SEC:.0f} s; {_PORT}"
        lines = self._said().strip().splitlines() or [f"exit code {code}"]
        return f"the process that speaks to Ray has ended: {one_line(lines[-1], 200)}"

    def _said(self) -> str:
        """What Ray has printed."""
        return (self._directory / "said").read_text("utf-8", "replace")

    @property
    def process_id(self) -> int:
        """That of the process that speaks to Ray."""
        return self._process.pid

    # -- what is told ------------------------------------------------------------------------------

    @property
    def _told(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _next(self, ends_at: float) -> Told | None:
        """The next that is told until then; None where nothing is, or nothing more will be. Raises UsageError."""
        while b"\n" not in self._buffer:
            left = ends_at - time.monotonic()
            if left <= 0:
                return None
            if not select.select([self._told], [], [], min(left, _LOOK_SEC))[0]:
                if not self._is_connected and _REFUSED in self._said():
                    # Ray would go on trying, and then say that nobody answers.
                    raise TokenRefused(f"--ray {self._address}: {_WRONG_TOKEN}")
                continue
            if not self._read():
                return None
        return self._line()

    def _read(self) -> bool:
        """Take what has come; False where nothing more will."""
        data = os.read(self._told, 1 << 16)
        self._buffer += data
        return bool(data)

    def _line(self) -> Told:
        line, _, self._buffer = self._buffer.partition(b"\n")
        told: Told = json.loads(line)
        return told

    async def follow(self, fleet: Fleet, machine_of: Callable[[NamedEngine], EngineMachine]) -> None:
        """Have nodes join and leave a fleet as they come and go, until the cluster is gone; then the fleet stops."""
        for line in self.said:
            fleet.say(line)
        nodes = _FleetNodes(fleet, lambda told: machine_of(self._engine(told)))
        try:
            while (told := await self._news()) is not None and told["kind"] != "ended":
                if told["kind"] == "joined":
                    nodes.join(told)
                elif told["kind"] == "lost":
                    waiting = self._give_back(told["name"])
                    nodes.lose(told["name"], told["why"])
                    for each in waiting:
                        nodes.join(each)
                else:
                    fleet.say(_words(told))
            fleet.stop(f"Ray: {self._why_silent() if told is None else told['why']}")
        finally:
            await nodes.end()

    def _give_back(self, name: str) -> list[Told]:
        """Let others have the part that a lost node has of its engine; nodes that stood by for it."""
        self._standing_by.pop(name, None)
        if not self._sharing.give_back(name):
            return []
        waiting, self._standing_by = self._standing_by, {}
        return list(waiting.values())

    async def _news(self) -> Told | None:
        """The next that is told; None where nothing will be told any more."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._buffer:
            readable = asyncio.Event()
            loop.add_reader(self._told, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._told)
            if not self._read():
                return None
        return self._line()

    def close(self) -> None:
        """End the process that speaks to Ray, and with it the actors. Never raises."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            # One that is still connecting hears nothing.
            self._process.wait(_END_SEC if self._is_connected else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class _FleetNodes:
    """The nodes of a cluster in a fleet, by name, and those that are about to join it."""

    def __init__(self, fleet: Fleet, connect: Callable[[Told], EngineMachine]) -> None:
        self._fleet, self._connect = fleet, connect
        self._machines: dict[str, FleetMachine] = {each.name: each for each in fleet.machines}
        self._joining: dict[str, asyncio.Task[None]] = {}

    def join(self, told: Told) -> None:
        """Have a node join, which takes as long as its engine takes to be made ready."""
        for line in _cleaned(told):
            self._fleet.say(line)
        name = told["name"]
        self._joining[name] = asyncio.create_task(self._join(name, told), name=f"{name} joins")

    async def _join(self, name: str, told: Told) -> None:
        try:
            machine = await asyncio.to_thread(self._connect, told)
            await self._fleet.join(machine)
            self._machines[name] = machine
        except TbenchError as error:
            self._fleet.say(_unused(name, str(error)))

    def lose(self, name: str, why: str) -> None:
        """Have a node leave."""
        if (joining := self._joining.pop(name, None)) is not None:
            joining.cancel()
        if name in self._machines:
            self._fleet.leave(self._machines.pop(name), why)

    async def end(self) -> None:
        """Have nobody join any more."""
        for joining in self._joining.values():
            joining.cancel()
        await asyncio.gather(*self._joining.values(), return_exceptions=True)


def require_address(address: str, *, has_ray: bool) -> None:
    """Check what can be checked without Ray: its form, whether Ray is installed, that somebody is there.

    Raises UsageError.
    """
    if address.startswith("ray://"):
        raise UsageError(f"--ray {address}: is for clients outside of a cluster; run on one of its nodes, and {_FORMS}")
    found = _HOST_AND_PORT.fullmatch(address)
    if address not in ("auto", "local") and (found is None or not 0 < int(found["port"]) < 1 << 16):
        raise UsageError(f"--ray {address or '(empty)'}: is no address of a cluster; {_FORMS}")
    if not has_ray:
        raise UsageError("--ray: Ray is not installed; install it with: pip install 'tbench[ray]'")
    if found is not None:
        try:
            socket.create_connection((found["host"].strip("[]"), int(found["port"])), _REACH_SEC).close()
        except OSError as error:
            why = error.strerror or str(error)
            raise UsageError(f"--ray {address}: no head of a cluster answers there: {why}") from error


def advised(why: str) -> str:
    """What Ray says, with what to do about it."""
    for sign, advice in _ADVICE.items():
        if sign in why:
            return advice
    return why


_NO_RAY = "no Ray runs on this machine; start it, or give HOST:PORT of the head"
_WRONG_TOKEN = (
    "the cluster refuses the token, or wants one; give that of its head in RAY_AUTH_TOKEN or ~/.ray/auth_token"
)
_ADVICE = {
    "Could not find any running Ray instance": _NO_RAY,
    "no Ray runs at": _NO_RAY,
    "token": _WRONG_TOKEN,
}


def _words(told: Told) -> str:
    if told["kind"] == "busy":
        return f"{told['name']}: {told['why']}"
    return _unused(told["name"], told["why"])


def _unused(name: str, why: str) -> str:
    return f"{name}: is not used: {why.removeprefix(f'{name}: ')}"


def _cleaned(told: Told) -> list[str]:
    if not told["number"]:
        return []
    return [f"{told['name']}: removed {counted(told['number'], 'container')} of runs that are gone"]
