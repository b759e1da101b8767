"""`tbench summary`, `report`, `site` and `view`: stored runs in the terminal, in files, and over HTTP."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from tbench.cli.common import json_option
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH, Integer, OneOf
from tbench.cli.printing import print_line

# `tbench report`: one self-contained HTML page for a run.


@click.command(cls=TbenchCommand)
@click.argument("run", cls=Argument, metavar="RUN", type=A_PATH, help="A run directory.")
@click.option("--output", "-o", type=A_PATH, help="Where to write; default RUN/report.html.")
def report(run: Path, output: Path | None) -> None:
    """Write one self-contained HTML page and print its path."""
    from reports.report import write_report
    from tbench.errors import UsageError

    try:
        print_line(f"report: {write_report(run, output)}")
    except OSError as error:
        raise UsageError(f"{output or run}: cannot be written: {error.strerror or error}") from None


# `tbench site`: one folder of pages about all runs of some directories.


@click.command(cls=TbenchCommand)
@click.argument(
    "folders",
    cls=Argument,
    metavar="DIR...",
    type=A_PATH,
    nargs=-1,
    help="Folders of run directories, at any depth, or the directory of a nightly benchmark; default: runs.",
)
@click.option("--output", "-o", type=A_PATH, default=Path("site"), show_default=True, help="The folder of the pages.")
@click.option("--index", metavar="FILE", type=A_PATH, help="The index; default: .tbench-history.sqlite in DIR.")
def site(folders: tuple[Path, ...], output: Path, index: Path | None) -> None:
    """Write pages about all runs into one folder that opens from a file and from any server."""
    from tbench.nightly.pages import write_pages

    written = write_pages(folders or (Path("runs"),), output, index)
    for note in written.notes:
        print_line(f"note: {note}", err=True)
    print_line(f"site: {written.overview}")


# `tbench view`: the pages over HTTP, and runs under way as they happen.

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
    from tbench.view.requests import ViewServer
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


# `tbench summary`: the score of a run directory.


@click.command(cls=TbenchCommand)
@click.argument("run", cls=Argument, metavar="RUN", type=A_PATH, help="A run directory, or one with a results.jsonl.")
@click.option(
    "--std",
    type=OneOf("sample", "population"),
    default="sample",
    help="What stands behind ±: n - 1 or n in the denominator.",
)
@json_option
def summary(run: Path, std: str, as_json: bool) -> None:
    """Print the score of a run from its directory."""
    from tbench.cli.execute import print_summary

    print_summary(run, "json" if as_json else "text", population=std == "population")
