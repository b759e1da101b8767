"""Selection of nights and tasks: settings, renamed and changed tasks, repeats, start of the baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gate_nights import TASKS, a_night, nights, rewards

from tbench.errors import UsageError
from tbench.scores.gate.judge import judge
from tbench.scores.gate.nights import GateRule, Night, Series, make_series

RULE = GateRule()


def names(found: Series) -> list[str]:
    return [night.name for night in found.nights]


def hashes(**changed: str) -> dict[str, str]:
    return {task: f"hash of {task}" for task in TASKS} | {
        name.replace("_", "-"): content for name, content in changed.items()
    }


def test_nights_with_other_settings_are_left_out() -> None:
    series = [a_night(n, rewards(n), fingerprint="b" if n == 2 else "a") for n in range(5)]
    found = make_series(series, RULE)
    assert names(found) == ["night-0", "night-1", "night-3", "night-4"]
    assert found.notes == ("1 night with other settings left out",)


def test_new_settings_begin_a_new_baseline() -> None:
    series = [a_night(n, rewards(n), fingerprint="b" if n > 10 else "a") for n in range(13)]
    verdict = judge(series, RULE)
    assert verdict.lines() == (
        "gate: learning: 2 of 10 nights; score 50.0 %",
        "note: 11 nights with other settings left out",
    )


def test_a_task_with_other_content_is_another_task_and_is_noted() -> None:
    series = [a_night(n, rewards(n), hashes=hashes(**({"task_03": "new"} if n > 10 else {}))) for n in range(13)]
    verdict = judge(series, RULE)
    assert verdict.tasks == 19
    assert verdict.notes == ("1 task not compared, new, changed or without verdicts in the baseline: task-03",)


def test_an_added_task_is_noted_and_a_removed_one_does_not_matter() -> None:
    series = [a_night(n, rewards(n)) for n in range(11)]
    series.append(a_night(11, rewards(11, tasks=[*TASKS[1:], "task-new"])))
    verdict = judge(series, RULE)
    assert verdict.tasks == 19
    assert verdict.notes == ("1 task not compared, new, changed or without verdicts in the baseline: task-new",)


def test_a_task_that_was_renamed_is_compared_under_its_new_name() -> None:
    content = {"renamed" if task == "task-00" else task: text for task, text in hashes().items()}
    series = [a_night(n, rewards(n), hashes=hashes()) for n in range(11)]
    series.append(a_night(11, rewards(11, tasks=["renamed", *TASKS[1:]]), hashes=content))
    verdict = judge(series, RULE)
    assert (verdict.tasks, verdict.notes) == (20, ("renamed, with the same content: task-00 → renamed",))


def test_a_copy_of_a_task_is_not_taken_for_a_new_name() -> None:
    content = dict.fromkeys(TASKS, "same")
    series = [a_night(n, rewards(n), hashes=content) for n in range(11)]
    series.append(a_night(11, rewards(11, tasks=["renamed", *TASKS[1:]]), hashes={**content, "renamed": "same"}))
    assert judge(series, RULE).tasks == 19


def test_nights_with_too_few_tasks_in_common_are_left_out() -> None:
    odd = a_night(11, rewards(11, tasks=TASKS[:5]))
    series = [*nights(11), odd, a_night(12, rewards(12))]
    assert judge(series, RULE).notes == ("1 night with less than 80 % of the tasks in common left out",)
    alone = judge(series[:-1], RULE)
    assert alone.lines()[0] == "gate: learning: 1 of 10 nights; score 60.0 %"
    assert alone.notes == ("11 nights with less than 80 % of the tasks in common left out",)


def test_an_unknown_hash_is_no_other_content() -> None:
    series = [a_night(n, rewards(n), hashes=hashes() if n % 2 else {}) for n in range(12)]
    assert judge(series, RULE).tasks == 20


def test_a_run_that_is_given_twice_counts_once() -> None:
    series = nights(12)
    again = Night("copy", series[4].begun, series[4].table, {})
    found = make_series([series[3], *series, again], RULE)
    assert names(found)[:3] == ["night-0", "night-1", "night-2"]
    assert len(found.nights) == 12
    assert found.notes == ("given twice, counted once: night-4, night-3",)


def test_checkpoints_of_one_night_with_equal_rewards_are_several_runs_and_copies_of_one_are_not() -> None:
    twins = [replace(night, run=f"{night.begun} {name}", name=name) for night in nights(6) for name in ("a", "b")]
    assert len(make_series(twins, RULE).nights) == 12
    copy = replace(twins[3], name="copy")
    assert make_series([*twins, copy], RULE).notes == ("given twice, counted once: b",)


def test_runs_of_one_name_on_several_days_are_several_nights() -> None:
    series = [Night("tb", night.begun, night.table, {}) for night in nights(12)]
    assert len(make_series(series, RULE).nights) == 12


@pytest.mark.parametrize("place", ["night-5", "2026-11-06"])
def test_the_baseline_begins_at_base_from(place: str) -> None:
    found = make_series(nights(12), GateRule(base_from=place))
    assert (names(found)[0], len(found.nights)) == ("night-5", 7)


def test_a_baseline_that_is_still_to_come_has_the_last_night_alone() -> None:
    assert names(make_series(nights(12), GateRule(base_from="2027-01-01"))) == ["night-11"]


def test_an_unknown_base_from_is_refused() -> None:
    with pytest.raises(UsageError, match="base_from 'nihgt-5' is neither a night's name nor a date"):
        make_series(nights(3), GateRule(base_from="nihgt-5"))


def test_gaps_in_the_dates_do_not_matter() -> None:
    series = [a_night(n * n, rewards(n, lost=10 if n >= 12 else 0), name=f"n{n}") for n in range(17)]
    verdict = judge(series, RULE)
    assert verdict.alarm
    assert "between n11 (2 Mar 2027) and n12 (25 Mar 2027)" in verdict.lines()[1]
