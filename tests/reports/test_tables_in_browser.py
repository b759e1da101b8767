"""Tables in a real browser, from files: sorted, filtered, with chosen columns, downloaded; the address keeps it all."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from browsing import open_page
from playwright.sync_api import Page, expect
from run_trees import FIRST_NIGHT, a_result, write_run

from reports.site.writer import write_site

REWARDS = {"alpha": (1.0, 0.0), "beta": (0.0, 0.0), "=1+1": (1.0, 1.0), "gamma": (0.0, 1.0)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a site of four nights in three months."""
    folder = tmp_path_factory.mktemp("tables")
    for number, day in enumerate((0, 31, 62, 63)):
        begun = FIRST_NIGHT + timedelta(days=day)
        results = [a_result(task, seed, given[seed], begun) for task, given in REWARDS.items() for seed in (0, 1)]
        tasks = dict.fromkeys(REWARDS, "h")
        write_run(folder / "runs" / f"night-{number}", results, tasks, (0, 1), begun=begun, prompt_hash="p")
    return write_site([folder / "runs"], folder / "site").overview.parent


@pytest.fixture
def open_grid(page: Page, site: Path) -> Callable[[str], None]:
    """Open the page of a run with a state in its address."""
    return lambda state: open_page(page, site / "runs" / "night-3" / "index.html", state)


def names(page: Page, table: str = "tasks") -> list[str]:
    return page.locator(f"table[data-table={table}] tbody tr:not(.group):visible th").all_inner_texts()


def saved(page: Page, kind: str, name: str) -> str:
    with page.expect_download() as download:
        page.get_by_role("button", name=kind).first.click()
    assert download.value.suggested_filename == name
    return Path(download.value.path()).read_text()


def test_a_column_sorts_both_ways_and_back_with_the_keyboard(page: Page, open_grid: Callable[[str], None]) -> None:
    open_grid("")
    written = names(page)
    head = page.locator("table[data-table=tasks] th").first
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert names(page) == sorted(written)
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    assert names(page) == sorted(written, reverse=True)
    page.keyboard.press("Enter")
    assert names(page) == written and head.get_attribute("aria-sort") is None


def test_the_address_keeps_sort_filter_and_columns(page: Page, open_grid: Callable[[str], None]) -> None:
    open_grid("")
    page.get_by_role("searchbox").first.fill("a")
    page.get_by_label("all tasks").first.select_option("mixed")
    page.locator("table[data-table=tasks]").get_by_role("button", name="Task").click()
    page.locator(".chooser").first.locator("summary").click()
    page.locator(".chooser").first.get_by_label("Solved").uncheck()
    assert names(page) == ["alpha", "gamma"]
    page.reload()
    assert names(page) == ["alpha", "gamma"]
    expect(page.locator("table[data-table=tasks] th").first).to_have_attribute("aria-sort", "ascending")
    expect(page.locator("table[data-table=tasks]").get_by_role("button", name="Solved")).to_be_hidden()
    expect(page.get_by_text("2 of 4", exact=True)).to_be_visible()


def test_a_state_in_the_address_opens_a_folded_table(page: Page, open_grid: Callable[[str], None]) -> None:
    open_grid("trials.sort=-seconds&trials.find=beta")
    assert names(page, "trials") == ["beta", "beta"]


def test_a_table_is_saved_with_the_rows_that_match(page: Page, open_grid: Callable[[str], None]) -> None:
    open_grid("tasks.sort=task")
    rows = list(csv.DictReader(saved(page, "CSV", "tasks.csv").splitlines()))
    assert [row["Task"] for row in rows] == ["'=1+1", "alpha", "beta", "gamma"], "no formula for a spreadsheet"
    assert rows[1]["Solved"] == "1/2" and float(rows[1]["Time"]) == 36
    page.get_by_role("searchbox").first.fill("beta")
    (row,) = json.loads(saved(page, "JSON", "tasks.json"))
    assert row["Task"] == "beta" and row["Time"] == 36


def test_nights_are_folded_by_month_and_a_filter_finds_them(page: Page, site: Path) -> None:
    open_page(page, site / "nights" / "index.html")
    assert len(names(page, "nights")) == 3
    page.get_by_role("button", expanded=False).click()
    assert len(names(page, "nights")) == 4
    page.get_by_role("button", expanded=True).last.click()
    assert len(names(page, "nights")) == 3
    page.get_by_label("all months").select_option(index=3)
    assert len(names(page, "nights")) == 1
    page.reload()
    assert len(names(page, "nights")) == 1
