"""Helpers for asyncio tasks: fair turns on the event loop, and waiting for tasks without losing a cancellation.

Turns keep the loop responsive when hundreds of trials start work at once. `await task` under `suppress(CancelledError)`
mistakes the waiter's own cancellation for the task's, so that a time limit or Ctrl-C at that moment would be lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary


def loop_time() -> float:
    """Return the event loop's time in seconds."""
    return asyncio.get_running_loop().time()


class Turns:
    """Resumes waiting tasks in order, one per iteration of the event loop.

    A busy loop iterates more slowly, so new work starts only as fast as current work permits.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a turn: in each iteration of the loop, only one waiting task resumes."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._give)
        await turn

    def _give(self) -> None:
        turn = self._waiting.popleft()
        if not turn.done():  # cancelled meanwhile
            turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give)


_OF_LOOP: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


async def take_turn() -> None:
    """Wait for a turn on this event loop: in each iteration, only one waiting task resumes."""
    await _OF_LOOP.setdefault(asyncio.get_running_loop(), Turns()).take()


async def wait_until_ended(*tasks: asyncio.Future[Any]) -> None:
    """Wait until all tasks have ended, successfully or not; a cancellation meanwhile is raised only then."""
    cancelled: asyncio.CancelledError | None = None
    is_over = not tasks
    while not is_over:
        try:
            await asyncio.wait(tasks)
            is_over = True
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended. Raises its exception, or the caller's own cancellation."""
    task.cancel()
    await wait_until_ended(task)
    if not task.cancelled():
        task.result()


async def all_of(*works: Coroutine[Any, Any, object]) -> None:
    """Run coroutines concurrently; the first failure cancels the others and is raised when they have ended.

    An asyncio.TaskGroup loses a cancellation that arrives while it cancels the others after a failure.
    """
    if not works:
        return
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        # Only once: a second cancellation would interrupt their cleanup.
        for task in tasks:
            task.cancel()
        await wait_until_ended(*tasks)
    for task in tasks:
        if task in done:
            task.result()


class Repeated:
    """A context manager that calls a function regularly during its block, and once more if the block is cancelled."""

    def __init__(self, call: Callable[[], None], every_sec: float) -> None:
        self._call, self._every_sec = call, every_sec

    def __enter__(self) -> None:
        self._timer = self._later()

    def _later(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._every_sec, self._repeat)

    def _repeat(self) -> None:
        self._call()
        self._timer = self._later()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        if kind is asyncio.CancelledError:
            self._call()
