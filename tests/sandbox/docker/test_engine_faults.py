"""Whole trials whose container or engine fails under them: each fault has its name and costs its trial alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_bench import BAD, FORGERY, GOOD, AtTheTerminal, Bench, Works, error_of, solve

from harness.fakes import ScriptedModel
from harness.trajectory import Outcome
from tbench.agents.trial_agent import Workplace
from tbench.errors import TrialError
from tbench.events import Event, TrialPhase
from tbench.sandbox.backend import Sandbox
from tbench.sandbox.docker.engine import Engine

pytestmark = pytest.mark.engine


@pytest.fixture
def bench(engine: Engine, tools_volume: str, tmp_path: Path, make_task: Any) -> Iterator[Bench]:
    yield Bench(engine, tools_volume, tmp_path, make_task)


async def remove(engine: Engine, sandbox: Sandbox) -> None:
    await engine.call(engine.api.remove_container, sandbox.container_id, force=True)


async def kill(engine: Engine, sandbox: Sandbox) -> None:
    await engine.call(engine.api.kill, sandbox.container_id)


# -- the container is taken away -----------------------------------------------------------------


@pytest.mark.parametrize("end", [remove, pytest.param(kill, marks=pytest.mark.slow)])
async def test_a_container_that_goes_under_the_agent_costs_its_trial_alone(bench: Bench, end: Any) -> None:
    async def lose(place: Workplace) -> None:
        running = asyncio.create_task(place.sandbox.shell("touch /begun; sleep 100", timeout_sec=120))
        await place.sandbox.shell("until [ -e /begun ]; do sleep 0.05; done", timeout_sec=60)
        await end(bench.engine, place.sandbox)
        await running

    results = await bench.execute(lambda: Works({BAD: lose}), bench.task(BAD), bench.task(GOOD))
    assert (error_of(results[BAD]), results[BAD].reward, results[BAD].outcome) == ("sandbox_lost", None, None)
    assert (results[GOOD].reward, results[GOOD].error) == (1.0, None)
    assert await bench.containers() == []


async def test_a_container_that_goes_under_the_verifier_costs_its_trial_alone(bench: Bench) -> None:
    sandboxes: list[Sandbox] = []
    losing: list[asyncio.Task[None]] = []

    async def note(place: Workplace) -> None:
        sandboxes.append(place.sandbox)

    async def lose() -> None:
        await sandboxes[0].shell("until [ -e /begun ]; do sleep 0.05; done", timeout_sec=60)
        await remove(bench.engine, sandboxes[0])

    def on_event(event: Event) -> None:
        if isinstance(event, TrialPhase) and (event.task, event.phase) == (BAD, "verifier"):
            losing.append(asyncio.create_task(lose()))

    test = "echo 1 >/logs/verifier/reward.txt; touch /begun; sleep 100\n"
    results = await bench.execute(
        lambda: Works({BAD: note}), bench.task(BAD, test=test), bench.task(GOOD), on_event=on_event
    )
    assert (error_of(results[BAD]), results[BAD].reward) == ("sandbox_lost", None)
    assert results[GOOD].reward == 1.0
    await asyncio.gather(*losing)
    assert await bench.containers() == []


class EndsIn(ScriptedModel):
    """A model in the midst of whose n-th reply something happens, a moment before or while the command is typed."""

    def __init__(
        self, place: Workplace, ends: Callable[[Sandbox], Coroutine[Any, Any, None]], after_sec: float
    ) -> None:
        super().__init__(
            ["```bash\necho one\n```", "```bash\nsleep 0.2; echo two\n```", *["```bash\necho more\n```"] * 50]
        )
        self._place, self._ends, self._after_sec = place, ends, after_sec
        self.ending: asyncio.Task[None] | None = None

    async def query(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.requests) == 1:
            self.ending = asyncio.create_task(self._end())
        return await super().query(*args, **kwargs)

    async def _end(self) -> None:
        await asyncio.sleep(self._after_sec)
        await self._ends(self._place.sandbox)


@pytest.mark.parametrize(
    "after_sec", [0.0, *(pytest.param(sec, marks=pytest.mark.slow) for sec in (0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25))]
)
@pytest.mark.parametrize("end", [remove, pytest.param(kill, marks=pytest.mark.slow)])
async def test_a_container_that_goes_under_the_terminal_is_never_the_agents_outcome(
    bench: Bench, end: Any, after_sec: float
) -> None:
    def model(place: Workplace) -> ScriptedModel:
        return EndsIn(place, lambda sandbox: end(bench.engine, sandbox), after_sec)

    results = await bench.execute(lambda: AtTheTerminal(model), bench.task(BAD))
    assert error_of(results[BAD]) == "sandbox_lost", results[BAD].error
    assert results[BAD].outcome is not Outcome.TERMINAL_LOST


# -- memory, processes, disk ---------------------------------------------------------------------


async def test_a_process_that_takes_too_much_memory_is_killed_and_the_trial_goes_on(bench: Bench) -> None:
    async def hog(place: Workplace) -> None:
        ended = await place.sandbox.shell("head -c 300m /dev/zero | tail -c 300000000 | wc -c", timeout_sec=60)
        assert ended.output.strip() == b"0"
        for _ in range(600):
            if place.sandbox.ran_out_of_memory:
                break
            await asyncio.sleep(0.05)
        await solve(place)

    results = await bench.execute(lambda: Works({BAD: hog}), bench.task(BAD), bench.task(GOOD))
    assert {name: (result.reward, result.out_of_memory) for name, result in results.items()} == {
        BAD: (1.0, True),
        GOOD: (1.0, False),
    }


FILL = "exec 2>/dev/null; cat /dev/zero >/dev/shm/full; true"


@pytest.mark.slow
@pytest.mark.parametrize("solved", [True, False])
async def test_a_memory_that_is_full_does_not_keep_the_verifier_from_judging(bench: Bench, solved: bool) -> None:
    """Files in tmpfs are memory: no process can be started any more, the verifier's shell included."""

    async def fill(place: Workplace) -> None:
        await place.sandbox.shell(FORGERY + ("mkdir -p /app; touch /app/done" if solved else ""), timeout_sec=60)
        await place.sandbox.shell("mkdir -p /more; " + FILL, timeout_sec=60)
        with contextlib.suppress(TrialError):
            for _ in range(20):  # until nothing can be started
                await place.sandbox.shell(FILL.replace("full", "$$"), timeout_sec=60)

    results = await bench.execute(lambda: Works({BAD: fill}), bench.task(BAD, memory_mb=48), bench.task(GOOD))
    assert results[GOOD].reward == 1.0
    assert (results[BAD].reward, error_of(results[BAD])) == (float(solved), None)
    assert [repair.partition(":")[0] for repair in results[BAD].integrity.repairs] == ["memory"]


BOMB = "setsid sh -c 'while :; do sleep 1000 & done' >/dev/null 2>&1 </dev/null & sleep 0.3"
"""A shell that cannot fork ends, but its children stay."""


@pytest.mark.slow
@pytest.mark.parametrize("solved", [True, False])
async def test_a_fork_bomb_does_not_keep_the_verifier_from_judging(bench: Bench, solved: bool) -> None:
    async def explode(place: Workplace) -> None:
        await place.sandbox.shell(FORGERY + ("mkdir -p /app; touch /app/done" if solved else ""), timeout_sec=60)
        with contextlib.suppress(TrialError):
            for _ in range(20):  # until nothing can be started
                await place.sandbox.shell(BOMB, timeout_sec=60)

    results = await bench.execute(lambda: Works({BAD: explode}), bench.task(BAD, pids=30), bench.task(GOOD))
    assert results[GOOD].reward == 1.0
    assert (results[BAD].reward, error_of(results[BAD])) == (float(solved), None)
    assert [repair.partition(":")[0] for repair in results[BAD].integrity.repairs] == ["processes"]
