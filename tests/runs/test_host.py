"""host: readings of a machine during a trial; suspension is not charged to any trial."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from lost_cancellations import moments_lost

from tbench.results import HostSample
from tbench.runs.host import HostWatch, Reading, ThisMachine
from tbench.sandbox.docker.engine import Engine, EngineInfo

CALM = Reading(load=0.5, memory_available_mb=4000, memory_stall=0.0, suspended_sec=100, clock_ahead_sec=1e9)


class Played:
    """A machine whose readings are given; the last one repeats."""

    def __init__(self, *readings: Reading) -> None:
        self._readings = list(readings)
        self.reads = 0
        self.read_often = asyncio.Event()

    def read(self) -> Reading:
        self.reads += 1
        if self.reads >= 5:
            self.read_often.set()
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


def watched(*readings: Reading) -> HostSample:
    """One trial, from the first reading to the last."""
    watch = HostWatch(Played(readings[0], *readings))
    observation = watch.observe()
    for _ in readings[2:]:
        watch.take_reading()
    return observation.sample()


async def test_a_trial_gets_the_extremes() -> None:
    sample = watched(
        CALM,
        replace(CALM, load=3.456, memory_stall=0.25),
        replace(CALM, memory_available_mb=10.4),
        CALM,
    )
    assert sample == HostSample(load_max=3.46, memory_available_min_mb=10, memory_stall_max=0.25, clock_jump_sec=0)


async def test_readings_before_a_trial_do_not_count() -> None:
    watch = HostWatch(Played(replace(CALM, load=9.0, clock_ahead_sec=0), CALM, CALM))
    assert watch.observe().sample() == HostSample(load_max=0.5, memory_available_min_mb=4000, memory_stall_max=0.0)


async def test_a_suspend_counts_once_although_two_clocks_show_it() -> None:
    asleep = replace(CALM, suspended_sec=160, clock_ahead_sec=1e9 + 60)
    assert watched(CALM, asleep, asleep).clock_jump_sec == 60


async def test_a_clock_that_is_set_back_is_a_jump_and_one_that_is_adjusted_is_not() -> None:
    assert watched(CALM, replace(CALM, clock_ahead_sec=1e9 - 30)).clock_jump_sec == 30
    assert watched(CALM, replace(CALM, clock_ahead_sec=1e9 + 0.2)).clock_jump_sec == 0


async def test_values_that_a_machine_does_not_report_are_null() -> None:
    silent = Reading(None, None, None, 0, 0)
    assert watched(silent, silent) == HostSample()
    assert watched(silent, replace(silent, load=1.0)).load_max == 1.0


async def test_it_takes_readings_only_while_entered() -> None:
    machine = Played(CALM)
    async with HostWatch(machine, every_sec=0.01):
        async with asyncio.timeout(20):
            await machine.read_often.wait()
        assert "host watch" in {task.get_name() for task in asyncio.all_tasks()}
    assert "host watch" not in {task.get_name() for task in asyncio.all_tasks()}


class Api:
    """The part of the SDK's client that shows where an engine is."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url


@pytest.mark.parametrize(
    ("base_url", "kernel", "shares"),
    [
        ("http+docker://localhost", platform.release(), True),
        ("http+docker://localhost", "6.6.0-linuxkit", False),  # a desktop's virtual machine
        ("http+docker://ssh", platform.release(), False),
        ("http://10.0.0.1:2375", platform.release(), False),
    ],
)
def test_only_an_engine_on_this_kernel_has_this_machine_s_load(base_url: str, kernel: str, shares: bool) -> None:
    info = EngineInfo("x", "0", 1, 1.0, "overlay2", "2", kernel=kernel)
    assert Engine(Api(base_url), ThreadPoolExecutor(1), info).shares_kernel is shares  # type: ignore[arg-type]


@pytest.mark.engine
def test_the_engine_of_the_tests_is_asked_where_it_is(engine: Engine) -> None:
    assert engine.info.kernel


def test_this_machine_is_read_with_its_own_numbers() -> None:
    reading = ThisMachine().read()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    assert reading.memory_available_mb is not None and 0 < reading.memory_available_mb <= pages
    assert reading.load is not None and reading.load >= 0
    assert abs(reading.clock_ahead_sec + time.monotonic() - time.time()) < 5


def test_pressure_is_a_share_and_an_old_kernel_has_none(tmp_path: Path) -> None:
    assert ThisMachine(tmp_path).read().memory_stall is None
    (tmp_path / "pressure").mkdir()
    words = "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=1\n"
    (tmp_path / "pressure" / "memory").write_text(words)
    (tmp_path / "meminfo").write_text("MemTotal: 4096 kB\nMemAvailable:    2048 kB\n")
    reading = ThisMachine(tmp_path).read()
    assert (reading.memory_stall, reading.memory_available_mb) == (0.125, 2.0)


async def test_deadlines_are_counted_on_a_clock_that_stands_still_in_a_suspend() -> None:
    """The event loop's clock is CLOCK_MONOTONIC, so an agent is not charged for a suspension."""
    assert time.get_clock_info("monotonic").implementation == "clock_gettime(CLOCK_MONOTONIC)"
    before = time.monotonic()
    assert before <= asyncio.get_running_loop().time() <= time.monotonic()


async def test_no_cancellation_is_lost_at_the_end_of_a_watch() -> None:
    async def watch() -> None:
        async with HostWatch(Played(CALM, *[CALM] * 100)):
            await asyncio.sleep(0)

    assert await moments_lost(watch) == []
