"""How tasks share an event loop: turns that they take, and their ends, which others wait for.

Turns are taken so that what hundreds of trials begin at the same moment holds nobody up. Ends are waited for so that
the waiter's own cancellation is never lost: `await task` under `suppress(CancelledError)` takes it for the task's, and
a time limit or a Ctrl-C that comes at that moment is gone for good.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any
from weakref import WeakKeyDictionary


class Turns:
    """Lets those who wait go on in order, one per turn of the loop.

    A loop that is busy turns slower, so new work starts only as fast as the work under way leaves room for.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return in a turn of the loop that is nobody else's."""
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
    """Return in a turn of this event loop that is nobody else's."""
    await _OF_LOOP.setdefault(asyncio.get_running_loop(), Turns()).take()


async def wait_through(*tasks: asyncio.Future[Any]) -> None:
    """Return when all of these have ended, however they end; a cancellation meanwhile is raised only then."""
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
    """Cancel a task and return when it has ended. Raises what it raised, and the caller's own cancellation."""
    task.cancel()
    await wait_through(task)
    if not task.cancelled():
        task.result()


async def all_of(*works: Coroutine[Any, Any, object]) -> None:
    """Do these beside each other; the first failure ends the others, and is raised when they have ended.

    An asyncio.TaskGroup loses a cancellation that comes while it ends what is left after a failure.
    """
    if not works:
        return
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        # Once: each cleans up after itself, and a second time would end that.
        for task in tasks:
            task.cancel()
        await wait_through(*tasks)
    for task in tasks:
        if task in done:
            task.result()
