"""What a site shows: series of runs, what each run is called, and which run before it was a good one."""

from __future__ import annotations

from pathlib import Path

from site_series import TASKS, a_site, usual, write_drop, write_night

from reports.site.content import Lane, Site
from tbench.scores.gate.nights import GateRule


def good_before(site: Site) -> dict[str, str | None]:
    """The last good run before each, by name, the oldest first."""
    found = {run.row.name: site.last_good_before(run) for run in reversed(site.runs)}
    return {name: good and good.row.name for name, good in found.items()}


def test_no_run_of_a_drop_is_a_good_one_also_before_the_alarm(tmp_path: Path) -> None:
    with a_site(write_drop(tmp_path, back=2)) as site:
        found = good_before(site)
    assert [found[f"night-{number:02}"] for number in (0, 1, 12, 13, 16, 17, 18)] == [
        None,
        "night-00",
        *["night-11"] * 4,
        "night-17",
    ]


def test_a_run_under_way_or_with_few_verdicts_is_no_good_one(tmp_path: Path) -> None:
    write_night(tmp_path, 0, usual(0))
    write_night(tmp_path, 1, {task: (None,) if at < 6 else (1.0,) for at, task in enumerate(TASKS)})
    write_night(tmp_path, 2, usual(2), status="running")
    write_night(tmp_path, 3, usual(3))
    with a_site(tmp_path) as site:
        assert good_before(site)["night-03"] == "night-00"


def test_a_run_is_over_when_nothing_more_is_to_come(tmp_path: Path) -> None:
    all_of_it, half = {"a": (1.0,)}, {"hashes": {"a": "h", "b": "h"}}
    for number, (status, more) in enumerate(
        [("finished", {}), ("running", {}), ("interrupted", {}), ("interrupted", half), ("failed", half)]
    ):
        write_night(tmp_path, number, all_of_it, status=status, **more)
    with a_site(tmp_path) as site:
        over = {run.row.name: run.is_over for run in site.runs}
    assert [over[f"night-0{number}"] for number in range(5)] == [True, False, True, False, False]


def test_a_night_of_several_checkpoints_calls_them_by_their_runs(tmp_path: Path) -> None:
    nights = {}
    for number in range(6):
        run = write_night(tmp_path, number, usual(number), model=f"m{number}", name=f"n{number // 2}_m{number}")
        nights[run] = f"n{number // 2}"
    lane = Lane("checkpoints/*", nights, GateRule(base_nights=2, base_from="n1 m2"))
    with a_site(tmp_path, [lane]) as site:
        (series,) = site.series
    assert [night.name for night in series.judged.nights] == [f"n{number // 2}_m{number}" for number in range(6)]
    assert series.rule.base_from == "n1_m2"
    assert series.verdict is not None
    assert series.verdict.path[0].name == "n1_m2"


def test_series_of_one_name_have_pages_of_their_own(tmp_path: Path) -> None:
    for number, temperature in enumerate((0.1, 0.2)):
        write_night(tmp_path, number, usual(number), temperature=temperature)
    with a_site(tmp_path) as site:
        assert [series.name for series in site.series] == ["m", "m"]
        assert len({series.page for series in site.series}) == 2


def test_what_a_series_is_known_by_stays_where_it_lies_elsewhere(tmp_path: Path) -> None:
    keys = []
    for folder in ("here", "there"):
        write_night(tmp_path / folder, 0, usual(0))
        with a_site(tmp_path / folder) as site:
            keys.append(site.series[0].key)
    assert keys[0] == keys[1]
