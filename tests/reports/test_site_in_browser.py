"""A site in a real browser: pages have no problems, are accessible, and links work."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import PHONE, a_tab, findings, open_page, served, sideways
from playwright.sync_api import Browser, Page, expect
from shown_trials import trials_in
from site_pages import KINDS, addresses, by_kind
from written_history import DROPPED, NIGHTS, STEADY

from reports.page_paths import slug

QUICK = {"overview", "night", "run", "trial", "comparison"}
"""Kinds of pages that `make test` checks one by one; the others are made of the same parts."""
EACH = [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS]


@pytest.mark.parametrize("kind", EACH)
def test_every_kind_of_page_is_accessible(page: Page, nights: Path, kind: str) -> None:
    open_page(page, addresses(by_kind(nights)[kind][-1])[-1])
    expect(page.locator(".step" if kind == "trial" else "h1").first).to_be_visible()
    assert findings(page) == []
    page.emulate_media(color_scheme="dark")
    assert findings(page, only=["color-contrast"]) == []
    page.set_viewport_size(PHONE)
    assert sideways(page) == []
    assert findings(page) == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [1440, 390])
def test_pages_of_runs_with_almost_nothing_in_them_are_accessible(browser: Browser, hostile: Path, width: int) -> None:
    for each in by_kind(hostile)["run"]:
        with a_tab(browser, viewport={"width": width, "height": 900}) as tab:
            open_page(tab, each)
            assert findings(tab) == [], each


@pytest.mark.parametrize("kind", EACH)
def test_hostile_names_stay_text_and_fit_a_phone(browser: Browser, hostile: Path, kind: str) -> None:
    found = by_kind(hostile)[kind]
    with a_tab(browser, viewport=PHONE) as tab:
        for each in (
            place for page in (found if kind in ("run", "trial") else found[:3]) for place in addresses(page)[:4]
        ):
            open_page(tab, each)
            if "trial.html?" in each:
                expect(tab.locator("#place[data-ready]")).to_be_attached()
            assert sideways(tab) == [], each
            assert tab.locator(".injected, body img, body style, iframe").count() == 0, each
            assert tab.locator("h1").count() == 1, each


@pytest.mark.parametrize("kind", ["overview", "series", "task"])
def test_a_phone_shows_the_charts_too(browser: Browser, nights: Path, kind: str) -> None:
    with a_tab(browser, viewport=PHONE) as tab:
        open_page(tab, by_kind(nights)[kind][-1])
        assert tab.locator("svg.history, .chart.history").first.is_visible()


def test_a_site_opens_from_a_server_as_from_files(browser: Browser, nights: Path) -> None:
    with served(nights) as address, a_tab(browser, server=address) as tab:
        for found in by_kind(nights).values():
            open_page(tab, f"{address}/{found[0].relative_to(nights).as_posix()}")
            assert tab.locator("h1").count() == 1


def test_tables_are_there_without_javascript(browser: Browser, nights: Path) -> None:
    with a_tab(browser, java_script_enabled=False) as tab:
        for kind, found in by_kind(nights).items():
            open_page(tab, found[-1])
            assert tab.locator("h1").is_visible()
            assert tab.locator("noscript" if kind in ("trial", "search") else "table").first.is_visible(), kind
            assert not any(part.is_visible() for part in tab.locator("[data-needs-script], button, select").all()), kind


def test_from_the_overview_to_the_step_at_which_a_trial_failed(page: Page, nights: Path) -> None:
    open_page(page, nights / "index.html")
    page.get_by_role("link", name="What changed since the last good night").first.click()
    expect(page.get_by_role("heading", name="Why there is an alarm")).to_be_visible()
    page.get_by_role("link", name="Run", exact=True).first.click()
    expect(page.locator("h1")).to_contain_text(f"night-{NIGHTS}_{DROPPED}")
    page.locator("td .fail, a.fail").first.click()
    expect(page.get_by_text("the agent ended")).to_be_visible()
    page.locator("#s2 h3 a, .step[data-n='2'] h3 a").click()
    expect(page.locator(".step.now")).to_have_attribute("data-n", "2")
    expect(page.locator(".session-screen")).to_contain_text("main.c:3: error: expected")


def test_playing_a_recording_goes_from_step_to_step(page: Page, nights: Path) -> None:
    open_page(page, f"{(nights / 'runs' / f'night-{NIGHTS}_{STEADY}' / 'trial.html').as_uri()}?broken-makefile--28")
    page.get_by_role("button", name="play the recording from step 1").click()
    expect(page.locator(".step.now")).to_have_attribute("data-n", "1")
    expect(page.locator(".step.now")).to_have_attribute("data-n", "2")
    expect(page.locator(".session-screen")).to_contain_text("make")


def test_any_two_runs_are_compared(page: Page, nights: Path) -> None:
    open_page(page, nights / "compare" / "index.html")
    page.select_option("#old", f"night-01_{STEADY}")
    page.select_option("#new", f"night-{NIGHTS}_{DROPPED}")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#compared .figure")).to_contain_text("points")
    expect(page.locator("#compared h3").first).to_contain_text("Newly failing")
    page.locator("#compared a.fail").first.click()
    expect(page.get_by_text("the agent ended")).to_be_visible()


def test_runs_that_have_a_page_of_their_own_lead_to_it(page: Page, nights: Path) -> None:
    open_page(page, nights / "compare" / "index.html")
    page.select_option("#new", f"night-05_{STEADY}")
    page.select_option("#old", f"night-04_{STEADY}")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_contain_text(f"night-04_{STEADY}")


def test_two_trials_of_a_task_are_shown_side_by_side(page: Page, nights: Path) -> None:
    open_page(page, f"{(nights / 'runs' / f'night-{NIGHTS}_{STEADY}' / 'trial.html').as_uri()}?broken-makefile--28")
    page.select_option("#other", index=1)
    expect(page.locator("#difference")).not_to_be_empty()


def test_scripts_keep_hostile_texts_as_text(page: Page, hostile: Path) -> None:
    shown = [
        (len(trial.sections[0]["lines"]), place.as_uri(), name)
        for place in by_kind(hostile)["trial"]
        for name, trial in trials_in(place.parent).items()
    ]
    _, place, name = max(shown)
    open_page(page, f"{place}?{name}")
    for name in ("screen at the end of step 1", "whole reply of step 1", "play the recording from step 1"):
        page.get_by_role("button", name=name).click()
    expect(page.locator(".step .raw")).to_contain_text("<b class=injected>")
    expect(page.locator(".session-screen")).to_contain_text("${alert(1)} <!--<script>")
    page.locator("#find").fill("<b class=injected>")
    expect(page.locator("#found")).to_contain_text("1 of 1 step")
    open_page(page, hostile / "compare" / "index.html")
    page.select_option("#old", slug(next(run.name for run in hostile.parent.glob("runs/*injected*"))))
    page.select_option("#new", "bare")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#compared")).to_contain_text("no task with the same content")
    assert page.locator(".injected, img").count() == 0


def test_the_choice_of_colours_is_kept_from_page_to_page(page: Page, nights: Path) -> None:
    open_page(page, nights / "index.html")
    button = page.locator("[data-theme-button]")
    button.click()
    button.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    open_page(page, nights / "tasks" / "index.html")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
