"""Containers that ran out of memory, by the engine's events."""

from __future__ import annotations

import contextlib
import time
from threading import Event, Thread
from typing import Any

from tbench.sandbox.docker import sdk
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN

_PAUSE_SEC = 2.0


class MemoryWatch:
    """Reads one run's `oom` events in a thread, also across restarts of the engine.

    The kernel's own counter is in the container's cgroup, and would need another exec per trial.
    """

    def __init__(self, engine: Engine, run: str) -> None:
        self._engine = engine
        self._run = run
        self._out_of_memory: set[str] = set()
        self._closed = Event()
        self._stream: Any = None
        Thread(target=self._listen, daemon=True, name="memory watch").start()

    def ran_out_of_memory(self, container_id: str) -> bool:
        """Whether a process of the container was killed for lack of memory; False if the engine does not report it."""
        return container_id in self._out_of_memory

    def close(self) -> None:
        """Stop listening; the thread ends by itself."""
        self._closed.set()
        with contextlib.suppress(Exception):
            self._stream.close()

    def _listen(self) -> None:
        since = int(time.time())
        while not self._closed.is_set():
            with contextlib.suppress(Exception):  # not essential, and tried again
                stream = self._stream = self._engine.api.events(
                    since=since, decode=True, filters={"event": "oom", "label": f"{LABEL_RUN}={self._run}"}
                )
                try:
                    # `close` sets the event before it closes the stream, so a new stream is never missed.
                    if self._closed.is_set():
                        break
                    for event in stream:
                        since = int(event.get("time", since))
                        self._out_of_memory.add(event["Actor"]["ID"])
                finally:
                    sdk.release_stream(stream)
            self._closed.wait(_PAUSE_SEC)
