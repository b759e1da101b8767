"""Shares Runners between calls: trainers ask for rollouts repeatedly, from their own loops and threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from tbench.api.rollouts import Rollout
from tbench.api.runner import Runner
from tbench.config.settings import RunConfig
from tbench.tasks.task import Task

T = TypeVar("T")


class SharedRunner:
    """One Runner per event loop, opened by the first rollout."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._runners: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[asyncio.Lock, list[Runner]]] = (
            WeakKeyDictionary()
        )

    async def rollout(self, task: Task | Path | str, **more: Any) -> Rollout:
        """Run a rollout; see `Runner.rollout`."""
        return await (await self._runner()).rollout(task, **more)

    async def close(self) -> None:
        """Close this loop's Runner; the next rollout opens another."""
        _, runners = self._runners.pop(asyncio.get_running_loop(), (None, []))
        for runner in runners:
            await runner.__aexit__(None, None, None)

    async def _runner(self) -> Runner:
        lock, runners = self._runners.setdefault(asyncio.get_running_loop(), (asyncio.Lock(), []))
        async with lock:
            if not runners:
                runners.append(await Runner(self.config).__aenter__())
        return runners[0]


class LoopThread:
    """An event loop in its own thread, for trainers that call synchronously."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tbench rollouts", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. Raises its error; when interrupted, cancels it first."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        with contextlib.suppress(RuntimeError):
            self._loop.close()


def sampling_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trainer's sampling parameters as fields of `[model]`; unknown ones become `extra_body`.

    Options for logprobs, the number of replies, seeds and stop strings are dropped: rollouts set their own.
    """
    known = {name: parameters[name] for name in ("temperature", "top_p", "max_tokens") if name in parameters}
    others = {
        name: value
        for name, value in parameters.items()
        if name not in (*known, "logprobs", "n", "seed", "max_generate_length", "stop") and value is not None
    }
    return {**known, "extra_body": others} if others else known
