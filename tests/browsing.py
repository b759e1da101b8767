"""Pages in a real browser: the local Chromium, and tabs that report every problem."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
DEADLINE_MS = 10_000
_INSIDE = ("file:", "data:", "blob:", "about:")
"""Schemes of URLs that a page may load without network access."""


def executable() -> str | None:
    """Return the path of the local Chromium; None if it is not installed."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@contextlib.contextmanager
def running_browser(program: str) -> Iterator[Browser]:
    """Open a browser. Until it is closed, no other event loop can run in this thread, because playwright's does."""
    flags = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def a_tab(browser: Browser, *, server: str = "", **options: Any) -> Iterator[Page]:
    """A tab of its own, for pages of files and of `server`. At the end it has to have gone without a fault: nothing on
    the console, no exception, no dialog, nothing forbidden by the policy of a page, no request to elsewhere."""
    context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
    context.set_default_timeout(DEADLINE_MS)
    faults: list[str] = []
    try:
        tab = context.new_page()
        _watch(tab, server, faults)
        yield tab
        assert not faults, "\n".join(faults)
    finally:
        context.close()


def _watch(tab: Page, server: str, faults: list[str]) -> None:
    allowed = (*_INSIDE, server) if server else _INSIDE

    def console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            faults.append(f"{tab.url}: console: {message.text}")

    def request(asked: Request) -> None:
        if not asked.url.startswith(allowed):
            faults.append(f"{tab.url}: asked for {asked.url}")

    def dialog(shown: Dialog) -> None:
        faults.append(f"{tab.url}: dialog: {shown.message}")
        shown.dismiss()

    tab.on("console", console)
    tab.on("pageerror", lambda error: faults.append(f"{tab.url}: exception: {error}"))
    tab.on("request", request)
    tab.on("requestfailed", lambda asked: faults.append(f"{tab.url}: not loaded: {asked.url}: {asked.failure}"))
    tab.on("dialog", dialog)


def open_page(tab: Page, place: Path | str, anchor: str = "") -> None:
    """Open a page, given a file or an address, and wait until it is loaded."""
    address = place.resolve().as_uri() if isinstance(place, Path) else place
    tab.goto(f"{address}#{anchor}" if anchor else address, wait_until="load")


def findings(tab: Page, only: Sequence[str] = ()) -> list[str]:
    """Return the findings of axe-core about the open page, one line per rule (`only` or all)."""
    options = {"resultTypes": ["violations"], "preload": False, **({"runOnly": list(only)} if only else {})}
    found = Axe().run(tab, options=options).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {' | '.join(node['html'][:160] for node in each['nodes'][:3])}"
        for each in found
    ]


def sideways(tab: Page) -> list[str]:
    """Return the elements that extend beyond the window's edge, except inside scrollable regions."""
    return tab.evaluate(Path(__file__).with_name("sideways.js").read_text())


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder, and give the server's address without a final slash."""
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
