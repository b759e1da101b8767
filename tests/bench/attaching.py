"""Somebody at a trial's terminal: how soon they see it, and how soon a key that they press is in the container.

The container's shell tells when it has read a key, by the clock that it shares with this machine. The floor of a key
is the same without tbench: one stream, on which tmux is told to type.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from functools import partial
from pathlib import Path

from figures import Figures
from run_plans import a_plan
from small_task import Place
from steps import STEPS, bare_stream, opened, step_ms

from harness.stream import ByteStream
from harness.terminal import Terminal
from harness.terminal.control_mode import type_bytes
from tbench.control.client import AttachedTerminal, attach
from tbench.control.listener import listening
from tbench.control.server import serve
from tbench.control.wire import Attach
from tbench.runs.control import RunControl
from tbench.runs.live.commands import LiveControl
from tbench.runs.plan import plan_trials
from tbench.runs.run import make_debugger
from tbench.tasks.sources import TaskSet

LOOKS, KEYS = 60, 120
TELLS = b"while IFS= read -rsn1; do echo key-$EPOCHREALTIME; done\r"
TOLD = re.compile(r"key-(\d+\.\d+)")


async def first_screens_ms(run: Path) -> list[float]:
    """From connecting to the drawn screen."""
    times = []
    for _ in range(LOOKS):
        started = time.perf_counter()
        async with attach(run, Attach(trial="bench-task", drawn=True)) as way:
            assert way.first.screen is not None
            times.append((time.perf_counter() - started) * 1e3)
    return times


async def keys_ms(run: Path) -> list[float]:
    """From a key press in a taken terminal until the shell has read it."""
    times, told = list[float](), set[str]()
    async with attach(run, Attach(trial="bench-task", take=True, drawn=True)) as way:
        assert way.first.yours
        way.type(TELLS)
        await asyncio.sleep(0.2)
        for _ in range(KEYS):
            pressed = time.time()
            way.type(b"x")
            while not (new := told_by(told, await next_lines(way))):
                pass
            told |= new
            times.append((float(max(new)) - pressed) * 1e3)
            await asyncio.sleep(0.03)
        way.type(b"\x03")
    return times


async def next_lines(way: AttachedTerminal) -> str:
    answer = await way.next()
    assert answer is not None and answer.screen is not None
    return "\n".join(answer.screen.lines)


def told_by(told: set[str], text: str) -> set[str]:
    return set(TOLD.findall(text)) - told


async def floor_keys_ms(stream: ByteStream) -> list[float]:
    """The same on a bare stream."""
    times = []
    await stream.write(type_bytes("main", TELLS)[0])
    await asyncio.sleep(0.2)
    for _ in range(KEYS):
        pressed, read = time.time(), ""
        await stream.write(type_bytes("main", b"x")[0])
        while not (found := TOLD.search(read)):
            read += (await stream.read()).decode()
        times.append((float(found[1]) - pressed) * 1e3)
        await asyncio.sleep(0.03)
    return times


async def of_one_trial(place: Place, figures: Figures, scratch: Path) -> None:
    """The first screen, and a key press, by way of the control socket."""
    control = RunControl("bench", 1, 1, make_debugger=partial(make_debugger, waits=False, asks=False))
    (plan,) = plan_trials(TaskSet((place.task,), {}), a_plan("bench", seeds=(0,)))
    async with place.sandboxes(1) as sandboxes:
        [terminal], stream = await opened(sandboxes), await bare_stream(sandboxes[0])
        with control.trial(plan) as trial:
            trial.terminal = terminal
            async with listening(scratch, partial(serve, controls=LiveControl(control)), print):
                looks = await first_screens_ms(scratch)
                trial.gate.close()
                held = asyncio.create_task(trial.before_query(1))
                await asyncio.sleep(0)
                keys, floors = await keys_ms(scratch), await floor_keys_ms(stream)
                trial.gate.open()
                await held
                steps = await looked_on_ms(scratch, terminal)
        await terminal.close()
        await stream.close()
    figures.add_quantiles("attach_first_screen_ms", looks)
    figures.add_quantiles("attach_key_ms", keys, floors)
    figures.add("terminal_step_looked_on_ms_p50", statistics.median(steps), "ms")


async def looked_on_ms(run: Path, terminal: Terminal) -> list[float]:
    """Steps while three people look on, one of whom reads nothing."""
    ask = Attach(trial="bench-task", drawn=True)
    async with attach(run, ask) as first, attach(run, ask) as second, attach(run, ask):

        async def read(way: AttachedTerminal) -> None:
            while True:
                await next_lines(way)

        readers = [asyncio.create_task(read(way)) for way in (first, second)]
        times = await step_ms(terminal, STEPS)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return times
