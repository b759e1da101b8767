"""`make soak`: hundreds of trials while endpoint and containers are harmed; every verdict, and nothing left behind.

    python tests/soak [TRIALS]

Prints what was injected, what came of it and what is left; exits with 1 when a verdict is missing or anything leaks.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the plans that the tests share

from harm import Harm
from run_plans import a_plan
from shaky import ShakyEndpoint

from harness.endpoint.chat import ChatModel, RetryPolicy
from harness.limits import Limits
from harness.model import Sampling
from harness.protocols import load_protocol
from tbench.agents.model_agent import ModelAgent
from tbench.agents.trial_agent import OracleAgent, TrialAgent
from tbench.demo.server import DemoEndpoint
from tbench.events import Event, Events
from tbench.results import TrialResult
from tbench.runs.plan import sandbox_settings
from tbench.runs.run import execute_run
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_OWNER, owner
from tbench.tasks.sources import TaskSet, read_tasks

TRIALS, TASKS, AT_ONCE, RETRIES, STEPS = 300, 5, 8, 20, 6
HARMED_REQUESTS = 0.1
OUTAGES, OUTAGE_SEC = 3, 6.0
REQUEST_SEC = 10.0
_OF_THE_LOOP = "asyncio_"
"""Threads of the event loop's own pool: a few, started when first needed, and kept."""


def write_tasks(directory: Path, scripts: Path) -> TaskSet:
    """Small tasks, each with a script of a few steps for the endpoint."""
    for number in range(TASKS):
        path = directory / f"soak-{number}"
        for name in ("environment", "solution", "tests"):
            (path / name).mkdir(parents=True)
        limits = "[environment]\ncpus = 1\nmemory_mb = 128\nallow_internet = false\n[agent]\ntimeout_sec = 300\n"
        (path / "task.toml").write_text(limits)
        (path / "instruction.md").write_text(f"Create /app/done. This is task {number} of a soak.\n")
        (path / "environment/Dockerfile").write_text("FROM debian:bookworm-slim\nWORKDIR /app\n")
        (path / "solution/solve.sh").write_text("sleep 0.5\ntouch /app/done\n")
        (path / "tests/test.sh").write_text(
            "if [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
        )
        lines = ["pass_rate = 1.0", "fail = []"]
        for step in range(STEPS):
            # Every step does the work: a command that is killed must not decide the verdict.
            lines += ["[[pass]]", f'analysis = "step {step}"', 'plan = "one command"']
            lines.append('commands = [{ keystrokes = "touch /app/done; sleep 0.2\\n", duration = 5 }]')
        (scripts / f"{path.name}.toml").write_text("\n".join(lines) + "\n")
    return read_tasks(str(directory))


@dataclass(frozen=True)
class Held:
    """Resources that this process and the engine hold at a moment."""

    containers: frozenset[str]
    networks: frozenset[str]
    volumes: frozenset[str]
    descriptors: int
    tasks: int
    threads: int

    @classmethod
    def now(cls, engine: Engine) -> Held:
        gc.collect()
        api = engine.api
        containers = api.containers(all=True, filters={"label": f"{LABEL_OWNER}={owner()}"})
        networks, volumes = api.networks(), api.volumes()["Volumes"] or ()
        engine.close()  # idle connections in its pool are no leak; the next call opens its own
        return cls(
            frozenset(each["Id"] for each in containers),
            frozenset(each["Id"] for each in networks),
            frozenset(each["Name"] for each in volumes),
            len(list(Path("/proc/self/fd").iterdir())),
            len(asyncio.all_tasks()),
            sum(not thread.name.startswith(_OF_THE_LOOP) for thread in threading.enumerate()),
        )


class Soak:
    """One engine, a place for runs, and a tally of everything that was done to them."""

    def __init__(self, engine: Engine, tasks: TaskSet, directory: Path, chance: random.Random) -> None:
        self.injected: Counter[str] = Counter()
        self.results: list[TrialResult] = []
        self._engine = engine
        self._tasks = tasks
        self._directory = directory
        self._chance = chance

    async def run(self, agent: str, make_agent: Callable[[], TrialAgent], trials: int, harm_until_step: int) -> None:
        """`trials` of an agent, its containers harmed all the while."""
        name = f"soak-{agent}-{uuid.uuid4().hex[:6]}"
        plan = a_plan(
            name, seeds=tuple(range(trials // TASKS)), agent=agent, concurrency=AT_ONCE, cpu_overcommit=100.0,
            retries=RETRIES,
        )  # fmt: skip
        harm = Harm(self._engine, name, self._chance, harm_until_step)
        outcome = await execute_run(
            plan,
            self._tasks,
            self._directory / name,
            make_agent,
            Events(harm, self._show),
            backend=DockerBackend(self._engine, sandbox_settings(plan)),
        )
        await harm.ended()
        self.injected += harm.injected
        self.results += outcome.results

    def _show(self, event: Event) -> None:
        if event.kind == "trial_verdict" and event.result.error is not None:
            error = event.result.error
            words = f"attempt {event.result.attempt}: {error.type}: {error.message[:90]}"
            print(f"  {event.result.task} seed {event.result.seed}: {words}", flush=True)

    async def against_an_endpoint(self, behind: DemoEndpoint, trials: int) -> None:
        """Scripted trials over HTTP, through a proxy that harms requests and is away now and then."""
        protocol = load_protocol("keystrokes-json")
        host, port = behind.base_url.removeprefix("http://").partition("/")[0].split(":")
        async with ShakyEndpoint(host, int(port), self._chance, HARMED_REQUESTS) as shaky:
            retry = RetryPolicy(initial_sec=0.2, max_sec=5)
            async with ChatModel(
                shaky.base_url, None, Sampling(), api_key=None, request_timeout_sec=REQUEST_SEC, retry=retry
            ) as chat:
                await chat.connect()
                outages = asyncio.create_task(self._outages(shaky, trials * STEPS // (OUTAGES + 1)))
                try:
                    await self.run("scripted", lambda: ModelAgent(chat, protocol, Limits()), trials, STEPS - 2)
                finally:
                    outages.cancel()
                    await asyncio.gather(outages, return_exceptions=True)
            self.injected += shaky.injected

    async def _outages(self, shaky: ShakyEndpoint, every: int) -> None:
        """The endpoint is away after every so many requests."""
        for _ in range(OUTAGES):
            for _ in range(every):
                await shaky.arrived.acquire()
            await shaky.be_away(OUTAGE_SEC)


async def soak(engine: Engine, trials: int, directory: Path) -> bool:
    (directory / "scripts").mkdir()
    tasks = write_tasks(directory / "tasks", directory / "scripts")
    instructions = {task.name: task.instruction for task in tasks.tasks}
    chance = random.Random(trials)
    warm = Soak(engine, tasks, directory, chance)
    await warm.run("oracle", OracleAgent, TASKS, 0)
    before = Held.now(engine)
    work = Soak(engine, tasks, directory, chance)
    started = time.monotonic()
    with DemoEndpoint(instructions, scripts=directory / "scripts") as behind:
        await work.against_an_endpoint(behind, trials // 2)
    await work.run("oracle", OracleAgent, trials - trials // 2, 0)
    elapsed = time.monotonic() - started
    await asyncio.sleep(1.0)  # threads of calls that came to nothing end
    return report(work, trials, elapsed, before, Held.now(engine))


def report(work: Soak, trials: int, elapsed: float, before: Held, after: Held) -> bool:
    finals = {(result.run, result.task, result.seed): result for result in work.results if result.final}
    verdicts = sum(result.reward is not None for result in finals.values())
    solved = sum(result.passed for result in finals.values())
    errors = Counter(result.error.type for result in work.results if result.error is not None)
    leaked = {
        "containers": len(after.containers - before.containers),
        "networks": len(after.networks - before.networks),
        "volumes": len(after.volumes - before.volumes),
        "descriptors": max(0, after.descriptors - before.descriptors),
        "tasks": max(0, after.tasks - before.tasks),
        "threads": max(0, after.threads - before.threads),
    }
    print(f"soak: {trials} trials, {AT_ONCE} at once, {elapsed:.0f} s")
    print(f"injected: {work.injected.total()}: {_counted(work.injected)}")
    print(f"attempts: {len(work.results)}; errors of attempts that were repeated: {_counted(errors) or 'none'}")
    print(f"verdicts: {verdicts}/{trials}, solved {solved}")
    print(f"left behind: {_counted(leaked)}")
    return verdicts == len(finals) == trials and not any(leaked.values())


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS
    if trials < 2 * TASKS or trials % (2 * TASKS):
        sys.exit(f"soak: TRIALS must be a multiple of {2 * TASKS}")
    engine = Engine.connect(2 * AT_ONCE)
    try:
        with tempfile.TemporaryDirectory() as directory:
            good = asyncio.run(soak(engine, trials, Path(directory)))
    finally:
        engine.close()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
