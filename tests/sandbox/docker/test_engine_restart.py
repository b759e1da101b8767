"""An engine that stops, restarts, hangs or fills up under a run: a dockerd of the test's own."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_bench import BAD, GOOD, AtTheTerminal, Bench, Works, error_of, solve
from own_engine import OwnEngine, own_engine

from harness.fakes import ScriptedModel
from harness.trajectory import Outcome
from tbench.agents.trial_agent import NopAgent, TrialAgent, Workplace
from tbench.errors import TrialError, UsageError
from tbench.events import Event, TrialPhase
from tbench.results import Blame, ErrorInfo
from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine, EngineUnreachable
from tbench.sandbox.docker.image import Images
from tbench.sandbox.docker.tools import ensure_tools
from tbench.sandbox.own_images import recipe_hash
from tbench.sandbox.run_machine import RunMachine
from tbench.tasks.environment import agent_environment
from tbench.tasks.sources import images_dir
from tbench.tasks.task import Task

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    # The docker SDK leaves the socket of a refused connect() to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("dockerd") is None, reason="starting an engine takes root and dockerd"
    ),
]
IMAGES = ["debian:bookworm-slim", f"tbench/tools:{recipe_hash(images_dir() / 'tools')}"]
SLOW_VERIFIER = "touch /begun; sleep 12; echo 1 >/logs/verifier/reward.txt\n"
Own = tuple[OwnEngine, Engine, str]


def prepared(*options: str, **more: Any) -> Iterator[Own]:
    with own_engine(*options, images=IMAGES, **more) as (own, engine):
        yield own, engine, asyncio.run(ensure_tools(engine, print))


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect garbage of the SDK here, where its warnings are expected."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def plain(engine: Engine, tools_volume: str) -> Iterator[Own]:
    """Its containers end with it, as Docker does by default."""
    yield from prepared()


@pytest.fixture(scope="module")
def live(engine: Engine, tools_volume: str) -> Iterator[Own]:
    """Its containers outlive it."""
    yield from prepared("--live-restore")


def bench_on(own: Own, tmp_path: Path, make_task: Any) -> Bench:
    return Bench(own[1], own[2], tmp_path, make_task)


async def restart(own: OwnEngine, down_sec: float, number: int = signal.SIGTERM) -> None:
    await asyncio.to_thread(own.stop, number)
    await asyncio.sleep(down_sec)
    await asyncio.to_thread(own.start)


class Typing(ScriptedModel):
    """Types for some seconds, solves the task, and tells when its long command is under way: what is typed in the very
    moment in which the engine goes is lost."""

    def __init__(self, begun: asyncio.Event) -> None:
        commands = ["mkdir -p /app; x=kept", "sleep 6; echo slept", "echo $x", '[ "$x" = kept ] && touch /app/done']
        commands += [f"echo {number}" for number in range(40)]
        super().__init__([f"```bash\n{command}\n```" for command in commands])
        self._begun = begun

    async def query(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.requests) == 1:
            asyncio.get_running_loop().call_later(2.0, self._begun.set)
        return await super().query(*args, **kwargs)


def agents(begun: asyncio.Event) -> TrialAgent:
    """At the terminal on the bad task, solving the others."""

    class Both(NopAgent):
        async def work(self, place: Workplace) -> Any:
            agent: Any = AtTheTerminal(lambda _: Typing(begun)) if place.task.name == BAD else Works({})
            return await agent.work(place)

    return Both()


@pytest.mark.parametrize(
    ("damage", "starts"),
    [("rm -r /v/*", False), ("truncate -s 99 /v/bin/init", True), ("rm -r /v/bin/limit /v/bin/tmux", True)],
)
async def test_tools_that_go_under_a_run_are_there_for_the_next_container(
    plain: Own, tmp_path: Path, make_task: Any, damage: str, starts: bool
) -> None:
    own, engine, volume = plain
    bench, said = bench_on(plain, tmp_path, make_task), list[str]()
    environment = agent_environment(bench.task("small"))
    async with open_backend(DockerBackend(engine, SandboxSettings(bench.run)), said.append) as backend:
        await backend.prepare(environment)
        host = ["docker", "-H", own.host, "run", "--rm", "--network=none", f"--volume={volume}:/v"]
        done = await asyncio.to_thread(subprocess.run, [*host, "debian:bookworm-slim", "sh", "-c", damage], timeout=60)
        assert done.returncode == 0
        if starts:
            sandbox = await backend.sandbox(environment, "t.s0")
            with pytest.raises(TrialError) as failed:
                await sandbox.shell("true", timeout_sec=20)
            await sandbox.remove()
            assert ErrorInfo.of(failed.value).blame is Blame.INFRA
            RunMachine("", backend).record_attempt(ErrorInfo.of(failed.value))
        sandbox = await backend.sandbox(environment, "t.s1")
        assert (await sandbox.shell("true", timeout_sec=20)).exit_code == 0
        await sandbox.remove()
    assert [line for line in said if volume in line and "has been repaired" in line]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_that_ends_the_containers_is_an_error_and_another_attempt_succeeds(
    plain: Own, tmp_path: Path, make_task: Any, number: int
) -> None:
    bench, begun = bench_on(plain, tmp_path, make_task), asyncio.Event()
    tasks = bench.task(BAD), bench.task("judged", test=SLOW_VERIFIER), bench.task("command")

    async def command(place: Workplace) -> None:
        await place.sandbox.shell("sleep 60", timeout_sec=100)

    def agent() -> TrialAgent:
        class All(NopAgent):
            async def work(self, place: Workplace) -> Any:
                return await (Works({"command": command}) if place.task.name == "command" else agents(begun)).work(
                    place
                )

        return All()

    running = asyncio.create_task(bench.execute(agent, *tasks))
    await begun.wait()
    await restart(plain[0], 1.0, number)
    results = await running
    assert {name: (error_of(result), result.reward) for name, result in results.items()} == dict.fromkeys(
        (BAD, "judged", "command"), ("sandbox_lost", None)
    )
    assert all(result.error and result.error.retryable for result in results.values())
    assert await bench.containers() == []
    again = Bench(plain[1], plain[2], tmp_path, make_task)
    assert (await again.execute(lambda: Works({}), bench.task("command")))["command"].reward == 1.0


async def test_with_live_restore_the_terminal_is_attached_again_and_judged(
    live: Own, tmp_path: Path, make_task: Any
) -> None:
    bench, begun = bench_on(live, tmp_path, make_task), asyncio.Event()
    running = asyncio.create_task(bench.execute(lambda: agents(begun), bench.task(BAD)))
    await begun.wait()
    await restart(live[0], 3.0)
    results = await running
    assert (results[BAD].reward, results[BAD].error, results[BAD].outcome) == (1.0, None, Outcome.STEP_LIMIT)
    assert await bench.containers() == []


async def test_a_verifier_that_is_cut_off_by_a_restart_is_an_error_of_its_trial(
    live: Own, tmp_path: Path, make_task: Any
) -> None:
    bench, begun = bench_on(live, tmp_path, make_task), asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, TrialPhase) and event.phase == "verifier":
            begun.set()

    task = bench.task(BAD, test=SLOW_VERIFIER)
    running = asyncio.create_task(bench.execute(lambda: Works({}), task, on_event=on_event))
    await begun.wait()
    await asyncio.sleep(1)
    await restart(live[0], 0.0)
    result = (await running)[BAD]
    assert (error_of(result), result.reward) == ("sandbox_lost", None)
    assert await bench.containers() == []


async def test_an_engine_that_hangs_for_a_while_costs_nothing(plain: Own, tmp_path: Path, make_task: Any) -> None:
    bench, begun = bench_on(plain, tmp_path, make_task), asyncio.Event()
    tasks = bench.task(BAD), bench.task("judged", test=SLOW_VERIFIER), bench.task(GOOD)
    running = asyncio.create_task(bench.execute(lambda: agents(begun), *tasks))
    await begun.wait()
    plain[0].tell(signal.SIGSTOP)
    await asyncio.sleep(25)
    plain[0].tell(signal.SIGCONT)
    results = await running
    assert {name: (result.reward, result.error) for name, result in results.items()} == dict.fromkeys(
        (BAD, "judged", GOOD), (1.0, None)
    )
    assert await bench.containers() == []


async def test_a_trial_that_begins_while_the_engine_is_away_waits_for_it(
    plain: Own, tmp_path: Path, make_task: Any
) -> None:
    bench = bench_on(plain, tmp_path, make_task)
    await asyncio.to_thread(plain[0].stop)
    running = asyncio.create_task(bench.execute(lambda: Works({}), bench.task(GOOD)))
    await asyncio.sleep(3)
    assert not running.done()
    await asyncio.to_thread(plain[0].start)
    results = await running
    assert (results[GOOD].reward, results[GOOD].error) == (1.0, None)


async def test_a_removal_while_the_engine_is_away_leaves_no_container(
    live: Own, tmp_path: Path, make_task: Any
) -> None:
    bench, stopped = bench_on(live, tmp_path, make_task), asyncio.Event()

    async def stop(place: Workplace) -> None:
        await solve(place)
        await asyncio.to_thread(live[0].stop)
        stopped.set()
        raise TrialError("endpoint_refused", "a reason to end")

    running = asyncio.create_task(bench.execute(lambda: Works({BAD: stop}), bench.task(BAD)))
    await stopped.wait()
    await asyncio.sleep(2)
    assert not running.done()
    await asyncio.to_thread(live[0].start)
    assert error_of((await running)[BAD]) == "endpoint_refused"
    assert await bench.containers() == []


async def test_an_engine_that_does_not_come_back_has_a_name(plain: Own, tmp_path: Path, make_task: Any) -> None:
    engine = Engine.connect(4, host=plain[0].host, outage_sec=2.0)
    bench = Bench(engine, plain[2], tmp_path, make_task)

    async def stop(place: Workplace) -> None:
        await asyncio.to_thread(plain[0].stop)
        await place.sandbox.shell("true", timeout_sec=10)

    def stop_before_the_sandbox(event: Event) -> None:
        if isinstance(event, TrialPhase) and event.phase == "queued":
            plain[0].stop()

    try:
        results = await bench.execute(lambda: Works({BAD: stop}), bench.task(BAD))
        assert error_of(results[BAD]) == "engine_unreachable"
        later = Bench(engine, plain[2], tmp_path, make_task)
        with pytest.raises(UsageError, match=r"inspect_volume|networks"):  # nothing was begun
            await later.execute(lambda: Works({}), later.task(GOOD))
        await asyncio.to_thread(plain[0].start)
        results = await later.execute(lambda: Works({}), later.task(GOOD), on_event=stop_before_the_sandbox)
        assert error_of(results[GOOD]) == "engine_unreachable"
        with pytest.raises(EngineUnreachable):
            await engine.call(engine.api.info)
    finally:
        await asyncio.to_thread(plain[0].start)
        engine.close()
    for left in await bench.containers():
        await plain[1].call(plain[1].api.remove_container, left, force=True)


@pytest.fixture
def small(engine: Engine, tools_volume: str) -> Iterator[Own]:
    """With little room on its disk."""
    yield from prepared(size_mb=420)


async def test_a_disk_that_is_full_has_a_name(small: Own, tmp_path: Path, make_task: Any) -> None:
    toml = "[environment]\nmemory_mb = 256\nallow_internet = false\n"
    dockerfile = "FROM debian:bookworm-slim\nRUN head -c 900m /dev/zero >/full\n"
    task = Task.read(make_task("large", toml=toml, dockerfile=dockerfile))
    with pytest.raises(TrialError) as seen:
        await Images(small[1]).get(agent_environment(task))
    assert (seen.value.type, "MB free" in str(seen.value)) == ("image_no_space", True)
    with pytest.raises(TrialError) as built:
        await Images(small[1], free_mb=0).get(agent_environment(task))
    assert (built.value.type, "o space left" in str(built.value)) == ("image_no_space", True)

    bench = bench_on(small, tmp_path, make_task)

    async def fill(place: Workplace) -> None:
        await place.sandbox.shell(
            "exec 2>/dev/null; mkdir -p /app; touch /app/done; cat /dev/zero >/full", timeout_sec=60
        )

    # A tmpfs under the engine: what is written counts as the container's memory.
    result = (await bench.execute(lambda: Works({BAD: fill}), bench.task(BAD, memory_mb=1500)))[BAD]
    assert result.reward is None
    assert result.error is not None
    assert result.error.type in ("verifier_failed", "verifier_no_reward", "verifier_never_ran"), result.error
    assert (await bench_on(small, tmp_path, make_task).execute(lambda: Works({}), bench.task(GOOD)))[GOOD].reward == 1.0
