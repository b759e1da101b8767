"""States of runs, and of nights, which have the state of their most urgent run."""

from __future__ import annotations

from pathlib import Path

from site_series import TASKS, a_site, usual, write_drop, write_night

from reports.site.content import Site
from reports.site.states import gate_text, progress_text, state_of, worst_state


def kinds(site: Site) -> dict[str, str]:
    return {run.row.name: state_of(site.series_of(run), run).kind for run in site.runs}


def test_a_series_learns_is_quiet_alarmed_and_well_again(tmp_path: Path) -> None:
    with a_site(write_drop(tmp_path, back=2)) as site:
        found = kinds(site)
    assert [found[f"night-{number:02}"] for number in (0, 9, 10, 12, 13, 16, 17, 18)] == [
        "learning",
        "learning",
        "quiet",
        "quiet",
        "alarm",
        "alarm",
        "over",
        "quiet",
    ]


def test_what_is_not_over_or_has_no_verdict_says_so(tmp_path: Path) -> None:
    plan = {"hashes": {"task-00": "h", "task-01": "h"}}
    write_night(tmp_path, 0, {"task-00": (1.0,)}, name="running", model="a", status="running", **plan)
    write_night(tmp_path, 0, {"task-00": (1.0,)}, name="cut", model="b", status="interrupted", **plan)
    write_night(tmp_path, 0, {"task-00": (None,)}, name="broken", model="c")
    write_night(tmp_path, 0, {"task-00": (1.0,)}, name="single", model="d")
    with a_site(tmp_path) as site:
        assert kinds(site) == {name: name for name in ("running", "cut", "broken", "single")}
        assert worst_state(site, site.runs).kind == "broken"


def test_a_night_with_few_verdicts_is_not_judged(tmp_path: Path) -> None:
    write_drop(tmp_path, dropped_nights=0)
    write_night(tmp_path, 12, {task: (None,) if at < 6 else (1.0,) for at, task in enumerate(TASKS)})
    with a_site(tmp_path) as site:
        (last, *_) = site.runs
        series = site.series_of(last)
        assert state_of(series, last).kind == "uncovered"
        assert gate_text(series, last) == "50 % of its trials have a verdict; a night counts from 90 %"
        assert gate_text(series, series.runs[0]) == "one of the first 10 nights, which form the baseline"
        assert gate_text(series, series.runs[11]) == "C = 0.0 of 5"


def test_the_alarm_of_one_run_is_that_of_the_night(tmp_path: Path) -> None:
    write_drop(tmp_path)
    for number in range(17):
        write_night(tmp_path, number, usual(number), model="steady", name=f"steady-{number}")
    with a_site(tmp_path) as site:
        assert worst_state(site, site.nights["2026-01-17"]).kind == "alarm"
        assert worst_state(site, site.nights["2026-01-12"]).kind == "quiet"


def test_a_run_without_a_verdict_so_far_says_so(tmp_path: Path) -> None:
    write_night(tmp_path, 0, {"a": (None,)}, hashes={"a": "h", "b": "h"}, status="running")
    with a_site(tmp_path) as site:
        assert progress_text(site.runs[0].row) == "1 of 2 trials, no verdict so far"
