"""A terminal that one process has left and another goes on with: every key is typed exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from terminals import BASH, LONG, started, write_task

from harness.protocols.base import Keys
from harness.terminal import COLUMNS, ROWS, Terminal
from harness.terminal.tap import Recording
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]
LINES = "".join(f"echo line-{number} >>/app/out\n" for number in range(10))
ACTIONS = [
    Keys(LINES, LONG),
    Keys("sleep 0.3; echo slow >>/app/out\n", LONG),
    Keys("", 0.1),
    Keys("cat >>/app/out <<END\nthere äöü\nEND\n", LONG),
    Keys("Enter", 0.1, key="Enter"),
    Keys(f"echo {'é' * 2000} >>/app/out\n", LONG),
]
WANTED = [*(f"line-{number}" for number in range(10)), "slow", "there äöü", "é" * 2000]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def box(engine: Engine, tools_volume: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Container]:
    task = write_task(tmp_path_factory.mktemp("box") / "going-on-box", BASH)
    async with started(engine, tools_volume, task) as container:
        first = Terminal(container.connect)
        await first.open()
        await first.close()
        yield container


async def leave(terminal: Terminal) -> None:
    """Break the connection as the end of a process does: nothing is awaited, and nothing said."""
    stream = terminal._link._client._stream
    assert stream is not None
    await stream.close()


async def cut_after(terminal: Terminal, seconds: float, step: int) -> int:
    """Follow the actions of a step until the process ends; how many were followed to their end."""
    done = 0

    async def follow() -> None:
        nonlocal done
        terminal.mark_step(step)
        for action in ACTIONS:
            await terminal.send(action)
            done += 1

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await follow()
    await leave(terminal)
    return done


async def output(box: Container) -> list[str]:
    ended = await box.shell("cat /app/out; rm -f /app/out", timeout_sec=30, user="root")
    return ended.output.decode().splitlines()


@pytest.mark.parametrize("seed", range(6))
async def test_what_was_typed_before_the_cut_is_not_typed_again_and_the_rest_is(box: Container, seed: int) -> None:
    first = Terminal(box.connect)
    await first.go_on(0)
    await first.send(Keys("cd /app; rm -f out\n", LONG))
    moments = random.Random(seed)
    step = 100 + seed
    await cut_after(first, moments.uniform(0.0, 1.2), step)
    for _ in range(2):
        later = Terminal(box.connect)
        assert await later.go_on(step) <= step
        await cut_after(later, moments.uniform(0.0, 0.8), step)
    last = Terminal(box.connect)
    await last.go_on(step)
    last.mark_step(step)
    for action in ACTIONS:
        await last.send(action)
    await last.close()
    assert await output(box) == WANTED


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.4])
async def test_a_command_runs_once_and_its_output_is_what_the_screen_shows(box: Container, seconds: float) -> None:
    step = 7 + int(100 * seconds)  # the container is shared, and steps only grow
    command = "for n in 1 2 3; do echo tick-$n; sleep 0.3; done; echo once >>/app/out; (exit 7)"
    first = Terminal(box.connect)
    await first.go_on(0)
    first.mark_step(step)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await first.run(command, LONG)
    await leave(first)
    last = Terminal(box.connect)
    await last.go_on(step)
    last.mark_step(step)
    result = await last.run(command, LONG)
    assert (result.output, result.exit_code) == ("tick-1\ntick-2\ntick-3\n", 7)
    assert (await last.run("echo next", LONG)).output == "next\n"
    await last.close()
    assert await output(box) == ["once"]


async def test_a_recording_is_continued_without_its_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "session.cast"
    first = Recording(path, columns=COLUMNS, rows=ROWS)
    first.output(b"before")
    first.close()
    with path.open("a") as file:
        file.write('[1.5, "o", "to')
    later = Recording(path, columns=COLUMNS, rows=ROWS, goes_on=True)
    later.output(b"after")
    later.close()
    head, *events = map(json.loads, path.read_text().splitlines())
    assert head["version"] == 2
    assert [event[2] for event in events] == ["before", "after"]
    assert events[0][0] <= events[1][0]
