"""The gate's verdict: the formula, begin and end of an alarm, nights that are not evidence."""

from __future__ import annotations

import json
import math
import random
from statistics import fmean, variance

import pytest
from compared_runs import published
from gate_histories import Setting, history
from gate_nights import TASKS, a_night, lacking, nights, rewards
from hypothesis import given
from hypothesis import strategies as st

from tbench.errors import UsageError
from tbench.results import LARGEST_REWARD
from tbench.scores.gate.judge import judge
from tbench.scores.gate.nights import GateRule, Night
from tbench.scores.gate.verdict import GateVerdict
from tbench.scores.statistics import RewardTable

RULE = GateRule()


def by_hand(series: list[Night]) -> tuple[float, float]:
    """z of the night after the baseline as the formula has it, and its sd, with 3 flips in the baseline's trials added.

    sd^2 = sum_t var_t / T^2 * (1 + 1 / nights), with one trial of every task in every night.
    """
    base, night = series[:-1], series[-1]
    size, tasks = len(base), len(night.table.tasks)
    columns = [[each.table.rows[t][0] for each in base] for t in range(tasks)]
    variances = [variance([r for r in column if r is not None]) + 3 / (size * tasks) for column in columns]
    sd = math.sqrt(sum(variances) / tasks**2 * (1 + 1 / size))
    means = [fmean(float(r or 0) for (r,) in each.table.rows) for each in (*base, night)]
    return (means[-1] - fmean(means[:-1])) / sd, sd


def test_z_is_the_score_against_the_baseline_in_standard_deviations_of_a_night() -> None:
    series = history(Setting(nights=11, tasks=30), random.Random(4))
    verdict = judge(series, RULE)
    assert (verdict.z, verdict.sd) == pytest.approx(by_hand(series))
    assert verdict.z is not None
    assert verdict.c == pytest.approx(max(0.0, -verdict.z - 0.5))


def test_seeds_of_unequal_number_weigh_by_their_trials() -> None:
    """With S trials a night of every task, the variance of a night's mean is that between nights, whatever S is."""
    series = history(Setting(nights=10, tasks=8, seeds=3), random.Random(4))
    one = history(Setting(nights=1, tasks=8, seeds=2), random.Random(5))[0]
    verdict = judge([*series, Night("last", "", one.table, {})], RULE)
    spread = score = 0.0
    for t in range(8):
        means = [fmean(float(r or 0) for r in night.table.rows[t]) for night in series]
        trial = 3 * variance(means) + 3 / (30 * 8)
        spread += trial / 2 + trial / 30
        score += fmean(float(r or 0) for r in one.table.rows[t]) - fmean(means)
    assert verdict.z == pytest.approx(score / math.sqrt(spread))


def test_the_first_nights_are_learned_from() -> None:
    verdict = judge(nights(4), RULE)
    assert (verdict.state, verdict.alarm, verdict.base_nights) == ("learning", False, 4)
    assert verdict.lines() == ("gate: learning: 4 of 10 nights; score 50.0 %",)


def test_the_night_that_completes_the_baseline_is_no_verdict_yet() -> None:
    verdict = judge(nights(10), RULE)
    assert verdict.state == "learning"
    assert verdict.lines()[0].startswith("gate: learning: 10 of 10 nights; score 50.0 % (baseline 50.0 %, ")


def test_a_change_between_published_models_is_detected() -> None:
    """The seeds of each as its nights; the difference of the two over all of them is 6.07 points."""

    def seeds_as_nights(model: str) -> list[Night]:
        table = published(model).table
        return [
            Night(f"{model} {seed}", "", RewardTable(table.tasks, (0,), tuple((row[at],) for row in table.rows)), {})
            for at, seed in enumerate(table.seeds)
        ]

    better, worse = seeds_as_nights("tmax-9b"), seeds_as_nights("Qwen3.5-9B")
    rule = GateRule(base_nights=5)
    verdict = judge([*better, *worse], rule)
    assert [night.alarm for night in verdict.path] == [False] * 7 + [True] * 3
    assert verdict.drop is not None
    assert (verdict.drop.before.name, verdict.drop.since.name) == (better[-1].name, worse[0].name)
    assert abs(verdict.drop.moved + 0.0607) < 0.005
    assert judge([*worse, *better], rule).state == "quiet"


def test_a_quiet_night_is_one_line() -> None:
    verdict = judge(nights(15), RULE)
    assert verdict.lines() == ("gate: quiet: C = 0.0 of 5; score 50.0 % (baseline 50.0 %, a night ± 12.2); 20 tasks",)


def test_a_drop_is_reported_with_its_date_its_size_and_its_tasks() -> None:
    verdict = judge(nights(18, dropped_at=14), RULE)
    head, between, last, *tasks = verdict.lines()
    size, _, scores = head.partition(" since 15 Nov 2026: ")
    assert size.startswith("gate: alarm: the score dropped by 25.0 ± 6.")
    assert scores == "25.0 % over 4 nights, usually 50.0 %"
    assert between == "it began between night-13 (14 Nov 2026) and night-14 (15 Nov 2026)"
    assert last.startswith("this night: C = 6.2 > 5; score 25.0 % (baseline 50.0 %, a night ± ")
    assert [line.split(":")[0].strip() for line in tasks[:3]] == ["task-00", "task-01", "task-02"]
    assert "solved 0 of 4, baseline 7 of 14" in tasks[0]
    assert verdict.since is not None
    assert verdict.since.name == "night-14"


def test_a_drop_that_is_not_seen_yet_is_no_alarm() -> None:
    assert judge(nights(16, dropped_at=14), RULE).state == "quiet"


def test_c_alone_makes_no_alarm_where_the_baseline_is_not_known_well_enough() -> None:
    early = nights(14, dropped_at=10)
    assert [judge(early, GateRule(min_se=least)).state for least in (0.0, 5.0)] == ["alarm", "quiet"]
    assert judge(early, GateRule(min_se=5.0)).c > 5


def test_the_alarm_stands_while_the_drop_lasts_and_ends_soon_after_it() -> None:
    path = judge(nights(60, dropped_at=20, until=40), RULE).path
    assert all(night.alarm for night in path[24:40])
    first_well = next(at for at in range(40, 60) if not path[at].alarm)
    assert first_well < 45
    assert not any(night.alarm for night in path[first_well:])


def test_the_end_of_an_alarm_is_reported_once() -> None:
    series = nights(60, dropped_at=20, until=40)
    over = [at for at in range(20, 60) if judge(series[: at + 1], RULE).over]
    assert len(over) == 1
    lines = judge(series[: over[0] + 1], RULE).lines()
    assert "the alarm is over: the score is back at the baseline's level" in lines


def test_a_drop_does_not_join_the_baseline() -> None:
    verdict = judge(nights(60, dropped_at=20), RULE)
    assert (verdict.state, verdict.base_nights) == ("alarm", 20)


def test_nights_that_are_not_different_from_a_lucky_baseline_join_it() -> None:
    """Ten good nights, then many that are lower by less than the error of the baseline."""
    lucky = dict.fromkeys(TASKS[:2], (1.0,))
    series = [a_night(n, rewards(n, lost=1) | (lucky if n < 10 else {})) for n in range(80)]
    path = judge(series, RULE).path
    assert not any(night.alarm for night in path)
    assert max(night.c or 0.0 for night in path) > 4
    assert (path[-1].c, judge(series, RULE).base_nights) == (0.0, 80)


def test_a_c_beyond_its_limit_without_an_alarm_is_explained() -> None:
    (line,) = judge(nights(14, dropped_at=10), GateRule(min_se=5.0)).lines()
    assert line.startswith("gate: quiet: C = 5.9 > 5, but the nights since are only 3.5 standard errors below the base")


def test_a_rise_is_reported_and_is_no_alarm() -> None:
    series = [a_night(n, {t: (1.0,) if n >= 14 and at < 10 else row for at, (t, row) in enumerate(rewards(n).items())})
              for n in range(18)]  # fmt: skip
    verdict = judge(series, RULE)
    assert (verdict.state, verdict.alarm) == ("quiet", False)
    assert verdict.rise is not None and verdict.rise.beyond
    assert verdict.lines()[1].startswith("better since ")
    assert "base_from = night-" in verdict.lines()[1]


def test_one_flip_in_a_benchmark_that_never_varied_is_no_alarm_and_a_lost_task_is() -> None:
    always = dict.fromkeys(TASKS, (1.0,))
    flipped = {**always, "task-03": (0.0,)}
    before = [a_night(number, always) for number in range(10)]
    assert judge([*before, a_night(10, flipped)], RULE).state == "quiet"
    since = [a_night(number, flipped) for number in range(10, 16)]
    verdict = judge([*before, *since], RULE)
    assert verdict.alarm and verdict.drop is not None
    assert verdict.drop.tasks[0].task == "task-03"
    assert verdict.drop.tasks[0].p_holm < 0.05


def test_a_night_with_an_outage_does_not_change_c_and_is_reported() -> None:
    series = nights(17, dropped_at=14)
    before = judge(series[:-1], RULE)
    verdict = judge([*series[:-1], lacking(series[-1], 12)], RULE)
    assert (verdict.state, verdict.c) == ("uncovered", before.c)
    assert verdict.lines()[0].startswith("gate: uncovered: 40 % of its trials have a verdict, so C stays 3.1; ")


def test_an_outage_does_not_end_an_alarm() -> None:
    series = nights(20, dropped_at=14)
    verdict = judge([*series, lacking(nights(21)[-1], 20)], RULE)
    assert verdict.alarm
    assert "this night has too few verdicts to be judged: the alarm stands" in verdict.lines()


def test_a_night_with_an_outage_is_no_part_of_the_baseline() -> None:
    series = nights(12)
    series[3] = lacking(series[3], 20)
    verdict = judge(series, RULE)
    assert [night.role for night in verdict.path] == ["baseline"] * 3 + ["uncovered"] + ["baseline"] * 7 + ["judged"]
    assert judge(series[:4], RULE).lines()[0] == "gate: uncovered: 3 of 10 nights have enough verdicts"


def test_missing_verdicts_alone_raise_no_alarm() -> None:
    series = nights(17, dropped_at=14, lost=11)
    assert judge(series, GateRule(min_se=0.0)).state == "alarm"
    missing = {task: (None,) if task in TASKS[-2:] else row for task, row in rewards(16, lost=11).items()}
    verdict = judge([*series[:-1], a_night(16, missing)], GateRule(min_se=0.0))
    assert verdict.state == "quiet"
    assert "would rest on 2 trials without a verdict, which count as solved instead" in verdict.notes[-1]


def test_a_task_that_never_has_a_verdict_is_not_missed() -> None:
    series = [lacking(night, 4) for night in nights(18, dropped_at=14)]
    verdict = judge(series, GateRule(min_coverage=1.0))
    assert (verdict.path[-1].coverage, verdict.tasks) == (1.0, 16)


def test_no_verdict_at_all_is_uncovered() -> None:
    verdict = judge([lacking(night, 20) for night in nights(12)], RULE)
    assert (verdict.state, verdict.score) == ("uncovered", None)


def test_fractional_rewards_are_judged_by_their_means() -> None:
    series = [a_night(n, {t: ((row[0] or 0) / 4 + 0.25,) for t, row in rewards(n).items()}) for n in range(12)]
    series += [a_night(n, dict.fromkeys(TASKS, (0.1,))) for n in range(12, 16)]
    verdict = judge(series, RULE)
    assert verdict.alarm
    assert "mean 0.10 over 4 trials, baseline 0.3" in verdict.lines()[3]


@pytest.mark.parametrize(("sticky", "least", "most"), [(0.0, 0.0, 0.1), (0.3, 0.2, 0.4), (0.7, 0.55, 0.8)])
def test_nights_that_resemble_the_one_before_widen_the_standard_errors(
    sticky: float, least: float, most: float
) -> None:
    verdict = judge(history(Setting(sticky=sticky, nights=30), random.Random(1)), RULE)
    assert least <= verdict.autocorrelation <= most
    assert verdict.as_json()["autocorrelation"] == verdict.autocorrelation
    assert any("autocorrelation" in note for note in verdict.notes) == (sticky > 0.0)


def test_a_rise_that_lasts_is_no_resemblance() -> None:
    series = [a_night(n, {t: (1.0,) if n >= 14 and at < 10 else row for at, (t, row) in enumerate(rewards(n).items())})
              for n in range(30)]  # fmt: skip
    assert judge(series, RULE).autocorrelation == 0.0


def test_nights_that_differ_as_a_whole_widen_the_standard_errors() -> None:
    def weather(number: int) -> Night:
        good = number % 2 == 0
        return a_night(number, {task: (float(good or at < 4),) for at, task in enumerate(TASKS)})

    verdict = judge([weather(number) for number in range(14)], RULE)
    assert not verdict.alarm
    assert any("differ" in note for note in verdict.notes)


def test_later_nights_do_not_change_earlier_verdicts() -> None:
    """No later night changes what was said of an earlier one."""
    series = history(Setting(points=10, nights=45, tasks=30, dropped_at=25), random.Random(8))
    path = judge(series, RULE).path
    for end in range(11, 45):
        last = judge(series[:end], RULE).path[-1]
        assert (last.c, last.z, last.alarm) == (path[end - 1].c, path[end - 1].z, path[end - 1].alarm)


def test_the_json_has_the_evidence_and_can_be_written() -> None:
    data = json.loads(json.dumps(judge(nights(18, dropped_at=14), RULE).as_json()))
    assert (data["state"], data["rule"]["h"], data["drop"]["since"]) == ("alarm", 5.0, "night-14")
    assert [night["role"] for night in data["nights"]].count("judged") == 8
    assert data["drop"]["likely"][0] == "task-00"


def test_no_nights_are_refused() -> None:
    with pytest.raises(UsageError, match="gate: no nights to judge"):
        judge([], RULE)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"base_nights": 1}, "base_nights is 1; a baseline needs 2 nights or more"),
        ({"k": 0.0}, "k is 0.0; give a number above 0"),
        ({"h": math.inf}, "h is inf; give a number above 0"),
        ({"min_se": -1.0}, "min_se is -1.0; give 0 or more"),
        ({"min_coverage": 0.0}, "min_coverage is 0.0; give a share above 0 and up to 1"),
        ({"min_shared": 1.5}, "min_shared is 1.5; give a share above 0 and up to 1"),
    ],
)
def test_an_invalid_rule_is_refused(known: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        GateRule(**known)  # type: ignore[arg-type]


REWARDS = st.none() | st.sampled_from([0.0, 1.0]) | st.floats(-LARGEST_REWARD, LARGEST_REWARD)


@st.composite
def wild_nights(draw: st.DrawFn) -> list[Night]:
    names = st.lists(st.sampled_from("abcd"), min_size=1, unique=True)
    found = []
    for number in range(draw(st.integers(1, 9))):
        seeds = draw(st.integers(1, 3))
        rows = {task: tuple(draw(REWARDS) for _ in range(seeds)) for task in draw(names)}
        hashes = {task: draw(st.sampled_from("xy")) for task in rows if draw(st.booleans())}
        found.append(
            a_night(draw(st.integers(0, number)), rows, hashes=hashes, fingerprint=draw(st.sampled_from("fg")))
        )
    return found


@given(wild_nights(), st.sampled_from([0.5, 0.01]))
def test_any_nights_have_a_verdict_in_words_and_in_json(series: list[Night], share: float) -> None:
    verdict: GateVerdict = judge(series, GateRule(base_nights=2, min_coverage=share, min_shared=share))
    assert verdict.lines()[0].startswith("gate: ")
    assert json.dumps(verdict.as_json(), allow_nan=False)
