"""`make bench`: what the runner costs, beside the floor of the same machine in the same minutes.

Prints a table and writes bench.json: {"figures": {NAME: {"value", "unit", "floor", "ratio"}}}. Machines are noisy:
bare cycles and trials are interleaved, figures are medians.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.agent import Limits
from harness.chat import ChatModel
from harness.control_mode import type_bytes
from harness.model import Sampling
from harness.protocols import load_protocol
from harness.protocols.base import Keys
from harness.terminal import Terminal, TerminalSpec
from tbench import container
from tbench.agents import ModelAgent, OracleAgent, TrialAgent
from tbench.dataset import TaskSet
from tbench.demo.server import DemoEndpoint
from tbench.engine import NETWORK, Engine
from tbench.events import Events
from tbench.image import Images
from tbench.run import EngineSandboxes, RunConfig, RunOutcome, execute_on_engine
from tbench.task import Task
from tbench.tools import ensure_tools

CYCLES, STEPS, LIVES, AT_ONCE = 12, 300, 48, 8


def make_task(directory: Path) -> Task:
    """The smallest task there can be: what is left is the runner's own cost."""
    for name in ("environment", "solution", "tests"):
        (directory / name).mkdir(parents=True)
    (directory / "task.toml").write_text("[environment]\ncpus = 1\nmemory_mb = 512\n[agent]\ntimeout_sec = 60\n")
    (directory / "instruction.md").write_text("Create /app/done: this is the benchmark of the runner itself.\n")
    (directory / "environment/Dockerfile").write_text("FROM debian:bookworm-slim\nWORKDIR /app\n")
    (directory / "solution/solve.sh").write_text("#!/bin/bash\ntouch /app/done\n")
    (directory / "tests/test.sh").write_text(
        "#!/bin/bash\nif [ -e /app/done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    )
    return Task.read(directory)


def bare_cycle(api: Any, image: str, volume: str) -> float:
    """Create, start, two execs, forced removal, with the limits and mounts of a trial: seconds."""
    started = time.perf_counter()
    host = api.create_host_config(
        init=True,
        nano_cpus=10**9,
        mem_limit=512 << 20,
        memswap_limit=512 << 20,
        pids_limit=4096,
        network_mode=NETWORK,
        binds=[f"{volume}:{container.TOOLS}:ro"],
        tmpfs={f"{container.TOOLS}/run": "mode=1777,size=1m"},
    )
    identity = api.create_container(image, entrypoint=["sleep", "infinity"], host_config=host)["Id"]
    try:
        api.start(identity)
        for _ in range(2):
            api.exec_start(api.exec_create(identity, ["true"])["Id"])
    finally:
        api.remove_container(identity, force=True)
    return time.perf_counter() - started


async def run_trials(
    engine: Engine, task: Task, make_agent: Callable[[], TrialAgent], seeds: int, concurrency: int, agent: str
) -> tuple[float, RunOutcome]:
    """Wall seconds of a whole run, teardown included."""
    with tempfile.TemporaryDirectory() as directory:
        config = RunConfig(
            run="bench",
            source="bench",
            seeds=tuple(range(seeds)),
            agent=agent,
            concurrency=concurrency,
            cpu_overcommit=100.0,
        )
        started = time.perf_counter()
        outcome = await execute_on_engine(
            config, TaskSet((task,), {}), Path(directory) / "run", make_agent, Events(), engine=engine
        )
        elapsed = time.perf_counter() - started
    assert all(result.reward == 1.0 for result in outcome.results), outcome.results
    assert len(outcome.results) == seeds
    return elapsed, outcome


async def terminal_steps(engine: Engine, task: Task, volume: str) -> tuple[list[float], list[float]]:
    """Milliseconds of whole steps, and of the same keystrokes without the harness (until the prompt's mark)."""
    make = EngineSandboxes(engine, Images(engine), volume, "bench")
    sandbox = await make(task, "bench", lambda _: None)
    try:
        terminal = Terminal(sandbox.connect)
        await terminal.open()
        steps = []
        for number in range(STEPS):
            started = time.perf_counter()
            settled = await terminal.send(Keys(f"echo step-{number}\n", 5.0))
            view = await terminal.view()
            steps.append((time.perf_counter() - started) * 1e3)
            assert settled.at_prompt and f"\nstep-{number}\n" in (view.new_output or ""), view
        await terminal.close()
        stream = await sandbox.connect(TerminalSpec().argv(), TerminalSpec().environment)
        while b"session-changed" not in await stream.read():
            pass
        floor = []
        for number in range(STEPS):
            started = time.perf_counter()
            await stream.write(type_bytes("main", f"echo step-{number}\r".encode())[0])
            while b"133;B;" not in await stream.read():
                pass
            floor.append((time.perf_counter() - started) * 1e3)
        await stream.close()
    finally:
        await sandbox.remove()
    return steps, floor


def ten_steps(task: Task, scripts: Path) -> DemoEndpoint:
    """Eight steps of one command each; with the claim and its confirmation that makes ten replies."""
    lines = ["pass_rate = 1.0", "fail = []"]
    for number in range(8):
        command = "touch /app/done" if number == 7 else f"echo {number}"
        lines += ["[[pass]]", f'analysis = "step {number}"', 'plan = "one command"']
        lines.append(f'commands = [{{ keystrokes = "{command}\\n", duration = 0.1 }}]')
    (scripts / f"{task.name}.toml").write_text("\n".join(lines) + "\n")
    return DemoEndpoint({task.name: task.instruction}, scripts=scripts)


def bare_lives(engine: Engine, image: str, volume: str) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(bare_cycle, engine.api, image, volume) for _ in range(LIVES)]:
            done.result()
    return LIVES / (time.perf_counter() - started)


def help_sec() -> tuple[float, float]:
    def measure(command: list[str]) -> float:
        times = []
        for _ in range(7):
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    tbench = str(Path(sys.executable).with_name("tbench"))
    return measure([tbench, "--help"]), measure([sys.executable, "-c", "pass"])


class Figures:
    """What was measured, by name."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}

    def add(self, name: str, value: float, unit: str, floor: float | None = None) -> None:
        ratio = None if not floor else round(value / floor, 3)
        self._rows[name] = {
            "value": round(value, 4),
            "unit": unit,
            "floor": None if floor is None else round(floor, 4),
            "ratio": ratio,
        }

    def show(self) -> None:
        table = Table("figure", "value", "unit", "floor", "ratio", box=None)
        for name, row in self._rows.items():
            table.add_row(
                name, *("" if row[key] is None else str(row[key]) for key in ("value", "unit", "floor", "ratio"))
            )
        Console(width=100).print(table)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"figures": self._rows}, indent=2) + "\n")


async def measure(engine: Engine, task: Task, scratch: Path) -> Figures:
    figures = Figures()
    volume = await ensure_tools(engine, print)
    await engine.ensure_network()
    image = (await Images(engine).get(task)).id

    steps, raw = await terminal_steps(engine, task, volume)
    floor_p50, floor_p95 = statistics.median(raw), statistics.quantiles(raw, n=20)[18]
    figures.add("terminal_step_ms_p50", statistics.median(steps), "ms", floor_p50)
    figures.add("terminal_step_ms_p95", statistics.quantiles(steps, n=20)[18], "ms", floor_p95)

    with ten_steps(task, scratch) as endpoint:
        chat = ChatModel(endpoint.base_url, None, Sampling(), api_key=None)
        await chat.connect()
        protocol = load_protocol("keystrokes-json")
        bare, oracle, model = [], [], []
        for _ in range(CYCLES):
            bare.append(bare_cycle(engine.api, image, volume))
            oracle.append((await run_trials(engine, task, OracleAgent, 1, 1, "oracle"))[0])
            elapsed, outcome = await run_trials(
                engine, task, lambda: ModelAgent(chat, protocol, Limits()), 1, 1, "keystrokes-json"
            )
            assert outcome.results[0].steps == 10, outcome.results
            model.append(elapsed)
        await chat.close()
    bare_sec, oracle_sec = statistics.median(bare), statistics.median(oracle)
    figures.add("oracle_trial_sec", oracle_sec, "s", bare_sec)
    figures.add("oracle_trial_over_bare_cycle", oracle_sec / bare_sec, "ratio", 1.0)
    figures.add("ten_step_trial_sec", statistics.median(model), "s", oracle_sec)
    figures.add("ten_step_minus_oracle_sec", statistics.median(model) - oracle_sec, "s")

    shares, lives = [], []
    for _ in range(3):
        bare_rate = bare_lives(engine, image, volume)
        elapsed, _ = await run_trials(engine, task, OracleAgent, LIVES, AT_ONCE, "oracle")
        lives.append((LIVES / elapsed, bare_rate))
        shares.append(LIVES / elapsed / bare_rate)
    figures.add(
        "lives_per_sec_n8", statistics.median(r for r, _ in lives), "1/s", statistics.median(b for _, b in lives)
    )
    figures.add("lives_per_sec_share_n8", statistics.median(shares), "ratio", 1.0)

    figures.add("help_sec", *_with_unit(help_sec()))
    return figures


def _with_unit(pair: tuple[float, float]) -> tuple[float, str, float]:
    return pair[0], "s", pair[1]


def main() -> None:
    engine = Engine.connect(AT_ONCE)
    try:
        with tempfile.TemporaryDirectory() as directory:
            scratch = Path(directory) / "scripts"
            scratch.mkdir()
            figures = asyncio.run(measure(engine, make_task(Path(directory) / "bench-task"), scratch))
    finally:
        engine.close()
    figures.show()
    figures.write(Path("bench.json"))
    print("written: bench.json")


if __name__ == "__main__":
    main()
