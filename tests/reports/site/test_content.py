"""Content of a site: series of runs, the names of nights, and the last good run before each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from site_series import TASKS, Rewards, a_site, dropped, usual, write_drop, write_night

from reports.site.content import AlarmSpan, JudgedSeries, NightlySeries, Site, judge_series
from tbench.scores.gate.judge import judge
from tbench.scores.gate.nights import GateRule, Night
from tbench.scores.statistics import RewardTable


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
    lane = NightlySeries("checkpoints/*", nights, GateRule(base_nights=2, base_from="n1 m2"))
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


def test_the_key_of_a_series_does_not_depend_on_the_folder(tmp_path: Path) -> None:
    keys = []
    for folder in ("here", "there"):
        write_night(tmp_path / folder, 0, usual(0))
        with a_site(tmp_path / folder) as site:
            keys.append(site.series[0].key)
    assert keys[0] == keys[1]


# A series is judged night by night with few verdicts, and a drop reaches back to where it began.

RULE = GateRule()


def a_night(number: int, rewards: Rewards, fingerprint: str = "f") -> Night:
    verdicts = [(task, seed, r) for task, row in rewards.items() for seed, r in enumerate(row)]
    table = RewardTable.from_verdicts(verdicts, TASKS, (0,))
    return Night(f"n{number:02}", f"2026-01-{number + 1:02}", table, {}, fingerprint)


def nights(usual_nights: int = 12, dropped_nights: int = 5, back: int = 0) -> list[Night]:
    kinds = [usual] * usual_nights + [dropped] * dropped_nights + [usual] * back
    return [a_night(number, kind(number)) for number, kind in enumerate(kinds)]


def test_each_night_is_judged_as_if_it_had_been_the_last() -> None:
    series = nights(back=4)
    found = judge_series(series, RULE)
    for end in range(1, len(series) + 1):
        last = judge(series[:end], RULE)
        assert found.verdict_at(series[end - 1].name) == last
        assert found.by_name[series[end - 1].name].alarm == last.alarm


def test_an_alarm_reaches_back_to_the_first_night_of_the_drop() -> None:
    low = ("n12", "n13", "n14", "n15", "n16")
    assert judge_series(nights(), RULE).alarms == (AlarmSpan("n13", "n16", low, None),)
    assert judge_series(nights(back=4), RULE).alarms == (AlarmSpan("n13", "n16", low, "n17"),)


def test_nights_of_other_settings_are_judged_among_themselves() -> None:
    before = nights()
    after = [a_night(number, usual(number), "g") for number in range(17, 20)]
    found = judge_series([*before, *after], RULE)
    assert found.by_name["n16"].alarm
    assert found.by_name["n19"].role == "baseline"
    assert [span.first for span in found.alarms] == ["n13"]
    assert found.verdict is not None
    assert found.verdict.state == "learning"


def test_a_baseline_that_begins_late_leaves_what_was_before_as_it_was() -> None:
    found = judge_series(nights(back=12), replace(RULE, base_from="n17"))
    assert found.by_name["n14"].alarm
    assert found.by_name["n17"].role == "baseline"
    assert found.by_name["n28"].role == "judged"


def test_a_baseline_may_begin_at_a_date() -> None:
    found = judge_series(nights(back=12), replace(RULE, base_from="2026-01-18"))
    assert found.by_name["n14"].alarm
    assert found.by_name["n17"].role == "baseline"


def test_a_baseline_whose_first_night_is_gone_begins_with_the_first_that_is_there() -> None:
    found = judge_series(nights(), replace(RULE, base_from="night of last year"))
    assert found.verdict == judge(nights(), RULE)


def test_no_nights_are_no_verdict() -> None:
    assert judge_series([], RULE) == JudgedSeries(RULE)
    assert judge_series([], RULE).verdict_at("n00") is None
    assert judge_series(nights(), RULE).verdict_at("another") is None
