"""Listening for the kernel's killings ends when nobody wants to know any more."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.memory_watch import MemoryWatch

pytestmark = pytest.mark.engine


def listening() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "memory watch"]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("after_sec", [0.0, 0.001, 0.01, 0.3])
def test_a_watch_that_is_closed_ends_its_thread_and_lets_go_of_its_connection(engine: Engine, after_sec: float) -> None:
    threads, files = set(listening()), open_files()
    watches = []
    for _ in range(5):
        watches.append(MemoryWatch(engine, "nobody's"))
        threading.Event().wait(after_sec)
        watches[-1].close()
    for thread in set(listening()) - threads:
        thread.join(20)
        assert not thread.is_alive()
    assert open_files() <= files, "a connection is left open as long as the watch is there"
