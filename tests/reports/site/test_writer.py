"""Writing a site again: only what changed is written."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from run_trees import FIRST_NIGHT, a_result, write_run
from shown_trials import trials_in
from site_series import dropped, usual, write_night
from written_trials import WrittenTrial, write_files_of

from reports.site import night, writer
from reports.site.content import NightlySeries
from reports.site.writer import MARKER_NAME, write_site
from tbench.errors import UsageError
from tbench.nightly.pages import write_pages


def a_night(folder: Path, number: int) -> Path:
    begun = FIRST_NIGHT + timedelta(days=number)
    results = [a_result(task, 0, 1.0, begun) for task in ("a", "b")]
    run = write_run(folder / f"night-{number}", results, {"a": "h", "b": "h"}, (0,), begun=begun, prompt_hash="p")
    for result in results:
        write_files_of(run, result, WrittenTrial())
    return run


def times(site: Path, pattern: str) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in site.glob(pattern)}


def test_a_run_that_has_not_changed_is_left_alone(tmp_path: Path) -> None:
    a_night(tmp_path / "runs", 1)
    site = write_site([tmp_path / "runs"], tmp_path / "site").overview.parent
    before = times(site, "runs/night-1/*")
    assert set(before) == {".written", "index.html", "trial.html", "trials.js", "trials-0.js", "search.js"}
    assert write_site([tmp_path / "runs"], site).unchanged == 1
    assert times(site, "runs/night-1/*") == before


def test_the_page_of_a_run_is_written_again_when_an_earlier_run_appears(tmp_path: Path) -> None:
    a_night(tmp_path / "runs", 2)
    site = write_site([tmp_path / "runs"], tmp_path / "site").overview.parent
    page = site / "runs" / "night-2" / "index.html"
    trials = times(site, "runs/night-2/trial*")
    assert "night-1" not in page.read_text()
    a_night(tmp_path / "runs", 1)
    written = write_site([tmp_path / "runs"], site)
    assert "night-1" in page.read_text() and (site / "compare" / "night-1--night-2.html").is_file()
    assert written.unchanged == 1 and times(site, "runs/night-2/trial*") == trials


@pytest.mark.parametrize(("program", "own"), [(writer._HELP, 2), ("raise SystemExit(1)", 6)])
def test_further_processes_write_the_same_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, own: int
) -> None:
    for number in range(6):
        a_night(tmp_path / "runs", number)
    nights = {tmp_path / "runs" / f"night-{number}": f"night {number}" for number in range(6)}
    lanes = [NightlySeries("lane", nights, explained={[*nights][-1]: {"sentence": "It fell.", "parts": []}})]
    alone = write_site([tmp_path / "runs"], tmp_path / "alone", lanes=lanes)
    rendered: list[object] = []
    render = writer.run.render
    monkeypatch.setattr(
        writer.run, "render", lambda site, each, *rest: (rendered.append(each), render(site, each, *rest))[1]
    )
    monkeypatch.setattr(writer, "_SHARE", 2)
    monkeypatch.setattr(writer, "_HELP", program)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(3), raising=False)
    helped = write_site([tmp_path / "runs"], tmp_path / "helped", lanes=lanes)
    assert (helped.unchanged, helped.notes) == (alone.unchanged, alone.notes) == (0, ())
    assert len(rendered) == own, "what a process fails to write is written here"

    def pages(site: Path) -> dict[Path, bytes]:
        return {file.relative_to(site): file.read_bytes() for file in site.glob("*/*/*") if file.is_file()}

    assert pages(tmp_path / "helped") == pages(tmp_path / "alone")


def test_trials_whose_recordings_were_removed_are_written_again(tmp_path: Path) -> None:
    run = a_night(tmp_path / "runs", 1)
    site = write_site([tmp_path / "runs"], tmp_path / "site").overview.parent
    pages = site / "runs" / "night-1"
    assert 'class="session"' in trials_in(pages)["a--0"].html
    for name in ("session.cast", "steps.jsonl", "trajectory.json"):
        (run / "trials" / "a" / "seed-0" / name).unlink()
    os.utime(run / "trials")
    assert write_site([tmp_path / "runs"], site).unchanged == 0
    assert 'class="session"' not in trials_in(pages)["a--0"].html


def test_a_site_written_night_by_night_has_the_pages_of_one_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []
    render = night.render
    monkeypatch.setattr(night, "render", lambda site, name, runs: (rendered.append(name), render(site, name, runs))[1])
    runs, grown = tmp_path / "runs", tmp_path / "grown"
    for number, rewards in enumerate([*[usual] * 11, *[dropped] * 5, *[usual] * 5]):
        write_night(runs, number, rewards(number))
        rendered.clear()
        write_site([runs], grown)
    assert rendered == ["2026-01-21", "2026-01-20"], "only the night and the one before it, which links to it, are new"
    regraded = runs / "night-10" / "results.jsonl"
    regraded.write_text(regraded.read_text().replace('"reward":1.0', '"reward":0.0', 1))
    write_site([runs], grown)
    written_at_once = write_site([runs], tmp_path / "fresh").overview.parent
    pages = [path.relative_to(written_at_once) for path in written_at_once.glob("nights/*.html")]
    assert len(pages) == 22
    for page in pages:
        assert (grown / page).read_text() == (written_at_once / page).read_text(), page


def test_chunks_of_trials_that_there_are_no_more_are_removed(tmp_path: Path) -> None:
    a_night(tmp_path / "runs", 1)
    pages = tmp_path / "site" / "runs" / "night-1"
    pages.mkdir(parents=True)
    (tmp_path / "site" / MARKER_NAME).touch()
    for name in ("trials-7.js", "note.txt"):
        (pages / name).touch()
    write_site([tmp_path / "runs"], tmp_path / "site")
    assert set(times(tmp_path / "site", "runs/night-1/*")) == {
        ".written", "index.html", "trial.html", "trials.js", "trials-0.js", "search.js", "note.txt"
    }  # fmt: skip


def all_of(folder: Path) -> dict[Path, bytes]:
    """Return every file except the index of the history, which can be rebuilt at any time."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".tbench-history"))
    return {file: file.read_bytes() for file in files}


@pytest.mark.parametrize(
    "out", ["runs", "runs/night-1", "runs/night-1/pages", ".", "to-run/pages", "home", "home/index.html", "site"]
)
def test_pages_are_written_neither_among_runs_nor_over_what_is_no_site(tmp_path: Path, out: str) -> None:
    run = a_night(tmp_path / "runs", 1)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "index.html").write_text("my own page")
    (tmp_path / "to-run").symlink_to(run)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / MARKER_NAME).touch()
    (tmp_path / "site" / "runs").symlink_to(tmp_path / "runs")
    before = all_of(tmp_path)
    with pytest.raises(UsageError, match=r"^[^\n]+$"):
        write_site([tmp_path / "runs"], tmp_path / out)
    assert all_of(tmp_path) == before


def test_a_site_among_the_folders_of_runs_is_none_of_them(tmp_path: Path) -> None:
    a_night(tmp_path / "runs", 1)
    for _ in range(2):
        written = write_pages([tmp_path / "runs"], tmp_path / "runs" / "site")
        assert [each.row.name for each in written.site.runs] == ["night-1"]
    # A folder named like that of a nightly benchmark is one only if it has a night.
    (tmp_path / "runs" / "nights").mkdir()
    (tmp_path / "runs" / "nights" / "2026-11-25.html").write_text("no night")
    assert len(write_pages([tmp_path / "runs"], tmp_path / "out").site.runs) == 1
