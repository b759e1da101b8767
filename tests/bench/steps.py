"""Steps on real containers: one trial, sixteen at once, and what they cost in CPU time of this process.

The floor of a step is the same keystrokes on the same kind of stream until the prompt's mark, without the harness.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Sequence
from itertools import chain
from pathlib import Path

from endpoint import Endpoint
from figures import Figures
from small_task import Place

from harness.agent import Agent, Limits
from harness.endpoint.chat import ChatModel
from harness.model import Sampling
from harness.protocols import load_protocol
from harness.protocols.base import Keys
from harness.stream import ByteStream
from harness.terminal import Terminal, TerminalSpec
from harness.terminal.control_mode import type_bytes
from tbench.sandbox.backend import Sandbox

AT_ONCE = 16
ROUNDS = 5
"""Steps and their floor take turns, so that both see the same machine."""
STEPS, CPU_STEPS, STEPS_AT_ONCE = 60, 100, 12
"""Per round; CPU_STEPS are those of a conversation."""
FLOOR = TerminalSpec(socket="/opt/tbench/run/floor")
REPLY = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "echo step\\n", "duration": 5.0}]}'


async def step_ms(terminal: Terminal, steps: int) -> list[float]:
    """Type a line, wait until it has settled, look: milliseconds each."""
    times = []
    for number in range(steps):
        started = time.perf_counter()
        settled = await terminal.send(Keys(f"echo step-{number}\n", 5.0))
        view = await terminal.view()
        times.append((time.perf_counter() - started) * 1e3)
        assert settled.at_prompt and f"\nstep-{number}" in (view.new_output or ""), view
    return times


async def floor_ms(stream: ByteStream, steps: int) -> list[float]:
    times = []
    for number in range(steps):
        times.append(await line_ms(stream, f"echo step-{number}"))
    return times


async def line_ms(stream: ByteStream, line: str) -> float:
    """From typing a line to the prompt's mark."""
    started = time.perf_counter()
    await stream.write(type_bytes("main", f"{line}\r".encode())[0])
    while b"133;B;" not in await stream.read():
        pass
    return (time.perf_counter() - started) * 1e3


async def bare_stream(sandbox: Sandbox) -> ByteStream:
    stream = await sandbox.connect(FLOOR.argv(), FLOOR.variables())
    while b"133;B;" not in await stream.read():
        pass
    return stream


async def opened(sandboxes: Sequence[Sandbox]) -> list[Terminal]:
    terminals = [Terminal(sandbox.connect) for sandbox in sandboxes]
    for terminal in terminals:
        await terminal.open()
    return terminals


async def one_trial(place: Place, figures: Figures, scratch: Path) -> None:
    """The time of a step, and the CPU time of this process for it: terminal alone, and with agent loop and client."""
    times, floors, cpu, cpu_agent, cpu_floors = [], [], [], [], []
    async with contextlib.AsyncExitStack() as stack:
        sandboxes = await stack.enter_async_context(place.sandboxes(1))
        base_url = stack.enter_context(Endpoint(REPLY, 0.0))
        chat = await stack.enter_async_context(ChatModel(base_url, None, Sampling(), api_key=None))
        await chat.connect()
        [terminal], stream = await opened(sandboxes), await bare_stream(sandboxes[0])
        for _ in range(ROUNDS):
            times += await step_ms(terminal, STEPS)
            floors += await floor_ms(stream, STEPS)
            cpu.append(await cpu_ms_per_step(step_ms(terminal, STEPS), STEPS))
            cpu_agent.append(await cpu_ms_per_step(converse(chat, terminal, CPU_STEPS), CPU_STEPS))
            cpu_floors.append(await cpu_ms_per_step(floor_ms(stream, STEPS), STEPS))
        await terminal.close()
        await stream.close()
    cpu_floor = statistics.median(cpu_floors)
    figures.add_quantiles("terminal_step_ms", times, floors)
    figures.add("terminal_step_cpu_ms", statistics.median(cpu), "ms", cpu_floor)
    figures.add("agent_step_cpu_ms", statistics.median(cpu_agent), "ms", cpu_floor)


async def cpu_ms_per_step(steps: Awaitable[object], count: int) -> float:
    started = time.process_time()
    await steps
    return (time.process_time() - started) * 1e3 / count


async def converse(chat: ChatModel, terminal: Terminal, steps: int) -> None:
    agent = Agent(chat, terminal, load_protocol("keystrokes-json"), Limits(steps=steps))
    trajectory = await agent.run("Go on.")
    assert len(trajectory.steps) == steps and not trajectory.warnings, trajectory.warnings


async def sixteen_trials(place: Place, figures: Figures, scratch: Path) -> None:
    """Sixteen containers, a terminal in each, all stepping as fast as they can in one process."""
    times: list[float] = []
    floors: list[float] = []
    async with place.sandboxes(AT_ONCE) as sandboxes:
        terminals = await opened(sandboxes)
        streams = [await bare_stream(sandbox) for sandbox in sandboxes]
        for _ in range(ROUNDS):
            times += chain(*await asyncio.gather(*(step_ms(terminal, STEPS_AT_ONCE) for terminal in terminals)))
            floors += chain(*await asyncio.gather(*(floor_ms(stream, STEPS_AT_ONCE) for stream in streams)))
        for each in (*terminals, *streams):
            await each.close()
    figures.add_quantiles("terminal_step_ms_n16", times, floors)
