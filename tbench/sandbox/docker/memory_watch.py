"""Learns from the engine in which containers the kernel ended processes because they were out of memory."""

from __future__ import annotations

import contextlib
import time
from threading import Event, Thread
from typing import Any

from tbench.sandbox.docker import sdk
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.labels import LABEL_RUN

_PAUSE_SEC = 2.0


class MemoryWatch:
    """Reads one run's `oom` events in a thread of its own, also across restarts of the engine.

    The kernel's own count lies in the container's cgroup, where only a further exec per trial could read it.
    """

    def __init__(self, engine: Engine, run: str) -> None:
        self._engine = engine
        self._run = run
        self._out_of_memory: set[str] = set()
        self._closed = Event()
        self._stream: Any = None
        Thread(target=self._listen, daemon=True, name="memory watch").start()

    def ran_out_of_memory(self, container_id: str) -> bool:
        """Whether a process of the container was ended out of memory; False also where the engine does not tell."""
        return container_id in self._out_of_memory

    def close(self) -> None:
        """Stop listening; the thread ends by itself."""
        self._closed.set()
        with contextlib.suppress(Exception):
            self._stream.close()

    def _listen(self) -> None:
        since = int(time.time())
        while not self._closed.is_set():
            with contextlib.suppress(Exception):  # whatever it was: this is a side matter, and it is tried again
                stream = self._stream = self._engine.api.events(
                    since=since, decode=True, filters={"event": "oom", "label": f"{LABEL_RUN}={self._run}"}
                )
                try:
                    # Whoever closes this says so first, then ends the stream that is there: one of both sees the other.
                    if self._closed.is_set():
                        break
                    for event in stream:
                        since = int(event.get("time", since))
                        self._out_of_memory.add(event["Actor"]["ID"])
                finally:
                    sdk.release_stream(stream)
            self._closed.wait(_PAUSE_SEC)
