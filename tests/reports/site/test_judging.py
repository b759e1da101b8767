"""A series is judged night by night with few verdicts, and a drop reaches back to where it began."""

from __future__ import annotations

from dataclasses import replace

from site_series import TASKS, Rewards, dropped, usual

from reports.site.judging import AlarmSpan, JudgedSeries, judged
from tbench.scores.gate.judge import judge
from tbench.scores.gate.nights import GateRule, Night
from tbench.scores.statistics import RewardTable, TrialReward

RULE = GateRule()


def a_night(number: int, rewards: Rewards, fingerprint: str = "f") -> Night:
    verdicts = [TrialReward(task, seed, r) for task, row in rewards.items() for seed, r in enumerate(row)]
    table = RewardTable.of(verdicts, TASKS, (0,))
    return Night(f"n{number:02}", f"2026-01-{number + 1:02}", table, {}, fingerprint)


def nights(usual_nights: int = 12, dropped_nights: int = 5, back: int = 0) -> list[Night]:
    kinds = [usual] * usual_nights + [dropped] * dropped_nights + [usual] * back
    return [a_night(number, kind(number)) for number, kind in enumerate(kinds)]


def test_each_night_is_judged_as_if_it_had_been_the_last() -> None:
    series = nights(back=4)
    found = judged(series, RULE)
    for end in range(1, len(series) + 1):
        last = judge(series[:end], RULE)
        assert found.verdict_at(series[end - 1].name) == last
        assert found.by_name[series[end - 1].name].alarm == last.alarm


def test_an_alarm_reaches_back_to_the_first_night_of_the_drop() -> None:
    low = ("n12", "n13", "n14", "n15", "n16")
    assert judged(nights(), RULE).alarms == (AlarmSpan("n13", "n16", low, None),)
    assert judged(nights(back=4), RULE).alarms == (AlarmSpan("n13", "n16", low, "n17"),)


def test_nights_of_other_settings_are_judged_among_themselves() -> None:
    before = nights()
    after = [a_night(number, usual(number), "g") for number in range(17, 20)]
    found = judged([*before, *after], RULE)
    assert found.by_name["n16"].alarm
    assert found.by_name["n19"].role == "baseline"
    assert [span.first for span in found.alarms] == ["n13"]
    assert found.verdict is not None
    assert found.verdict.state == "learning"


def test_a_baseline_that_begins_late_leaves_what_was_before_as_it_was() -> None:
    found = judged(nights(back=12), replace(RULE, base_from="n17"))
    assert found.by_name["n14"].alarm
    assert found.by_name["n17"].role == "baseline"
    assert found.by_name["n28"].role == "judged"


def test_a_baseline_may_begin_at_a_date() -> None:
    found = judged(nights(back=12), replace(RULE, base_from="2026-01-18"))
    assert found.by_name["n14"].alarm
    assert found.by_name["n17"].role == "baseline"


def test_a_baseline_whose_first_night_is_gone_begins_with_the_first_that_is_there() -> None:
    found = judged(nights(), replace(RULE, base_from="night of last year"))
    assert found.verdict == judge(nights(), RULE)


def test_no_nights_are_no_verdict() -> None:
    assert judged([], RULE) == JudgedSeries(RULE)
    assert judged([], RULE).verdict_at("n00") is None
    assert judged(nights(), RULE).verdict_at("another") is None
