"""Bounded concurrency over asyncio-pool, with a bound that can change while trials run."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from asyncio_pool import AioPool

from harness.concurrency import Turns, wait_until_ended


class Slots:
    """A resizable semaphore; as a context manager it holds one of `number` slots, first come, first served."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._free = asyncio.Semaphore(number)
        self._owed = 0
        """Number of slots still to be removed: the next slots that are acquired or released disappear."""

    def resize(self, number: int) -> None:
        """Change the number of slots. Slots in use stay in use."""
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

    async def __aexit__(self, *_: object) -> None:
        if self._owed:
            self._owed -= 1
        else:
            self._free.release()


# A use of asyncio-pool that neither hangs nor loses tasks.
#
# Of AioPool only `spawn_n` and `join` are used: `map` fails on empty input, the context manager swallows errors, and
# `cancel` can make `join` wait forever if a task had not started.

T = TypeVar("T")


async def run_all(
    items: Sequence[T],
    work: Callable[[T], Awaitable[None]],
    slots: Slots,
    failures: list[BaseException] | None = None,
) -> None:
    """Run `work` on every item, one per slot; at most one starts per turn of the event loop.

    `work` stores its result and must not raise. If it does (a bug), everything else is stopped and the first exception
    is raised, with the others as notes. Failures are added to `failures`, which may already have some. Cancelling stops
    the running items, starts no more, and returns when all have cleaned up.
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
            # Not re-raised: the pool would keep it in a future that is never awaited, and asyncio would log that.
            pass
        except Exception as error:  # noqa: BLE001 - raised again below, when everything else has stopped
            add_failure(failures, error)
            running.discard(task)
            stop()
        finally:
            running.discard(task)

    pool = AioPool(size=max(1, len(items)))  # the slots bound the number of running items, which may change
    try:
        for item in items:
            pool.spawn_n(run_one(item))
        await pool.join()
    except asyncio.CancelledError:
        stop()
        # Cleaning up is bounded; another cancellation must not orphan it.
        await wait_until_ended(asyncio.ensure_future(pool.join()))
        raise
    if failures:
        raise failures[0]


def add_failure(failures: list[BaseException], another: BaseException) -> None:
    """Add a failure; the first one is raised in the end, with the others as notes."""
    if failures:
        failures[0].add_note("".join(["another failed as well: ", *traceback.format_exception(another)]).rstrip())
    failures.append(another)
