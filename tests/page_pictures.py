"""Pictures of pages, as a desktop and a phone show them, light and dark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from browsing import a_tab, executable, open_page, running_browser
from playwright.sync_api import Browser, Page, expect

LAST = "night-10"
GOOD = "night-06"
TILES, LETTERS = 6, 120
"""How many terminals of a wall have to show how much before it is worth a picture."""


def _as_it_is(tab: Page) -> None:
    """Nothing is done to the page."""


def _second_step(tab: Page) -> None:
    """Choose the second step of a trial, whose screen the player then shows, and let both be seen."""
    tab.locator(".step[data-n='2'] h3 a").click()
    expect(tab.locator(".step.now")).to_have_attribute("data-n", "2")
    tab.wait_for_timeout(500)
    tab.locator(".step.now").evaluate("step => step.scrollIntoView({ block: 'start' })")


@dataclass(frozen=True)
class Picture:
    """A picture of a page of the demo nights' site."""

    name: str
    place: str
    scheme: Literal["light", "dark"]
    size: tuple[int, int]
    phone: bool = False
    prepare: Callable[[Page], None] = _as_it_is


PICTURES = (
    Picture("overview", "index.html", "light", (1280, 900)),
    Picture("night", f"nights/{LAST}.html", "dark", (1280, 900)),
    Picture("run", f"runs/{LAST}_latest/index.html", "light", (390, 844), phone=True),
    Picture("compare", f"compare/{GOOD}_latest--{LAST}_latest.html", "dark", (390, 844), phone=True),
    Picture("trial", f"runs/{LAST}_latest/trial.html?git-lost-commits--18", "light", (1280, 800), prepare=_second_step),
)


def photograph_pages(site: Path, output: Path) -> None:
    """All pictures of a site, as PNG."""
    with running_browser(_program()) as browser:
        for picture in PICTURES:
            with _a_window(browser, picture.size, picture.scheme, phone=picture.phone) as tab:
                open_page(tab, f"{site.resolve().as_uri()}/{picture.place}")
                picture.prepare(tab)
                tab.screenshot(path=output / f"{picture.name}.png")


def photograph_live(address: str, picture: Path) -> None:
    """The wall of terminals of what runs now, once it has some."""
    with running_browser(_program()) as browser, _a_window(browser, (1280, 900), "dark", server=address) as tab:
        open_page(tab, address)
        tab.wait_for_function(
            Path(__file__).with_name("filled_tiles.js").read_text(), arg=[TILES, LETTERS], timeout=60_000
        )
        tab.screenshot(path=picture)


def _a_window(
    browser: Browser, size: tuple[int, int], scheme: str, *, phone: bool = False, server: str = ""
) -> contextlib.AbstractContextManager[Page]:
    width, height = size
    scale = 2 if phone else 1
    options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme, "device_scale_factor": scale}
    return a_tab(browser, server=server.rpartition("/")[0], **options)


def _program() -> str:
    found = executable()
    if found is None:
        raise SystemExit("no chromium here; make browser installs it")
    return found
