"""When the pages are written again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reports.site.writer import WrittenSite, write_site
from tbench.errors import UsageError
from tbench.view.viewer_state import SiteRefresher


class Time:
    """Clock that the test sets, with a site that takes ten seconds to write."""

    def __init__(self, tmp_path: Path) -> None:
        self.now = 0.0
        self.written: list[float] = []
        self._folder = tmp_path

    def __call__(self) -> float:
        return self.now

    def write(self) -> WrittenSite:
        self.written.append(self.now)
        self.now += 10
        (self._folder / "runs").mkdir(exist_ok=True)
        return write_site([self._folder / "runs"], self._folder / "out")


@pytest.fixture
def time(tmp_path: Path) -> Time:
    return Time(tmp_path)


def due_at(refresher: SiteRefresher, time: Time, at: float) -> bool:
    time.now = at
    before = len(time.written)
    refresher.write_if_due()
    return len(time.written) > before


def test_the_first_pages_are_written_at_once_and_none_without_a_change(time: Time) -> None:
    refresher = SiteRefresher(time.write, clock=time)
    assert due_at(refresher, time, 0) and refresher.version == 1
    assert not due_at(refresher, time, 10_000)


def test_while_a_run_is_running_writing_takes_a_fiftieth_of_the_time(time: Time) -> None:
    refresher = SiteRefresher(time.write, clock=time)
    refresher.write_if_due()
    refresher.request(soon=False)
    assert not due_at(refresher, time, 10 + 499)
    assert due_at(refresher, time, 10 + 500)


def test_a_run_that_has_ended_is_shown_soon(time: Time) -> None:
    refresher = SiteRefresher(time.write, clock=time)
    refresher.write_if_due()
    refresher.request(soon=True)
    assert not due_at(refresher, time, 14)
    assert due_at(refresher, time, 15)


@pytest.mark.parametrize("error", [UsageError("the disk is full"), OSError("the disk is full")])
def test_a_failure_to_write_is_reported_and_retried(time: Time, error: Exception) -> None:
    failing: list[Callable[[], WrittenSite]] = []

    def write() -> WrittenSite:
        if failing:
            raise error
        return time.write()

    failing.append(time.write)
    refresher = SiteRefresher(write, clock=time)
    refresher.write_if_due()
    assert (refresher.version, refresher.problem) == (0, "the disk is full")
    failing.clear()
    refresher.request(soon=True)
    time.now += 5
    refresher.write_if_due()
    assert (refresher.version, refresher.problem) == (1, None)
