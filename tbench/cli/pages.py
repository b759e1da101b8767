"""`tbench summary`, `report`, `site` and `view`: show stored runs in the terminal, in files, and over HTTP."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from tbench.cli.common import json_option
from tbench.cli.parsing.commands import TbenchCommand, argument, option
from tbench.cli.parsing.configured import COST_SETTINGS, ConfiguredCommand, GivenSettings, given_cost
from tbench.cli.parsing.values import PATH_TYPE, Integer, OneOf
from tbench.cli.printing import print_line, print_notes
from tbench.config.settings import RunConfig

# `tbench report`


@click.command(cls=TbenchCommand)
@argument("run", "RUN", "A run directory, or a .jsonl file of results.")
@option("--output -o", "The file to write; default: RUN/report.html.", PATH_TYPE)
def report(run: Path, output: Path | None) -> None:
    """Write a self-contained HTML report of a run; print its path."""
    from reports.report import write_report
    from tbench.files import writable

    with writable(output or run):
        print_line(f"report: {write_report(run, output)}")


# `tbench site`


@click.command(cls=TbenchCommand)
@argument(
    "folders",
    "DIR...",
    "Folders of run directories, at any depth, or the directory of a nightly benchmark; default: runs.",
)
@option("--output -o", "The folder for the pages.", PATH_TYPE, default=Path("site"), show_default=True)
@option("--index FILE", "Index of runs; default: DIR/.tbench-history.sqlite.", PATH_TYPE)
def site(folders: tuple[Path, ...], output: Path, index: Path | None) -> None:
    """Write pages about all runs into one folder: open it from disk, or serve it with any web server."""
    from tbench.nightly.pages import write_pages

    written = write_pages(folders or (Path("runs"),), output, index)
    print_notes(written.notes)
    print_line(f"site: {written.overview}")


# `tbench view`

PORT = 8712
CACHE_NAME = ".tbench-view"
_END_SEC = 15.0
"""Maximum time to wait for connections and threads to end."""


@click.command(cls=TbenchCommand)
@argument(
    "folder",
    "DIR",
    "Folder of run directories, at any depth, or the directory of a nightly benchmark.",
    default=Path("runs"),
)
@option("--host", "Address to listen on; beyond this machine, a token is required.", default="127.0.0.1")
@option("--port", "Port; 0 picks a free one.", Integer(min=0, max=65535), default=PORT)
def view(folder: Path, host: str, port: int) -> None:
    """Serve pages about all runs; running ones are shown live. Read-only."""
    from tbench.errors import UsageError
    from tbench.nightly.pages import write_pages
    from tbench.view.address import ViewAddress
    from tbench.view.server import ViewServer
    from tbench.view.viewer_state import ViewerState

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such directory; give a folder of runs, or start one with `tbench run`")
    with _cache_directory(folder) as cache:
        pages = cache / "pages"
        pages.mkdir(exist_ok=True)
        index = cache / "index.sqlite"
        viewing = ViewerState(
            ViewAddress.for_host(host, port), [folder], pages, lambda: write_pages([folder], pages, index)
        )
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
                # If a thread hangs, print where, and exit.
                faulthandler.dump_traceback_later(_END_SEC, exit=True)


@contextlib.contextmanager
def _cache_directory(folder: Path) -> Iterator[Path]:
    """Yield a folder for pages and index: beside the runs, or a temporary one if that is not writable."""
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


# `tbench summary`


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=COST_SETTINGS)
@argument("run", "RUN", "A run directory, or a .jsonl file of results.")
@option(
    "--std",
    "Standard deviation after ±: with n - 1 (sample) or n (population) in the denominator.",
    OneOf("sample", "population"),
    default="sample",
)
@option(
    "--without TAG", "Also print the score without trials with this tag (see tbench note); repeatable.", multiple=True
)
@json_option
def summary(run: Path, std: str, without: tuple[str, ...], as_json: bool, given: GivenSettings[RunConfig]) -> None:
    """Print the score of a run directory."""
    from tbench.cli.execute import print_summary

    cost = partial(given_cost, given)
    print_summary(run, "json" if as_json else "text", population=std == "population", without=without, cost=cost)
