"""What the server, its connections and its threads share: the pages, the board, who watches and who writes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from reports.names import trial_page
from reports.site.writing import WrittenSite
from tbench.view.address import ViewAddress
from tbench.view.board import NewsBoard
from tbench.view.files import ServedFolder
from tbench.view.keeping import SiteKeeper
from tbench.view.watching import RunWatch

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
