"""The search over all trials in a real browser, from files."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import open_page
from hostile_runs import MARKUP
from playwright.sync_api import Page, expect
from run_trees import a_result, write_run
from written_trials import LOOKS_AND_MENDS, Exchange, WrittenTrial, write_files_of

from reports.site.writer import write_site

LONG = "x" * 2_000 + " needle"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a site of two runs with a trial each."""
    folder = tmp_path_factory.mktemp("search")
    mixed = WrittenTrial([Exchange(MARKUP, "rm -rf /srv\n", "only shown")], tests={"test_b": "no such port 8080"})
    for name, trial in (("one", mixed), ("two", WrittenTrial((*LOOKS_AND_MENDS, Exchange(LONG, "ls\n", ""))))):
        result = a_result("task", 0, 0.0)
        run = write_run(folder / "runs" / name, [result], {"task": "h"}, (0,))
        write_files_of(run, result, trial)
    return write_site([folder / "runs"], folder / "site").overview.parent / "search" / "index.html"


def found(page: Page, words: str) -> list[str]:
    page.get_by_label("Text in trials").fill(words)
    page.get_by_role("button", name="search").click()
    expect(page.locator("#progress")).to_contain_text("in 2 trials")
    return page.locator("#found li").all_inner_texts()


def test_what_was_typed_leads_to_its_step(page: Page, site: Path) -> None:
    open_page(page, site)
    (line,) = found(page, "RM -rf")
    assert "one" in line and "typed" in line
    page.reload()
    page.locator("#found a").click()
    expect(page.locator(".step.now")).to_have_id("step-1")


def test_failed_tests_and_the_words_of_the_model_are_searched_and_output_is_not(page: Page, site: Path) -> None:
    open_page(page, site)
    assert "failed test" in found(page, "test_b assert 1")[0]
    assert "said" in found(page, "Build it.")[0]
    assert len(found(page, "task")) >= 2
    assert found(page, "only shown") == []
    assert found(page, "needle") == [], "beyond the limit that the page names"


def test_found_texts_stay_text(page: Page, site: Path) -> None:
    open_page(page, site)
    assert found(page, MARKUP.splitlines()[0][:20])
    assert page.locator(".injected, main img").count() == 0


def test_the_search_can_be_limited_to_some_runs(page: Page, site: Path) -> None:
    open_page(page, site, "q=task&in=two")
    expect(page.locator("#progress")).to_contain_text("in 1 trials")
