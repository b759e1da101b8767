"""Viewers of folders, for tests over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reports.site.writer import write_site
from tbench.view.address import ViewAddress
from tbench.view.server import ViewServer
from tbench.view.viewer_state import ViewerState

DEADLINE_SEC = 30.0


@contextmanager
def viewed(folder: Path, host: str = "127.0.0.1", token: str | None = None) -> Iterator[ViewServer]:
    """A viewer of a folder, whose pages lie in it."""
    pages = folder / ".pages" / "all"
    pages.mkdir(parents=True)
    write = lambda: write_site([folder], pages, index=folder / ".pages" / "index.sqlite")  # noqa: E731
    with ViewServer(ViewerState(ViewAddress(host, 0, token), [folder], pages, write)) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join(DEADLINE_SEC)


def until(is_so: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + DEADLINE_SEC
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.02)
