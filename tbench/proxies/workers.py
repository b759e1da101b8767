"""Runs a coroutine over a list of items with limited concurrency."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from harness.concurrency import all_of

T = TypeVar("T")


async def for_each(items: Sequence[T], work: Callable[[T], Awaitable[object]], concurrency: int) -> None:
    """Call `work` with each of `items`, at most `concurrency` at a time.

    An exception or a cancellation stops all workers, and is raised when they have ended.
    """
    rest = iter(items)

    async def worker_loop() -> None:
        for item in rest:
            await work(item)

    await all_of(*(worker_loop() for _ in range(min(concurrency, len(items)))))
