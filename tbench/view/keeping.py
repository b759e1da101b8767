"""Keeps the pages up to date in the background, and takes little of the machine for it while a run goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from reports.names import run_page
from reports.site.writing import WrittenSite
from tbench.errors import TbenchError

_SHARE = 50
"""While runs go on, writing takes at most one part in so many of the time."""
_LEAST_PAUSE_SEC, _LONGEST_PAUSE_SEC = 5.0, 1800.0
_WAKE_SEC = 1.0


class SiteKeeper:
    """Writes the site anew when runs have changed: soon after one has begun or ended, else only now and then."""

    def __init__(self, write: Callable[[], WrittenSite], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.version = 0
        """How often it has been written."""
        self.problem: str | None = None
        """Why it could not be written the last time."""
        self.notes: tuple[str, ...] = ()
        self._write, self._clock = write, clock
        self._pages: Mapping[Path, str] = MappingProxyType({})
        self._wanted = threading.Event()
        self._is_urgent = True
        self._not_before = self._soon = clock()
        self._wanted.set()

    def ask(self, soon: bool) -> None:
        """Say that runs have changed; `soon` where one has begun or ended."""
        self._is_urgent |= soon
        self._wanted.set()

    def page_of(self, run: Path) -> str | None:
        """The page of a run, by its directory; None where it has none yet."""
        return self._pages.get(run)

    def run(self, stop: threading.Event) -> None:
        """Write whenever that is wanted and due, until told to stop."""
        while not stop.wait(_WAKE_SEC if self.version else 0):
            self.write_if_due()
            if not self.version:
                stop.wait(_WAKE_SEC)

    def write_if_due(self) -> None:
        """Write now, if that is wanted and it is time for it."""
        if self._wanted.is_set() and self._clock() >= (self._soon if self._is_urgent else self._not_before):
            self._write_now()

    def _write_now(self) -> None:
        """Write, and remember what came of it. Never raises what tbench raises on purpose."""
        self._wanted.clear()
        self._is_urgent = False
        begun = self._clock()
        try:
            written = self._write()
        except (TbenchError, OSError) as problem:
            self.problem = str(problem)
        else:
            self._pages = {run.row.path: run_page(run.slug) for run in written.site.runs}
            self.problem, self.notes = None, written.notes
            self.version += 1
        now = self._clock()
        self._soon = now + _LEAST_PAUSE_SEC
        self._not_before = now + min(max(_LEAST_PAUSE_SEC, _SHARE * (now - begun)), _LONGEST_PAUSE_SEC)
