"""Daemon threads for blocking calls, which do not keep the process from ending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThreads(Executor):
    """Executor with one thread per call, for which the interpreter does not wait at exit.

    A build or a pull may continue for minutes after Ctrl-C; a ThreadPoolExecutor would keep the process that long.
    """

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
                future.set_exception(error)

        Thread(target=work, daemon=True, name="call").start()
        return future


THREADS = DaemonThreads()


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function` in a daemon thread and return its result."""
    return await asyncio.get_running_loop().run_in_executor(THREADS, partial(function, *arguments))
