"""Listening for the kernel's killings ends when nobody wants to know any more."""

from __future__ import annotations

import threading

import pytest

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.memory_watch import MemoryWatch

pytestmark = pytest.mark.engine


def listening() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "memory watch"]


@pytest.mark.parametrize("after_sec", [0.0, 0.001, 0.01, 0.3])
def test_a_watch_that_is_closed_ends_its_thread(engine: Engine, after_sec: float) -> None:
    before = set(listening())
    for _ in range(5):
        watch = MemoryWatch(engine, "nobody's")
        threading.Event().wait(after_sec)
        watch.close()
    for thread in set(listening()) - before:
        thread.join(20)
        assert not thread.is_alive()
