"""The browser of the tests itself: a problem in a page fails the test that opens it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browsing import PHONE, a_tab, findings, open_page, served, sideways
from playwright.sync_api import Browser, Page

HEAD = '<!doctype html><html lang="en"><title>t</title><link rel="icon" href="data:,">'


def a_page(folder: Path, body: str, head: str = "") -> Path:
    file = folder / "page.html"
    file.write_text(f"{HEAD}{head}<main><h1>t</h1>{body}</main>")
    return file


def test_a_page_without_a_fault_is_shown(page: Page, tmp_path: Path) -> None:
    open_page(page, a_page(tmp_path, "<p id=here>x"), anchor="here")
    assert page.text_content("#here") == "x"
    assert findings(page) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<script>console.error('odd')</script>", "console: odd"),
        ("<script>nothing()</script>", "exception: nothing is not defined"),
        ("<script>alert(1)</script>", "dialog: 1"),
        ("<img alt=x src=http://127.0.0.1:9/x.png>", "asked for http://127.0.0.1:9/x.png"),
        ("<img alt=x src=missing.png>", "not loaded: file:"),
        ("<p style='color: red'>x", "violates the following Content Security Policy"),
    ],
)
def test_a_problem_in_a_page_fails_the_test(browser: Browser, tmp_path: Path, body: str, problem: str) -> None:
    policy = "<meta http-equiv=Content-Security-Policy content=\"style-src 'none'\">"
    with pytest.raises(AssertionError, match=re.escape(problem)), a_tab(browser) as tab:
        open_page(tab, a_page(tmp_path, body, head=policy))


def test_what_has_too_little_contrast_is_a_serious_finding(page: Page, tmp_path: Path) -> None:
    open_page(page, a_page(tmp_path, "<p style='color: #ccc; background: #fff'>faint</p>"))
    assert [line for line in findings(page) if line.startswith("color-contrast (serious)")]


def test_what_reaches_beyond_a_narrow_window_is_named_unless_it_scrolls(browser: Browser, tmp_path: Path) -> None:
    wide = "<p style='width: 900px'>wide</p>"
    with a_tab(browser, viewport=PHONE) as tab:
        open_page(tab, a_page(tmp_path, wide))
        assert '<p style="width: 900px">wide</p>' in sideways(tab)
        open_page(tab, a_page(tmp_path, f"<div style='overflow-x: auto'>{wide}</div>"))
        assert sideways(tab) == []


def test_pages_of_a_server_are_no_fault(browser: Browser, tmp_path: Path) -> None:
    a_page(tmp_path, "<p>x")
    with served(tmp_path) as address, a_tab(browser, server=address) as tab:
        open_page(tab, f"{address}/page.html")
        assert tab.title() == "t"
