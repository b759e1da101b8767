"""Runs a command to its end and tells what it cost: wall time, CPU time and memory, with all that it started."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

EVERY_SEC = 0.25


class Cost(NamedTuple):
    """Resources that a process and its descendants used. The engine's work is not in it."""

    exit_code: int
    wall_sec: float
    cpu_sec: float
    memory_mb: float
    """The most that was held at once, as far as it was seen."""


def run(argv: list[str], environ: Mapping[str, str], directory: Path, log: Path) -> Cost:
    """Run a command in `directory`; what it prints goes to `log`."""
    with log.open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            argv, cwd=directory, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            with PeakMemory(process.pid) as peak:
                _, status, usage = os.wait4(process.pid, 0)
                wall_sec = time.perf_counter() - started
        except KeyboardInterrupt:
            process.wait()  # it got the signal as well, and has containers to remove
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(process.returncode, wall_sec, usage.ru_utime + usage.ru_stime, peak.mb)


class PeakMemory:
    """The most memory that a process and its descendants hold at once; a context manager that looks now and then."""

    def __init__(self, pid: int) -> None:
        self.mb = 0.0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_SEC):
            self.mb = max(self.mb, sum(map(held_mb, family(self._pid))))


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for each in found:  # grows meanwhile
        with contextlib.suppress(OSError):  # it has ended
            for children in Path(f"/proc/{each}/task").glob("*/children"):
                found += map(int, children.read_text().split())
    return found


def held_mb(pid: int) -> float:
    """Megabytes of a process; pages that several share are divided among them."""
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0  # it has ended
    found = re.search(r"^Pss: +(\d+) kB", told, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0
