"""Runs over several machines: two simulated engines, and Ray, with real engines and with many simulated nodes.

A simulated node has a real actor of a real Ray cluster. Its engine is `simulated_engine.py`: what travels through Ray
is the terminal of every trial. All nodes, the endpoint and the driver share the cpus of one machine, so what is told of
the driver alone is its cpu time and its lag.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from endpoint import Endpoint
from figures import Figures, p99
from fleet_machines import FakeMachine
from own_engine import own_engine
from ray_cluster import RayNodes, ray_nodes
from run_plans import a_plan
from simulated import REPLY, Lag
from small_task import Place, make_task

from harness.agent import Limits
from harness.endpoint.chat import ChatModel
from harness.model import Sampling
from harness.protocols import load_protocol
from harness.stream import ByteStream
from tbench.agents.model_agent import ModelAgent
from tbench.agents.trial_agent import AgentReport, NopAgent, OracleAgent, TrialAgent, Workplace
from tbench.cli.execute import tuned_gc
from tbench.config.settings import SandboxConfig
from tbench.events import Events
from tbench.fleet.engines import Engines
from tbench.fleet.fleet import Fleet
from tbench.fleet.machine import NamedEngine
from tbench.fleet.ray.cluster import RayCluster
from tbench.runs.plan import sandbox_settings
from tbench.runs.run import RunOutcome, execute_run
from tbench.sandbox.backend import Backend, Capacity
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.sandbox.own_images import recipe_hash
from tbench.tasks.sources import TaskSet, images_dir
from tbench.tasks.task import Task

IMAGES = ["debian:bookworm-slim", f"tbench/tools:{recipe_hash(images_dir() / 'tools')}"]
SLOTS, WORK_SEC, ROUNDS = 8, 1.0, 6
LIVES, AT_ONCE = 24, 8
NODES, TRIALS_PER_NODE, STEPS, LATENCY_SEC = 20, 100, 5, 20.0


class Busy(NopAgent):
    """Works for a fixed time."""

    async def work(self, place: Workplace) -> AgentReport:
        await asyncio.sleep(WORK_SEC)
        return await super().work(place)


async def run_over(
    backend: Callable[[str], Backend], task: Task, directory: Path, make_agent: Callable[[], TrialAgent], trials: int
) -> tuple[float, RunOutcome]:
    """Seconds of a whole run with as many trials at once as there is room for; every trial has a verdict."""
    plan = a_plan(directory.name, seeds=tuple(range(trials)), agent="bench", concurrency=trials, cpu_overcommit=1.0)
    started = time.perf_counter()
    tasks = TaskSet((task,), {})
    outcome = await execute_run(plan, tasks, directory, make_agent, Events(), backend=backend(plan.run))
    elapsed = time.perf_counter() - started
    final = [result for result in outcome.results if result.final]
    assert len(final) == trials and all(result.reward is not None for result in final), outcome.results[:3]
    return elapsed, outcome


async def two_engines(place: Place | None, figures: Figures, scratch: Path) -> None:
    """The same trials on one simulated engine, and on two: how many times faster two are."""
    task, ratios = make_task(scratch / "task"), []
    for number in range(3):
        seconds = []
        for machines in (1, 2):
            fleet = Fleet([FakeMachine(f"engine-{each}", SLOTS) for each in range(machines)])
            directory = scratch / f"{machines}-{number}"
            seconds.append((await run_over(lambda _, of=fleet: of, task, directory, Busy, SLOTS * ROUNDS))[0])
        ratios.append(seconds[0] / seconds[1])
    figures.add("two_engines_speedup", statistics.median(ratios), "ratio", 2.0)


# -- Ray, with real engines ------------------------------------------------------------------------


def _lacks_ray() -> bool:
    if importlib.util.find_spec("ray") is None:
        print("ray is not installed: no figures of it; pip install 'tbench[ray]'")
        return True
    return False


async def ray_lives(place: Place | None, figures: Figures, scratch: Path) -> None:
    """Oracle trials per second on two engines of this machine: behind the nodes of a Ray cluster, and without Ray."""
    if _lacks_ray():
        return
    assert place is not None
    rates: dict[str, list[float]] = {"ray": [], "sockets": []}
    with own_engine(images=IMAGES) as (own, _), ray_nodes() as nodes:
        nodes.add("one", cpus=0)
        nodes.add("two", cpus=0, DOCKER_HOST=own.host)
        ways = {
            "ray": SandboxConfig(ray=nodes.address),
            "sockets": SandboxConfig(engines=("unix:///var/run/docker.sock", own.host)),
        }
        for number in range(4):
            for name, config in ways.items():
                engines = await asyncio.to_thread(Engines.connect, config, AT_ONCE)
                try:
                    rate = await _lives(engines, place.task, scratch / f"{name}-{number}")
                finally:
                    await asyncio.to_thread(engines.close)
                if number:  # in the first one tools and images are made
                    rates[name].append(rate)
    beside = statistics.median(rates["sockets"])
    figures.add("ray_lives_per_sec_two_engines", statistics.median(rates["ray"]), "1/s", beside)


async def _lives(engines: Engines, task: Task, directory: Path) -> float:
    plan = a_plan(directory.name, seeds=tuple(range(LIVES)), agent="oracle", concurrency=AT_ONCE, cpu_overcommit=100.0)
    started = time.perf_counter()
    backend = engines.backend(sandbox_settings(plan))
    outcome = await execute_run(plan, TaskSet((task,), {}), directory, OracleAgent, Events(), backend=backend)
    assert sum(result.reward == 1.0 for result in outcome.results) == LIVES, outcome.results
    assert len({result.machine for result in outcome.results}) == 2
    return LIVES / (time.perf_counter() - started)


# -- Ray, with simulated nodes ---------------------------------------------------------------------


class FarTerminal(ByteStream):
    """The terminal of a simulated engine, behind a socket that leads there."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, socket: str, argv: Sequence[str], environment: Mapping[str, str]) -> FarTerminal:
        reader, writer = await asyncio.open_unix_connection(socket)
        writer.write(b"TERMINAL " + json.dumps(list(argv)).encode() + b"\n")
        return cls(reader, writer)

    async def read(self) -> bytes:
        return await self._reader.read(1 << 16)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()


class SimulatedNode(FakeMachine):
    """A node whose sandboxes are fakes, but for their terminals, which are behind Ray."""

    def __init__(self, named: NamedEngine) -> None:
        super().__init__(named.name, TRIALS_PER_NODE)
        self._named = named
        socket = named.host.removeprefix("unix://")

        def make(_: Task) -> FakeSandbox:
            return FakeSandbox(connect=lambda argv, variables: FarTerminal.connect(socket, argv, variables))

        self.backend = FakeBackend(make, Capacity(TRIALS_PER_NODE, 1e9))  # type: ignore[assignment]

    async def check(self) -> str:
        return await self._named.engine.ping(10.0)


def cpu_sec(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ray_simulated(place: Place | None, figures: Figures, scratch: Path) -> None:
    """Twenty nodes with a hundred trials each: every verdict, and what that costs the driver."""
    if _lacks_ray():
        return
    trials = NODES * TRIALS_PER_NODE
    with _simulated_cluster() as cluster:
        fleet = Fleet([SimulatedNode(each) for each in cluster.first])
        assert len(fleet.run_machines) == NODES, cluster.notices
        with Endpoint(REPLY, LATENCY_SEC) as base_url:
            async with ChatModel(base_url, None, Sampling(), api_key=None) as chat:
                await chat.connect()
                protocol, lag = load_protocol("keystrokes-json"), Lag()
                before = time.process_time(), cpu_sec(cluster._process.pid)
                async with lag.watched():
                    with tuned_gc():
                        wall_sec, outcome = await run_over(
                            lambda _: fleet,
                            make_task(scratch / "task"),
                            scratch / "run",
                            lambda: ModelAgent(chat, protocol, Limits(steps=STEPS)),
                            trials,
                        )
                own_sec = time.process_time() - before[0]
                tunnel_sec = cpu_sec(cluster._process.pid) - before[1]
    assert all((result.reward, result.steps) == (1.0, STEPS) for result in outcome.results), outcome.results[0]
    assert {result.machine for result in outcome.results} == {f"n{number}" for number in range(NODES)}
    figures.add("ray_2000_verdicts", len(outcome.results), "", trials)
    figures.add("ray_2000_sec", wall_sec, "s", STEPS * LATENCY_SEC)
    figures.add("ray_2000_driver_cpu_ms_per_step", own_sec * 1e3 / trials / STEPS, "ms")
    figures.add("ray_2000_tunnel_cpu_ms_per_step", tunnel_sec * 1e3 / trials / STEPS, "ms")
    figures.add("ray_2000_lag_ms_p50", statistics.median(lag.ms), "ms")
    figures.add("ray_2000_lag_ms_p99", p99(lag.ms), "ms")


@contextlib.contextmanager
def _simulated_cluster() -> Iterator[RayCluster]:
    with tempfile.TemporaryDirectory(prefix="tb-sim-") as name:
        sockets = [f"{name}/{number}.sock" for number in range(NODES)]
        program = str(Path(__file__).with_name("simulated_engine.py"))
        engines = subprocess.Popen([sys.executable, program, *sockets], stdout=subprocess.PIPE)
        try:
            assert engines.stdout is not None and engines.stdout.readline() == b"ready\n"
            with ray_nodes() as nodes:
                _add_all(nodes, sockets)
                cluster = RayCluster.connect(nodes.address, TRIALS_PER_NODE)
                try:
                    yield cluster
                finally:
                    cluster.close()
        finally:
            engines.kill()
            engines.communicate()


def _add_all(nodes: RayNodes, sockets: Sequence[str]) -> None:
    for number, socket in enumerate(sockets):
        nodes.add(f"n{number}", cpus=0, DOCKER_HOST=f"unix://{socket}")
