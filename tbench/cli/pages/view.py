"""`tbench view`: the pages over HTTP, and runs under way as they happen."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH, Integer
from tbench.cli.printing import print_line

PORT = 8712
CACHE_NAME = ".tbench-view"
_END_SEC = 15.0
"""Longest time for which the end of connections and threads is waited for."""


@click.command(cls=TbenchCommand)
@click.argument(
    "folder",
    cls=Argument,
    metavar="DIR",
    type=A_PATH,
    default=Path("runs"),
    help="Folder of run directories, at any depth, or the directory of a nightly benchmark.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on; beyond this machine a token is asked for.")
@click.option("--port", type=Integer(min=0, max=65535), default=PORT, help="Port; 0 picks a free one.")
def view(folder: Path, host: str, port: int) -> None:
    """Serve the pages about all runs, and those under way live: phases, counts, terminals. Nothing can be changed."""
    from tbench.errors import UsageError
    from tbench.nightly.pages import write_pages
    from tbench.view.address import ViewAddress
    from tbench.view.server import ViewServer
    from tbench.view.viewing import Viewing

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such directory; give a folder of runs, or begin one with `tbench run`")
    with _cache_of(folder) as cache:
        pages = cache / "pages"
        pages.mkdir(exist_ok=True)
        index = cache / "index.sqlite"
        viewing = Viewing(ViewAddress.of(host, port), [folder], pages, lambda: write_pages([folder], pages, index))
        try:
            server = ViewServer(viewing)
        except OSError as error:
            words = error.strerror or str(error)
            raise UsageError(f"{host}:{port}: cannot listen: {words}; choose another --port, or 0") from None
        with server:
            print_line(f"view: {server.url}")
            try:
                server.serve_forever()
            finally:
                # Whatever keeps a thread: it is told where, and the process ends.
                faulthandler.dump_traceback_later(_END_SEC, exit=True)


@contextlib.contextmanager
def _cache_of(folder: Path) -> Iterator[Path]:
    """A folder for pages and index: beside the runs, or, where nothing can be written there, one for this time only."""
    cache = folder / CACHE_NAME
    try:
        cache.mkdir(exist_ok=True)
        if not os.access(cache, os.W_OK):
            raise PermissionError
    except OSError:
        with tempfile.TemporaryDirectory(prefix="tbench-view-") as temporary:
            yield Path(temporary)
    else:
        yield cache
