"""Workers that go through a list of things to ask for, so many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def work_through(items: Sequence[T], work: Callable[[T], Awaitable[None]], concurrency: int) -> None:
    """Call `work` with each of `items`, `concurrency` of them at a time.

    An exception, or being cancelled, stops all of it and is raised when every worker has ended.
    """
    rest = iter(items)

    async def one_after_another() -> None:
        for item in rest:
            await work(item)

    workers = [
        asyncio.create_task(one_after_another(), name=f"worker {n}") for n in range(min(concurrency, len(items)))
    ]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
