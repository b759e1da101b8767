"""The page of a trial in a real browser, from files: steps and recording follow each other, search works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browsing import PHONE, a_tab, open_page, sideways
from playwright.sync_api import Browser, Page, expect
from run_trees import a_result, write_run
from written_trials import LOOKS_AND_MENDS, Exchange, WrittenTrial, write_files_of

from reports.site.writer import write_site

FLOOD = "".join(f"line {number}\n" for number in range(3000))
OTHER = (LOOKS_AND_MENDS[0], Exchange("Give up.", "exit\n", "bye\n"), Exchange("Flood.", "seq 3000\n", FLOOD))
SEEK = "sec => TB.reader.sessionAt(0).seek(sec).then(() => TB.reader.sessionAt(0).highlight())"


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Write the pages of two trials of one task, which diverge at the second step."""
    folder = tmp_path_factory.mktemp("trials")
    results = [a_result("task", 0, 1.0), a_result("task", 1, 0.0)]
    run = write_run(folder / "runs" / "run", results, {"task": "h"}, (0, 1))
    for result, exchanges in zip(results, (LOOKS_AND_MENDS, OTHER), strict=True):
        write_files_of(run, result, WrittenTrial(exchanges))
    site = write_site([folder / "runs"], folder / "site").overview.parent
    yield (site / "runs" / "run" / "trial.html").as_uri()


def open_trial(tab: Page, address: str, anchor: str = "") -> None:
    """Open a trial and wait until its scripts are loaded."""
    open_page(tab, address, anchor)
    expect(tab.locator("#place[data-ready]")).to_be_visible()


def test_a_step_that_is_chosen_is_what_the_terminal_shows(page: Page, trials: str) -> None:
    open_trial(page, f"{trials}?task--0")
    page.locator("#step-2 h3 a").click()
    expect(page.locator("#step-2")).to_have_class("step flawed now")
    expect(page.locator(".session-screen")).to_contain_text("main.c:3: error: expected")
    expect(page.locator(".session-screen")).not_to_contain_text("cc -o tally")
    expect(page.locator("[data-session-place]")).to_have_text("at the end of step 2")
    page.locator("#step-1 h3 a").click()
    expect(page.locator(".session-screen")).to_contain_text("Makefile")
    expect(page.locator(".session-screen")).not_to_contain_text("error: expected")


def test_where_the_player_goes_the_steps_follow(page: Page, trials: str) -> None:
    open_trial(page, f"{trials}?task--0")
    page.evaluate(SEEK, 3.4)
    expect(page.locator(".step.now")).to_have_id("step-3")
    page.evaluate(SEEK, 0.5)
    expect(page.locator(".step.now")).to_have_id("step-1")
    page.keyboard.press("p")
    expect(page.locator(".step.now")).to_have_id("step-2")
    expect(page.locator(".step.now")).to_have_id("step-3")


def test_keys_go_from_step_to_step(page: Page, trials: str) -> None:
    open_trial(page, f"{trials}?task--0")
    for key, step in (("j", "step-1"), ("j", "step-2"), ("j", "step-3"), ("j", "step-3"), ("k", "step-2")):
        page.keyboard.press(key)
        expect(page.locator(".step.now")).to_have_id(step)
        assert page.url.endswith(f"#{step}"), "the address is a link to the step"
    expect(page.locator(".session-screen")).to_contain_text("error: expected")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next step, previous step")


def test_a_link_to_a_step_opens_it(page: Page, trials: str) -> None:
    open_trial(page, f"{trials}?task--0", "step-2")
    expect(page.locator(".step.now")).to_have_id("step-2")
    expect(page.locator(".session-screen")).to_contain_text("error: expected")


def test_the_screen_of_a_step_has_its_colours(page: Page, trials: str) -> None:
    open_trial(page, f"{trials}?task--0")
    page.get_by_role("button", name="screen at the end of step 2").click()
    expect(page.locator("#step-2 .still")).to_contain_text("error: expected")
    page.get_by_role("button", name="screen at the end of step 2").click()
    expect(page.locator(".still")).to_have_count(0)


def test_what_the_page_leaves_out_comes_from_its_data(page: Page, trials: str) -> None:
    open_trial(page, f"{trials}?task--1")
    page.locator("#step-3").scroll_into_view_if_needed()
    assert "line 1500\n" not in page.locator("#step-3").inner_text()
    page.locator("#step-3").get_by_role("button", name="show all").first.click()
    expect(page.locator("#step-3")).to_contain_text("line 1500")
    page.get_by_role("button", name="whole reply of step 3").click()
    expect(page.locator("#step-3 .raw")).to_contain_text('"task_complete": false')


def test_steps_are_found_by_texts_that_the_page_leaves_out(page: Page, trials: str) -> None:
    open_trial(page, f"{trials}?task--1")
    page.keyboard.press("/")
    page.keyboard.type("line 1500")
    expect(page.locator("#found")).to_have_text("1 of 3 steps")
    expect(page.locator("#step-1")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator("#step-1")).to_be_visible()
    page.get_by_label("only steps with problems").check()
    expect(page.locator("#found")).to_have_text("0 of 3 steps")


def test_another_trial_is_compared_at_the_step_where_they_diverge(page: Page, trials: str) -> None:
    open_trial(page, f"{trials}?task--0")
    choice = page.get_by_label("Compare with")
    expect(choice.locator("option")).to_have_count(2)
    choice.select_option(index=1)
    expect(page.locator("#difference")).to_contain_text("They diverge at step 2. 1 of 3 steps are the same.")
    expect(page.locator(".sides section").nth(0)).to_contain_text("make")
    expect(page.locator(".sides section").nth(1)).to_contain_text("bye")
    page.get_by_role("button", name="3≠").click()
    expect(page.locator(".sides section").nth(1)).to_contain_text("seq 3000")


def test_a_wide_terminal_shows_the_same(page: Page, trials: str) -> None:
    open_trial(page, f"{trials}?task--0", "step-2")
    expect(page.locator(".session-screen")).to_contain_text("error: expected")
    page.keyboard.press("w")
    expect(page.locator(".reader.wide .session-screen")).to_contain_text("error: expected")


def test_a_phone_shows_a_trial_without_scrolling_sideways(browser: Browser, trials: str) -> None:
    with a_tab(browser, viewport=PHONE) as tab:
        open_trial(tab, f"{trials}?task--1", "step-2")
        expect(tab.locator(".session-screen")).to_contain_text("bye")
        assert sideways(tab) == []
