"""Explanations on pages: lost points of a run, parts of a difference, and the sentence that a night recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from explained_histories import draw
from site_series import ReadPage, a_site

from reports import comparison
from reports.explained import explanation_for_page
from reports.report import write_report
from reports.site import night
from reports.site.content import NightlySeries
from tbench.explaining.confirmations import store_confirmation
from tbench.explaining.explain import explain_side
from tbench.explaining.explanation import Confirmation
from tbench.explaining.trials import side_of
from tbench.nightly.explained import explained_night
from tbench.storage.read_run import read_run
from tbench.storage.run_files import CONFIRMED_NAME
from tbench.text import visible_line


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nights")
    draw(folder, ("context",), 6)
    return folder


def test_the_page_of_a_run_says_where_points_were_lost(nights: Path, tmp_path: Path) -> None:
    page = ReadPage(write_report(nights / "night-08", tmp_path / "page.html").read_text())
    assert "Where points were lost" in page.words
    assert "context full" in page.words and "limits.on_overflow=drop-oldest-outputs" in page.words


def test_a_confirmed_cause_is_shown_below_both_tables(nights: Path, tmp_path: Path) -> None:
    known = Confirmation(
        cause="context_full", when="W answers", of=9, trials=4, forks=4, passed=3, low=0.3, high=0.95, directory="d"
    )
    store_confirmation(nights / "night-08", known)
    said = "context full: of 4 such trials 3 pass (1 to 4) when W answers"
    assert said in ReadPage(write_report(nights / "night-08", tmp_path / "page.html").read_text()).words
    with a_site(nights) as site:
        runs = {run.row.name: run for run in site.runs}
        page = ReadPage(comparison.render(site, runs["night-07"], runs["night-08"]))
    (nights / "night-08" / CONFIRMED_NAME).unlink()
    assert said in page.words


def test_the_page_of_two_runs_says_why_they_differ(nights: Path) -> None:
    with a_site(nights) as site:
        runs = {run.row.name: run for run in site.runs}
        page = ReadPage(comparison.render(site, runs["night-07"], runs["night-08"]))
    assert "Why night-08 is" in page.words
    assert "server.max_model_len: 32,768 → 16,384 tokens" in page.words


def test_the_page_of_a_night_shows_what_the_night_recorded(nights: Path) -> None:
    paths = sorted(nights.glob("night-*"))
    sentence = "night-08 is 12.0 points below <b>night-07</b>"
    part = {"title": "context full", "party": "server", "difference": -0.12, "low": -0.2, "high": -0.04, "p": 1e-5}
    recorded = {
        "sentence": sentence,
        "parts": [{**part, "named": True, "because": ["x: 1 → 2"], "together_with": ["y"]}],
        "server": "start it again: vllm serve",
    }
    lane = NightlySeries("lane", {path: path.name for path in paths}, explained={paths[-1]: recorded})
    with a_site(nights, [lane]) as site:
        html = night.render(site, "night-08", site.nights["night-08"])
        other = night.render(site, "night-07", site.nights["night-07"])
    page = ReadPage(html)
    assert visible_line(sentence) in page.words and "<b>night-07</b>" not in html
    assert "start it again: vllm serve" in page.words
    assert "context full x: 1 → 2 −12.0 −20.0 to −4.0 yes p 1e-05 server or y" in page.words
    assert "Why" not in ReadPage(other).words


def test_runs_that_cannot_be_explained_have_no_panel(nights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = read_run(nights / "night-08")
    empty = run.model_copy(update={"results": []})
    assert explanation_for_page(run.planned, lambda: explain_side(side_of(run), listed=0)) is not None
    assert explanation_for_page(run.planned, lambda: explain_side(side_of(empty), listed=0)) is None
    monkeypatch.setattr("reports.explained.MAX_TRIALS", 5)
    assert explanation_for_page(run.planned, lambda: explain_side(side_of(run), listed=0)) is None


def test_the_first_night_has_nothing_to_say() -> None:
    assert explained_night([], [], None) == {}  # type: ignore[arg-type]
