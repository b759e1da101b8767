"""State shared by the server, its connections and its threads, and the background writer of pages."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from reports.page_paths import run_page, trial_data, trial_name, trial_page
from reports.site.writer import WrittenSite
from tbench.errors import TbenchError
from tbench.view.address import ViewAddress
from tbench.view.files import ServedFolder
from tbench.view.live_state import LiveState
from tbench.view.run_watch import RunWatch

# Keeps the pages up to date in the background, without taking much CPU time while runs are running.

_SHARE = 50
"""Writing takes about 1 / _SHARE of the time at most, unless runs start or end."""
_LEAST_PAUSE_SEC, _LONGEST_PAUSE_SEC = 5.0, 1800.0
_WAKE_SEC = 1.0


class SiteRefresher:
    """Writes the site again when runs have changed: soon after one has started or ended, else only now and then."""

    def __init__(self, write: Callable[[], WrittenSite], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.version = 0
        """Number of times the site was written."""
        self.problem: str | None = None
        """Reason why the last attempt to write failed."""
        self.notes: tuple[str, ...] = ()
        self._write, self._clock = write, clock
        self._pages: Mapping[Path, str] = MappingProxyType({})
        self._wanted = threading.Event()
        self._is_urgent = True
        self._not_before = self._soon = clock()
        self._wanted.set()

    def request(self, soon: bool) -> None:
        """Request a refresh because runs have changed; `soon` if one has started or ended."""
        self._is_urgent |= soon
        self._wanted.set()

    def page_of(self, run: Path) -> str | None:
        """Return the page of a run directory; None if it has none yet."""
        return self._pages.get(run)

    def run(self, stop: threading.Event) -> None:
        """Write whenever requested and due, until `stop` is set."""
        while not stop.wait(_WAKE_SEC if self.version else 0):
            self.write_if_due()
            if not self.version:
                stop.wait(_WAKE_SEC)

    def write_if_due(self) -> None:
        """Write now if requested and due."""
        if self._wanted.is_set() and self._clock() >= (self._soon if self._is_urgent else self._not_before):
            self._write_now()

    def _write_now(self) -> None:
        """Write and remember the result. Does not raise TbenchError or OSError."""
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


MAX_STREAMS = 64
"""Maximum number of live pages that are open at once."""


class ViewerState:
    """Everything that a viewer needs except its socket."""

    def __init__(
        self, address: ViewAddress, roots: Sequence[Path], pages: Path, write: Callable[[], WrittenSite]
    ) -> None:
        """`write` updates the site in the folder `pages`."""
        self.address = address
        self.pages = ServedFolder(pages.resolve())
        self.state = LiveState()
        self.refresher = SiteRefresher(write)
        self.watch = RunWatch(
            roots,
            self.state,
            link_of=self.refresher.page_of,
            trial_link_of=self._page_of_trial,
            on_change=self.refresher.request,
        )
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._watcher = threading.Thread(target=self.watch.run, args=(self.stopping,), name="watch runs", daemon=True)
        self._writer = threading.Thread(
            target=self.refresher.run, args=(self.stopping,), name="write pages", daemon=True
        )

    def _page_of_trial(self, run: Path, task: str, seed: int, attempt: int) -> str | None:
        """Return the page of an attempt at a trial; None if it is not written yet."""
        if (page := self.refresher.page_of(run)) is None:
            return None
        slug = PurePosixPath(page).parent.name
        try:
            listed = (self.pages.root / trial_data(slug)).read_text(encoding="utf-8")
        except OSError:
            return None
        return trial_page(slug, task, seed, attempt) if f'"{trial_name(task, seed, attempt)}"' in listed else None

    def begin(self) -> None:
        """Start watching runs and writing pages."""
        self._watcher.start()
        self._writer.start()

    def end(self) -> None:
        """End all streams and stop watching. Does not wait for pages being written, as each is written atomically."""
        self.stopping.set()
        self.state.close()
        if self._watcher.is_alive():
            self._watcher.join()

    @contextlib.contextmanager
    def stream_slot(self) -> Iterator[bool]:
        """Yield whether another browser may follow the state; if it may, it counts as a reader within the block."""
        with self._lock:
            has_slot = self.watch.readers < MAX_STREAMS
            self.watch.readers += has_slot
        try:
            yield has_slot
        finally:
            with self._lock:
                self.watch.readers -= has_slot
