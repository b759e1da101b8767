"""Whether a piece of code loses the cancellation of the task that it runs in, at whatever moment that comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_MOMENTS, _BOUND_SEC = 16, 5.0


async def moments_lost(work: Callable[[], Awaitable[object]]) -> list[int]:
    """The turns of the event loop, counted from the begin of `work`, at which a cancellation does not end its task."""
    lost = []

    async def and_then_wait_for_ever() -> None:
        await work()
        await asyncio.Future()

    for moment in range(_MOMENTS):
        task = asyncio.create_task(and_then_wait_for_ever())
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=_BOUND_SEC)
        if not task.cancelled():
            lost.append(moment)
            task.cancel()
            await asyncio.wait({task})
    return lost
