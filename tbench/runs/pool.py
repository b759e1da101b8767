"""Bounded concurrency over asyncio-pool, with a bound that may change while trials are under way."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TypeVar

from asyncio_pool import AioPool

from harness.turns import Turns, wait_through

# How many trials may be under way at once: a number that may change while they are.


class Slots:
    """A context manager that holds one of so many slots. Those who wait get theirs in order."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._free = asyncio.Semaphore(number)
        self._owed = 0
        """Slots that are to go: whoever has or gets one next pays with it."""

    def resize(self, number: int) -> None:
        """Have another number of slots from now on. Whoever holds one keeps it."""
        self._owed -= number - self.number
        self.number = number
        while self._owed < 0:
            self._owed += 1
            self._free.release()

    async def __aenter__(self) -> None:
        await self._free.acquire()
        while self._owed:
            self._owed -= 1
            await self._free.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owed:
            self._owed -= 1
        else:
            self._free.release()


# Bounded concurrency over asyncio-pool, by the one recipe that neither hangs nor loses children.
#
# Of AioPool only `spawn_n` and `join` are used: its `map` fails on nothing to do, its context manager swallows errors,
# and its `cancel` can make `join` wait for ever when a child had not begun.

T = TypeVar("T")


async def run_all(
    items: Sequence[T],
    work: Callable[[T], Awaitable[None]],
    slots: Slots,
    failures: list[BaseException] | None = None,
) -> None:
    """Run `work` on every item, one per slot; however many may start, one per turn of the event loop.

    `work` stores its own result and does not raise; when it does all the same (a bug), everything else is
    stopped and the first such exception is raised, with the others as notes. They are added to `failures`, which may
    have some already. Cancelling stops what runs, starts nothing more, and returns only when all children have
    cleaned up.
    """
    running: set[asyncio.Task[None]] = set()
    failures = [] if failures is None else failures
    stopping = False
    turns = Turns()

    def stop() -> None:
        nonlocal stopping
        stopping = True
        for task in list(running):
            task.cancel()

    async def run_one(item: T) -> None:
        if stopping:
            return
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            async with slots:
                await turns.take()
                await work(item)
        except asyncio.CancelledError:
            # Not raised on: the pool would keep it in a future that nobody looks at, and asyncio would log that.
            pass
        except Exception as error:  # noqa: BLE001 - raised again below, when everything else has stopped
            add_failure(failures, error)
            running.discard(task)
            stop()
        finally:
            running.discard(task)

    pool = AioPool(size=max(1, len(items)))  # the slots bound what runs: their number may change
    try:
        for item in items:
            pool.spawn_n(run_one(item))
        await pool.join()
    except asyncio.CancelledError:
        stop()
        # Cleaning up is bounded; being cancelled again while it goes on must not orphan it.
        await wait_through(asyncio.ensure_future(pool.join()))
        raise
    if failures:
        raise failures[0]


def add_failure(failures: list[BaseException], another: BaseException) -> None:
    """Add a failure; the first, which is the one that is raised in the end, tells of the others in notes."""
    if failures:
        failures[0].add_note("".join(["another failed as well: ", *traceback.format_exception(another)]).rstrip())
    failures.append(another)
