"""engine: a call to the engine is waited for within bounds, and what comes too late is not left lying about."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Event

import pytest

from tbench.sandbox.docker.engine import DaemonThreads, Engine, EngineError, EngineInfo


class Slow:
    """A call that ends when it may, and one that takes its result back."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.has_disposed = Event(), Event(), Event()
        self.disposed: list[str] = []

    def call(self) -> str:
        self.begun.set()
        assert self.may_end.wait(10)
        return "a stream"

    def dispose(self, result: str) -> None:
        self.disposed.append(result)
        self.has_disposed.set()


@pytest.fixture
def engine() -> Engine:
    return Engine(None, DaemonThreads(), EngineInfo("e", "1", 1, 1.0, "overlay2", "2"))  # type: ignore[arg-type]


@pytest.fixture
def slow() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.may_end.set()


async def test_a_result_that_comes_after_its_caller_was_cancelled_is_disposed_of(engine: Engine, slow: Slow) -> None:
    calling = asyncio.create_task(engine.call(slow.call, dispose=slow.dispose))
    await asyncio.to_thread(slow.begun.wait, 10)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    slow.may_end.set()
    assert await asyncio.to_thread(slow.has_disposed.wait, 10)
    assert slow.disposed == ["a stream"]


async def test_a_result_that_was_there_when_its_caller_was_cancelled_is_disposed_of(engine: Engine, slow: Slow) -> None:
    slow.may_end.set()
    calling = asyncio.create_task(engine.call(slow.call, dispose=slow.dispose))
    await asyncio.sleep(0)  # the call begins
    assert slow.begun.wait(10)  # and ends while the loop stands still
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await asyncio.to_thread(slow.has_disposed.wait, 10)
    assert slow.disposed == ["a stream"]


async def test_a_result_that_comes_after_the_deadline_is_disposed_of(engine: Engine, slow: Slow) -> None:
    with pytest.raises(EngineError, match="did not answer call within 0 s"):
        await engine.call(slow.call, deadline_sec=0.01, dispose=slow.dispose)
    slow.may_end.set()
    assert await asyncio.to_thread(slow.has_disposed.wait, 10)
    assert slow.disposed == ["a stream"]


async def test_a_result_that_is_taken_is_not_disposed_of(engine: Engine, slow: Slow) -> None:
    slow.may_end.set()
    assert await engine.call(slow.call, dispose=slow.dispose) == "a stream"
    assert slow.disposed == []
