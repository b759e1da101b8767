"""Fixtures for tests of pages: a browser, tabs that report problems, and written sites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import BROWSERS, a_tab, executable, running_browser
from hostile_runs import write_hostile_runs
from playwright.sync_api import Browser, Page
from written_history import write_history

from reports.site.writer import WrittenSite, write_site


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of a file. Not for the whole session: no event loop can run while it is open."""
    program = executable()
    if program is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed; make test installs chromium")
    with running_browser(program) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab for pages opened as files; any problem in it fails the test."""
    with a_tab(browser) as tab:
        yield tab


@pytest.fixture(scope="session")
def written_nights(tmp_path_factory: pytest.TempPathFactory) -> WrittenSite:
    """Site of the nights of two models, one of which got worse."""
    folder = tmp_path_factory.mktemp("nights")
    return write_site([write_history(folder / "runs")], folder / "site")


@pytest.fixture(scope="session")
def written_hostile(tmp_path_factory: pytest.TempPathFactory) -> WrittenSite:
    """Site of hostile and damaged runs."""
    folder = tmp_path_factory.mktemp("hostile")
    return write_site([write_hostile_runs(folder)], folder / "site")


@pytest.fixture
def nights(written_nights: WrittenSite) -> Path:
    """Folder of the site `written_nights`."""
    return written_nights.overview.parent


@pytest.fixture
def hostile(written_hostile: WrittenSite) -> Path:
    """Folder of the site `written_hostile`."""
    return written_hostile.overview.parent
