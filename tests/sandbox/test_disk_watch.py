"""An agent that writes too much ends, and no other one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping

import pytest

from tbench.errors import TbenchError
from tbench.sandbox import disk_watch
from tbench.sandbox.disk_watch import RESERVE_MB, DiskWatch, WatchedDisk


class Disk:
    """A disk of which containers take parts; counts how often they were measured."""

    def __init__(self) -> None:
        self.free: float | None = 50_000.0
        self.written: dict[str, float] = {}
        self.measured = 0
        self.said: list[str] = []
        self.killed: list[str] = []
        self.fails = False
        self.watch = DiskWatch(self._free, self._measure, self.said.append)

    async def _free(self) -> float | None:
        return self.free

    async def _measure(self, asked: Collection[str]) -> Mapping[str, float]:
        self.measured += 1
        if self.fails:
            raise TbenchError("the engine is away")
        return dict(self.written)

    def add(self, name: str, limit_mb: float | None = None) -> WatchedDisk:
        async def kill() -> None:
            self.killed.append(name)

        self.written[name] = 0.0
        return self.watch.add(name, f"{name}.s1", limit_mb, kill)

    def write(self, name: str, mb: float) -> None:
        self.written[name] += mb
        if self.free is not None:
            self.free -= mb

    async def pass_seconds(self, number: int = 5) -> None:
        for _ in range(number):  # on a busy machine, the watch looks once in each pause, however long it is
            await asyncio.sleep(1.1 * disk_watch._EVERY_SEC)


@pytest.fixture
async def disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Disk]:
    monkeypatch.setattr(disk_watch, "_EVERY_SEC", 0.01)
    made = Disk()
    yield made
    await made.watch.close()


async def test_only_the_agent_that_exceeds_its_limit_ends(disk: Disk) -> None:
    agents = {name: asyncio.ensure_future(disk.add(name, 1000).exceeded()) for name in ("greedy", "modest")}
    await disk.pass_seconds()
    disk.write("modest", 900)
    await disk.pass_seconds()
    assert disk.measured == 0 and not disk.killed
    disk.write("greedy", 1001)
    await disk.pass_seconds()
    assert agents["greedy"].result().is_set() and not agents["modest"].done() and disk.killed == ["greedy"]
    assert disk.said == ["greedy.s1: wrote 1,001 MB, more than its storage_mb, 1,000: its agent ends (disk_limit)"]
    agents["modest"].cancel()


async def test_a_disk_that_is_almost_full_ends_the_agent_that_wrote_most(disk: Disk) -> None:
    agents = [asyncio.ensure_future(disk.add(name).exceeded()) for name in ("greedy", "modest")]
    await disk.pass_seconds()
    disk.write("modest", RESERVE_MB + 1)
    disk.write("greedy", 50_000 - 2 * RESERVE_MB)
    await disk.pass_seconds()
    assert disk.killed == ["greedy"] and not agents[1].done()
    agents[1].cancel()


async def test_a_disk_that_others_have_filled_ends_nobody(disk: Disk) -> None:
    working = asyncio.ensure_future(disk.add("modest").exceeded())
    await disk.pass_seconds()
    disk.write("modest", RESERVE_MB / 2)
    disk.free = 10.0
    await disk.pass_seconds()
    assert disk.measured >= 1 and not disk.killed
    working.cancel()


async def test_tests_may_exceed_the_limit_but_what_an_agent_left_may_not_fill_the_disk(disk: Disk) -> None:
    disk.add("judged", 1000)
    await disk.pass_seconds()
    disk.write("judged", 2000)
    await disk.pass_seconds()
    assert not disk.killed
    disk.write("judged", 47_500)
    await disk.pass_seconds()
    assert disk.killed == ["judged"]


async def test_containers_of_another_machine_are_measured_seldom(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.free = None
    working = asyncio.ensure_future(disk.add("greedy", 1000).exceeded())
    disk.write("greedy", 5000)
    await disk.pass_seconds()
    assert disk.measured == 0
    monkeypatch.setattr(disk_watch, "_SELDOM_SEC", 0.01)
    await disk.pass_seconds()
    assert working.done()


async def test_an_engine_that_is_away_is_asked_again(disk: Disk) -> None:
    disk.fails = True
    working = asyncio.ensure_future(disk.add("greedy", 1000).exceeded())
    await disk.pass_seconds()
    disk.write("greedy", 1500)
    await disk.pass_seconds()
    assert disk.measured >= 1 and not working.done()
    disk.fails = False
    await disk.pass_seconds()
    assert working.done()
