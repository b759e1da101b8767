"""The live page in a real browser, following runs while they are written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from live_runs import RunBeingWritten
from run_trees import a_result, write_run
from viewers import until, viewed

from tbench.events import EndpointPresence
from tbench.view.server import ViewServer

playwright = pytest.importorskip("playwright.sync_api")
DEADLINE_MS = 30_000
HOSTILE = "<img src=x onerror=alert(1)>&\N{RIGHT-TO-LEFT OVERRIDE}"
Open = Callable[..., Any]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewServer]:
    write_run(tmp_path / "done", [a_result("a", 0, 1.0)], {"a": None}, [0])
    with viewed(tmp_path) as running:
        until(lambda: running.viewing.refresher.version > 0)
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium is installed")
    with playwright.sync_playwright() as driver:
        flags = ["--no-sandbox"] if os.getuid() == 0 else []
        opened = driver.chromium.launch(executable_path=program, args=flags)
        try:
            yield opened
        finally:
            opened.close()


@pytest.fixture
def open_page(chromium: Any, server: ViewServer) -> Iterator[Open]:
    """Opens pages of the server; any problem in them fails the test."""
    problems: list[str] = []
    with ExitStack() as contexts:

        def opened(path: str = "/live", **options: Any) -> Any:
            context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
            contexts.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(DEADLINE_MS)
            page.on("console", lambda message: message.type in ("error", "warning") and problems.append(message.text))
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
            page.goto(f"http://127.0.0.1:{server.port}{path}")
            return page

        yield opened
    assert problems == []


def has(page: Any, selector: str, text: str) -> None:
    page.locator(selector, has_text=text).first.wait_for()


def test_a_run_is_seen_from_its_begin_to_its_end(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    has(page, "[data-nothing]", "Nothing is running.")
    with RunBeingWritten(tmp_path / "now", ("a", "b")) as run:
        has(page, ".live-run h2", "now")
        run.begin("a", 0)
        run.step("a", 0, 1, "make\r\n\x1b[31mfailed\x1b[0m\r\n")
        has(page, ".tile .i1", "failed")
        has(page, ".tile-state", "agent · step 2")
        run.judge("a", 0, 1.0)
        has(page, ".tile[data-mark=pass] .tile-state", "✓ reward 1")
        has(page, '[data-at="ended"]', "1")
        has(page, '[data-at="score"]', "so far 100.0 % over 1 scored")
        run.note("endpoint away: connection refused; pausing")
        run.tell(EndpointPresence(presence="away"))
        has(page, ".live-run .notice.alarm", "connection refused")
        run.end()
        has(page, "[data-past] .chip", "ended")
    assert page.locator("[data-runs] .live-run").count() == 0


def test_a_terminal_becomes_large_and_goes_on(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    with RunBeingWritten(tmp_path / "now", ("a", "b")) as run:
        for task in ("a", "b"):
            run.begin(task, 0)
            run.step(task, 0, 1, f"this is {task}\r\n", typed="ls -l\n")
        has(page, ".tile", "this is b")
        page.locator(".tile button", has_text="a · 0").click()
        has(page, ".large .ap-term-text", "this is a")
        has(page, ".large-steps", "ls -l")
        run.step("a", 0, 2, "\x1b[2J\x1b[5;3Hplaced\r\n")
        has(page, ".large .ap-term-text", "placed")
        page.keyboard.press("ArrowRight")
        has(page, ".large .ap-term-text", "this is b")
        assert page.locator("#large-name").inner_text() == "b · seed 0"
        page.keyboard.press("Escape")
        page.locator(".large").wait_for(state="hidden")
        # The browser first gives the focus back to the tile that opened it.
        page.wait_for_function("document.activeElement.textContent === 'b · 0'", timeout=20_000)


def test_texts_of_runs_stay_text(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    with RunBeingWritten(tmp_path / "now", (HOSTILE,)) as run:
        run.begin(HOSTILE, 0)
        run.step(HOSTILE, 0, 1, f"{HOSTILE}\x1b[1m{HOSTILE}\r\n", typed=HOSTILE)
        run.note(HOSTILE)
        run.begin(HOSTILE, 1)
        run.judge(HOSTILE, 1, 0.0)
        has(page, ".tile-screen", "<img src=x")
        has(page, ".live-notes", "<img src=x")
        page.locator(".tile button").first.click()
        has(page, ".large .ap-term-text", "<img src=x")
        has(page, ".large-steps", "<img src=x")
    assert page.locator("img").count() == 0


@pytest.mark.slow
def test_the_overview_shows_running_runs_and_new_results(open_page: Open, tmp_path: Path) -> None:
    page = open_page("/")
    with RunBeingWritten(tmp_path / "now"):
        has(page, ".top [data-live]", "live")
        has(page, ".top [data-live]", "new results")
        page.locator(".top [data-live]", has_text="new results").click()
        has(page, "main [data-live]", "live 0/2")
        page.locator("main [data-live]").first.click()
        has(page, "h1", "Live")


def test_the_wall_is_filtered_and_sized(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    with RunBeingWritten(tmp_path / "now", ("apple", "pear")) as run:
        run.begin("apple", 0)
        run.begin("pear", 0)
        has(page, ".tile", "pear")
        page.locator("[data-filter]").fill("APP")
        has(page, "[data-wall-count]", "1 of 2")
        assert page.locator(".tile:visible").count() == 1
        page.get_by_role("button", name="small").click()
        page.locator(".tiles[data-size=small]").wait_for()


@pytest.mark.slow
def test_without_javascript_there_is_a_snapshot(open_page: Open, tmp_path: Path) -> None:
    with RunBeingWritten(tmp_path / "now") as run:
        run.begin("a", 0)
        run.step("a", 0, 1, "hello\r\n")
        page = open_page(java_script_enabled=False)
        has(page, ".tile-screen", "hello")
        has(page, ".live-run h2", "now")
        assert page.locator("button:visible").count() == 0


def test_a_lost_server_is_shown(open_page: Open, server: ViewServer) -> None:
    page = open_page()
    has(page, "[data-connection]", "live")
    page.context.set_offline(True)
    server.viewing.state.close()  # ends the streams, as the end of the server does
    has(page, "[data-connection]", "does not respond")


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        pytest.param(1280, "light", marks=pytest.mark.slow),
        pytest.param(1280, "dark", marks=pytest.mark.slow),
        pytest.param(390, "light", marks=pytest.mark.slow),
        (390, "dark"),
    ],
)
def test_the_page_fits_and_is_accessible(open_page: Open, tmp_path: Path, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = open_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    with RunBeingWritten(tmp_path / "a-run-with-a-name-that-is-far-too-long-for-a-telephone", ("a", "b")) as run:
        run.begin("a", 0)
        run.step("a", 0, 1, f"\x1b[31mred\x1b[0m \x1b[42mgreen\x1b[0m {'x' * 300}\r\n")
        run.begin("b", 1)
        run.judge("b", 1, 0.5)
        run.begin("b", 0)
        run.judge("b", 0, None)
        has(page, ".tile", "red")
        for state in ("page", "large"):
            if state == "large":
                page.locator(".tile button").first.click()
                has(page, ".large .ap-term-text", "red")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            found = axe.Axe().run(page, options={"rules": {"color-contrast": {"enabled": state == "page"}}}).response
            serious = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
            assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []
