"""Connections that are cut under a command: what was printed until then is never taken for the whole, nor judged."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_bench import BAD, Bench, Works, error_of
from filled_copies import filled_copy
from hypothesis import given
from hypothesis import strategies as st
from own_relay import OwnRelay, own_relay

from tbench.agents.trial_agent import Workplace
from tbench.errors import TrialError
from tbench.events import Event, TrialPhase
from tbench.sandbox.backend import Sandbox, SandboxSettings, open_backend
from tbench.sandbox.commands import CommandOutput, EndOfOutput
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.tasks.environment import agent_environment

BOUND_SEC = 60


@pytest.fixture
def relay() -> Iterator[OwnRelay]:
    with own_relay() as relay:
        yield relay


@pytest.fixture
def relayed(relay: OwnRelay, tools_volume: str) -> Iterator[Engine]:
    engine = Engine.connect(8, host=relay.host, is_forwarded=True)
    yield engine
    engine.close()


@pytest.fixture
def bench(relayed: Engine, tools_volume: str, tmp_path: Path, make_task: Any) -> Bench:
    return Bench(relayed, tools_volume, tmp_path, make_task)


@pytest.fixture
async def sandbox(bench: Bench) -> AsyncIterator[Sandbox]:
    async with open_backend(DockerBackend(bench.engine, SandboxSettings(bench.run))) as backend:
        sandbox = await backend.sandbox(agent_environment(bench.task(BAD)), "t.s0.x")
        yield sandbox
        await sandbox.remove()


async def seen(sandbox: Sandbox, path: str) -> None:
    """Wait until a file is there."""
    ended = await sandbox.shell(f"until [ -e {path} ]; do sleep 0.02; done", timeout_sec=BOUND_SEC)
    assert ended.exit_code == 0


@pytest.mark.engine
@pytest.mark.parametrize("goes_on", ["sleep 0.3", "sleep 30", "exit 3"])
async def test_a_command_whose_connection_was_cut_is_an_error_however_it_goes_on(
    goes_on: str, sandbox: Sandbox, relay: OwnRelay
) -> None:
    waits = "until [ -e /cut ]; do sleep 0.02; done"
    running = asyncio.create_task(sandbox.shell(f"echo begun; touch /begun; {waits}; {goes_on}", timeout_sec=60))
    await seen(sandbox, "/begun")
    relay.cut()
    cut = asyncio.create_task(sandbox.shell("touch /cut", timeout_sec=BOUND_SEC))
    with pytest.raises(TrialError, match="the connection to the engine was cut while a command was running") as lost:
        await running
    assert lost.value.type == "engine_unreachable"
    await cut


@pytest.mark.engine
async def test_a_command_that_ends_in_any_way_is_none_that_was_cut(sandbox: Sandbox) -> None:
    for script in ("exit 0", "exit 3", "exec true", "kill -TERM $$", "exec >&- 2>&-; sleep 0.2", ":"):
        ended = await sandbox.shell(f"echo printed; {script}", timeout_sec=60)
        assert ended.output == b"printed\n" and ended.exit_code is not None and not ended.timed_out, script


@pytest.mark.engine
async def test_nothing_of_the_mark_is_in_the_output_or_the_environment(sandbox: Sandbox) -> None:
    ended = await sandbox.shell("printf abc; env | grep -c TBENCH_END", timeout_sec=60)
    assert ended.output == b"abc0\n"
    sink = io.BytesIO()
    await sandbox.stream("head -c 3000000 /dev/zero; sleep 0.1 && printf late &", timeout_sec=60, sink=sink)
    assert sink.getvalue().replace(b"late", b"") == bytes(3_000_000)


@pytest.mark.engine
async def test_files_of_a_copy_are_all_there_or_it_is_an_error(sandbox: Sandbox, relay: OwnRelay) -> None:
    make = "mkdir /app/many; cd /app/many; for n in $(seq 300); do head -c 100000 /dev/urandom >$n; done"
    assert (await sandbox.shell(make, timeout_sec=BOUND_SEC)).exit_code == 0
    paths = ["/app/many", *(f"/app/many/{number}" for number in range(1, 301))]
    copy = await filled_copy(sandbox, paths, [])
    assert (await copy.shell("ls /app/many | wc -l", timeout_sec=BOUND_SEC)).output == b"300\n"
    await copy.remove()

    async def cut() -> None:
        await asyncio.to_thread(relay.wait_for, 5_000_000)
        relay.cut()

    cutting = asyncio.create_task(cut())
    with pytest.raises(TrialError, match="the connection to the engine was cut while files were copied") as lost:
        await filled_copy(sandbox, paths, [])
    assert lost.value.type == "engine_unreachable"
    await cutting


# -- whole trials ----------------------------------------------------------------------------------


@pytest.mark.engine
async def test_an_agent_whose_connection_was_cut_is_not_judged(bench: Bench, relay: OwnRelay) -> None:
    async def lose(place: Workplace) -> None:
        running = asyncio.create_task(place.sandbox.shell("touch /begun; sleep 1; touch /app/done", timeout_sec=60))
        await seen(place.sandbox, "/begun")
        relay.cut()
        await running

    results = await bench.execute(lambda: Works({BAD: lose}), bench.task(BAD))
    assert (error_of(results[BAD]), results[BAD].reward, results[BAD].outcome) == ("engine_unreachable", None, None)


@pytest.mark.engine
@pytest.mark.parametrize("last", ["sleep 0.5", "sleep 20"])
async def test_a_verifier_whose_connection_was_cut_gives_no_verdict(last: str, bench: Bench, relay: OwnRelay) -> None:
    cutting: list[asyncio.Task[None]] = []
    begun: list[Sandbox] = []

    async def note(place: Workplace) -> None:
        begun.append(place.sandbox)

    async def cut() -> None:
        await seen(begun[0], "/begun")
        relay.cut()

    def on_event(event: Event) -> None:
        if isinstance(event, TrialPhase) and event.phase == "verifier":
            cutting.append(asyncio.create_task(cut()))

    test = f"echo 0 >/logs/verifier/reward.txt; touch /begun; {last}; echo 1 >/logs/verifier/reward.txt\n"
    results = await bench.execute(lambda: Works({BAD: note}), bench.task(BAD, test=test), on_event=on_event)
    assert (error_of(results[BAD]), results[BAD].reward) == ("engine_unreachable", None)
    await asyncio.gather(*cutting)


# -- the end of an output --------------------------------------------------------------------------


@given(
    before=st.binary(max_size=60),
    behind=st.binary(max_size=20),
    size=st.integers(1, 40),
    starts=st.integers(0, 24),
    at_limit=st.booleans(),
    code=st.integers(0, 255),
)
def test_the_end_is_found_wherever_the_pieces_are_cut(
    before: bytes, behind: bytes, size: int, starts: int, at_limit: bool, code: int
) -> None:
    end = EndOfOutput()
    mark = end.mark.encode()
    printed = before + mark[:starts] if starts < len(mark) else before
    whole = printed + mark + b"%d%03d" % (at_limit, code) + behind
    assert end.is_missing
    out = b"".join(end.strip(whole[at : at + size]) for at in range(0, len(whole), size)) + end.flush()
    assert out == printed + behind and not end.is_missing
    assert end.at_limit is at_limit and end.exit_code == code


@given(printed=st.binary(max_size=60), size=st.integers(1, 40), starts=st.integers(0, 28))
async def test_without_an_end_nothing_of_the_output_is_lost(printed: bytes, size: int, starts: int) -> None:
    end = EndOfOutput()
    output = CommandOutput(None, 1000, end)
    printed += (end.mark.encode() + b"000")[:starts]
    for at in range(0, len(printed), size):
        assert await output.take(printed[at : at + size])
    await output.finish()
    assert end.is_missing and output.kept == printed.removeprefix(b"\1")
