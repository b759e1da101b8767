"""The state that server, connections and threads share, and the thread that keeps the pages up to date."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from reports.names import run_page, trial_page
from reports.site.writing import WrittenSite
from tbench.errors import TbenchError
from tbench.view.address import ViewAddress
from tbench.view.board import NewsBoard
from tbench.view.files import ServedFolder
from tbench.view.watching import RunWatch

# Keeps the pages up to date in the background, and takes little of the machine for it while a run goes on.

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


MOST_STREAMS = 64
"""Live pages that are open at once."""


class Viewing:
    """Everything that a viewer of some folders has, but for its socket."""

    def __init__(
        self, address: ViewAddress, roots: Sequence[Path], pages: Path, write: Callable[[], WrittenSite]
    ) -> None:
        """`write` brings the site in the folder `pages` up to date."""
        self.address = address
        self.pages = ServedFolder(pages.resolve())
        self.board = NewsBoard()
        self.keeper = SiteKeeper(write)
        self.watch = RunWatch(
            roots,
            self.board,
            link_of=self.keeper.page_of,
            trial_link_of=self._page_of_trial,
            on_change=self.keeper.ask,
        )
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._watcher = threading.Thread(target=self.watch.run, args=(self.stopping,), name="watch runs", daemon=True)
        self._writer = threading.Thread(target=self.keeper.run, args=(self.stopping,), name="write pages", daemon=True)

    def _page_of_trial(self, run: Path, task: str, seed: int, attempt: int) -> str | None:
        """The page of an attempt at a trial, where it has been written."""
        if (page := self.keeper.page_of(run)) is None:
            return None
        place = trial_page(PurePosixPath(page).parent.name, task, seed, attempt)
        return place if (self.pages.root / place).is_file() else None

    def begin(self) -> None:
        """Begin to watch and to write."""
        self._watcher.start()
        self._writer.start()

    def end(self) -> None:
        """End all streams and the watching. Pages that are just being written are left: each is whole or not there."""
        self.stopping.set()
        self.board.close()
        if self._watcher.is_alive():
            self._watcher.join()

    @contextlib.contextmanager
    def stream_slot(self) -> Iterator[bool]:
        """Whether another browser may follow the board; it counts as a reader for the block."""
        with self._lock:
            has_slot = self.watch.readers < MOST_STREAMS
            self.watch.readers += has_slot
        try:
            yield has_slot
        finally:
            with self._lock:
                self.watch.readers -= has_slot
