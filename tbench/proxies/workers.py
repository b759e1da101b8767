"""Runs a coroutine over a list of items with limited concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def for_each(items: Sequence[T], work: Callable[[T], Awaitable[object]], concurrency: int) -> None:
    """Call `work` with each of `items`, at most `concurrency` at a time.

    An exception or a cancellation stops all workers, and is raised when they have ended.
    """
    rest = iter(items)

    async def worker_loop() -> None:
        for item in rest:
            await work(item)

    workers = [asyncio.create_task(worker_loop(), name=f"worker {n}") for n in range(min(concurrency, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
