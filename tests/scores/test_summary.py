"""The figures of a summary, and its printed form."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from harness.trajectory import Outcome, Usage
from tbench.results import Blame, ErrorInfo, HostSample, Integrity, Stage, Timings, TrialResult
from tbench.scores.statistics import score
from tbench.scores.summarise import NO_VERDICT, KnownAboutRun, MixedResults, reward_table, summarise
from tbench.scores.summary import Status, Summary, percent
from tbench.scores.tables import plain, render

TIME = datetime(2026, 1, 1, tzinfo=UTC)
SIX = [f"task-{t}" for t in range(6)]


def trial(task: str, seed: int, reward: float | None, **more: Any) -> TrialResult:
    known = {"run": "r", "trial": f"{task}-{seed}", "agent": "a", "started_at": TIME, "finished_at": TIME}
    return TrialResult(task=task, seed=seed, reward=reward, **(known | more))


def failure(message: str = "no route", **more: Any) -> ErrorInfo:
    known = {"stage": Stage.AGENT, "type": "EndpointDown", "blame": Blame.ENDPOINT, "retryable": True}
    return ErrorInfo(message=message, **(known | more))


def eighteen(solved: list[int]) -> list[TrialResult]:
    """Six tasks at three seeds; seed s solves the first `solved[s]` tasks."""
    return [trial(task, seed, float(t < count)) for seed, count in enumerate(solved) for t, task in enumerate(SIX)]


def printed(summary: Summary, width: int = 100, *, terminal: bool = False, brief: bool = False) -> str:
    out = io.StringIO()
    render(summary, Console(file=out, width=width, force_terminal=terminal), brief=brief)
    return out.getvalue()


def test_the_score_line_names_the_kind_of_its_spread() -> None:
    summary = summarise(eighteen([4, 4, 3]), SIX, [0, 1, 2])
    assert summary.score_line == "score 61.1 ± 9.6 % (sample std over 3 seeds; coverage 18/18)"
    assert summary.score_lines == (summary.score_line,)


def test_after_a_run_the_summary_has_the_table_and_what_a_reader_needs_first() -> None:
    results = eighteen([4, 4, 3])
    assert printed(summarise(results, SIX, [0, 1, 2]), brief=True).splitlines()[-4:] == [
        "",
        "score 61.1 ± 9.6 % (sample std over 3 seeds; coverage 18/18)",
        "95 % interval 9.3 to 97.7 %, for other tasks of the same kind",
        "not solved: 7 of 18 trials with a verdict (7 unknown)",
    ]
    ends = [Outcome.AGENT_TIMEOUT, Outcome.SUBMITTED, Outcome.SUBMITTED, Outcome.STEP_LIMIT]
    results = [trial(f"t{number}", 0, 0.5, outcome=end) for number, end in enumerate(ends)]
    results.append(trial("t4", 0, 1.0, outcome=Outcome.AGENT_TIMEOUT))
    text = printed(summarise(results, [f"t{number}" for number in range(5)], [0]), brief=True)
    assert "not solved: 4 of 5 trials with a verdict (2 submitted, 1 out of time, 1 out of steps)" in text
    assert "by seed: 1 solved, 0 failed, other numbers partial" in text
    solved = printed(summarise(eighteen([6, 6, 6]), SIX, [0, 1, 2]), brief=True)
    assert "not solved" not in solved and "by seed: " not in solved


def test_no_reason_to_doubt_a_score_is_left_out_of_the_short_summary() -> None:
    strong = Integrity(tamper=("hosts: x", "unconfirmed: no fresh container"))
    results = [
        trial("a", 0, 1.0, integrity=strong),
        trial("b", 0, 0.0, **pressed(load_max=17.0), outcome=Outcome.SUBMITTED),
        trial("c", 0, None, error=failure()),
        trial("x", 0, 1.0),
    ]
    summary = summarise(
        results,
        ["a", "b", "c", "d"],
        [0],
        KnownAboutRun(overrides=["agent timeout x2"], lacking_limits=["memory"], unhealthy={"b": "flaky"}),
    )
    whole, brief = (printed(summary, 200, brief=each).splitlines() for each in (False, True))
    doubts = ("score", "note: ", "limits: ", "overridden: ", "1 of 4 tasks", "signs of", "errors ", "  ")
    told = [line for line in whole if line.startswith(doubts)]
    assert [line for line in brief if line.startswith(doubts)] == told
    assert len(told) > 12 and any("unscored = 0" in line for line in told)
    assert any(line.startswith("95 % interval") and line.endswith("; unscored = 0") for line in brief)


def test_failures_are_ranked_by_reward_then_by_their_tasks_mean_and_end_with_those_without_a_verdict() -> None:
    results = [trial("a", 0, 1.0), trial("a", 1, 0.0), trial("b", 0, 0.0), trial("b", 1, 0.5), trial("c", 0, None)]
    summary = summarise([*results, trial("c", 1, 1.0, error=None)], ["a", "b", "c"], [0, 1])
    assert summary.failures == [("b", 0), ("a", 1), ("b", 1), ("c", 0)]
    assert summarise(results[4:], ["c"], [0]).failures == [("c", 0)]
    assert summarise(results[:1], ["a"], [0, 1]).failures == []


def test_the_reward_table_holds_the_rewards_that_the_summary_counts() -> None:
    results = eighteen([4, 4, 3])
    results += [trial(SIX[0], 0, 0.0, attempt=2), trial(SIX[1], 0, 0.0, attempt=2, final=False), trial("other", 0, 1.0)]
    table = reward_table(results, SIX, [0, 1, 2])
    summary = summarise(results, SIX, [0, 1, 2])
    assert summary.score is not None
    assert score(table) == summary.score.mean == pytest.approx(10 / 18)


def test_a_population_std_is_called_one() -> None:
    summary = summarise(eighteen([4, 4, 3]), SIX, [0, 1, 2], population=True)
    assert summary.score_line == "score 61.1 ± 7.9 % (population std over 3 seeds; coverage 18/18)"


def test_one_seed_has_no_std() -> None:
    results = [trial(task, 0, float(t < 4)) for t, task in enumerate(SIX)]
    assert summarise(results, SIX, [0]).score_line == "score 66.7 % (1 seed, no std; coverage 6/6)"


def test_below_full_coverage_the_score_has_three_lines() -> None:
    results = eighteen([4, 4, 3])
    results[-1] = trial(SIX[5], 2, None, error=failure())
    del results[5]
    assert summarise(results, SIX, [0, 1, 2]).score_lines == (
        "score so far 61.1 ± 9.6 % "
        "(sample std over 3 seeds; 66.7 % over the 1 completed; incomplete: 1 trial not run; coverage 16/18; "
        "unscored = 0)",
        "score over scored trials only 61.1 ± 11.5 % "
        "(16 of 18 trials; every task weighs the same; 95 % interval 9.3 to 97.7 %)",
        "score bounds 61.1 to 72.2 % (2 unscored trials as 0, as 1)",
    )


LIMIT = {"outcome": Outcome.AGENT_TIMEOUT}
VERIFIER_LIMIT = {"reward": None, "error": failure(type="verifier_timeout")}


def pressed(**host: float) -> dict[str, Any]:
    return {"host": HostSample(**host)}


def test_timeouts_under_pressure_are_counted_separately() -> None:
    results = [
        trial("t", 0, 0.0, **LIMIT, **pressed(load_max=3.14, memory_stall_max=0.1)),
        trial("t", 1, **({"reward": 0.0} | VERIFIER_LIMIT), **pressed(load_max=1.0, memory_stall_max=0.4)),
        trial("t", 2, 0.0, **LIMIT, **pressed(load_max=2.0, memory_stall_max=0.2, clock_jump_sec=5.0)),
        trial("t", 3, 0.0, **LIMIT),
        trial("t", 4, 1.0, outcome=Outcome.SUBMITTED, **pressed(load_max=9.0)),
    ]
    summary = summarise(results, ["t"], range(5))
    words = "2 of 4 timeouts ran on an overloaded machine: load up to 3.1 per cpu, "
    words += "waiting for memory up to 40 % of the time"
    assert f"\nnote: {words}\n" in printed(summary)
    assert summary.as_json()["pressure"] == {
        "timeouts": 4, "under_pressure": 2, "failed": 0, "failed_under_pressure": 0,
        "load_max": 3.14, "memory_stall_max": 0.4, "clock_jump_sec": 0.0,
    }  # fmt: skip


def test_failures_under_load_are_counted_too() -> None:
    """Tests and the agent's commands may have limits of their own."""
    results = [
        trial("t", 0, 0.0, outcome=Outcome.SUBMITTED, **pressed(load_max=17.0)),
        trial("t", 1, 0.5, outcome=Outcome.SUBMITTED, **pressed(load_max=1.0)),
        trial("t", 2, 0.0, **LIMIT, **pressed(load_max=3.0)),
        trial("t", 3, None, error=failure(), **pressed(load_max=20.0)),
    ]
    words = "1 of 1 timeout and 1 of 2 failed trials ran on an overloaded machine: load up to 17.0 per cpu"
    assert f"\nnote: {words}\n" in printed(summarise(results, ["t"], range(4)))


def test_a_jump_of_the_clock_is_pressure_and_a_calm_machine_is_no_word() -> None:
    calm = trial("t", 0, 0.0, **LIMIT, **pressed(load_max=1.0))
    assert summarise([calm], ["t"], [0]).pressure is None
    jumped = trial("t", 0, 0.0, **LIMIT, **pressed(clock_jump_sec=61.0))
    pressure = summarise([jumped], ["t"], [0]).pressure
    assert pressure is not None
    assert pressure.words == "1 of 1 timeout ran on an overloaded machine: clocks jumped by up to 61 s"


def test_without_a_verdict_there_is_no_score_and_no_zero() -> None:
    summary = summarise([trial(SIX[0], 0, None, error=failure())], SIX, [0, 1, 2])
    assert summary.score_lines == ("score not available (incomplete: 17 trials not run; coverage 0/18)",)
    assert summary.score is None
    assert summarise([], [], []).score_line == "score not available (coverage 0/0)"


def test_only_final_attempts_count_and_the_others_are_listed() -> None:
    results = [
        trial("t", 0, None, attempt=1, final=False, error=failure()),
        trial("t", 0, 1.0, attempt=2),
    ]
    summary = summarise(results, ["t"], [0])
    assert (summary.counts.scored, summary.counts.other_attempts, summary.errors) == (1, 1, ())
    assert summary.tasks[0].cells[0].attempt == 2


def test_of_two_final_results_the_later_attempt_counts() -> None:
    first, second = trial("t", 0, 0.0, attempt=1), trial("t", 0, 1.0, attempt=2)
    for results in ([first, second], [second, first]):
        summary = summarise(results, ["t"], [0])
        assert summary.score is not None
        assert (summary.score.mean, summary.counts.other_attempts) == (1.0, 1)


def test_a_second_final_line_of_a_trial_is_named() -> None:
    summary = summarise([trial("t", 0, 0.0), trial("u", 0, 1.0), trial("t", 0, 1.0)], ["t", "u"], [0])
    assert summary.counts.solved == 2
    assert "\nnote: more than one final result, the last one counts: t seed 0: 0, 1\n" in printed(summary)
    regraded = summarise([trial("t", 0, 0.0, final=False), trial("t", 0, 1.0)], ["t"], [0])
    assert "more than one" not in printed(regraded)


def test_results_outside_the_plan_are_counted_apart() -> None:
    summary = summarise([trial("t", 0, 1.0), trial("other", 0, 0.0)], ["t"], [0])
    assert summary.score is not None
    assert (summary.score.mean, summary.counts.unplanned) == (1.0, 1)


@pytest.mark.parametrize("what", ["model", "agent", "run"])
@pytest.mark.parametrize("other_seed", [0, 1])
def test_results_of_two_models_agents_or_runs_are_refused(what: str, other_seed: int) -> None:
    """Even if the last result would replace the others."""
    results = [trial("t", 0, 1.0, **{what: "a"}), trial("t", other_seed, 0.0, **{what: "b"})]
    with pytest.raises(MixedResults, match=rf"results of 2 {what}s \(a, b\); keep"):
        summarise(results, ["t"], [0, 1])


def test_results_without_names_belong_to_the_others() -> None:
    results = [trial("t", 0, 1.0, model="a", agent="mine"), trial("t", 1, 1.0, model=None, agent="unknown")]
    summary = summarise(results, ["t"], [0, 1])
    assert (summary.model, summary.agent) == ("a", "mine")


OUTAGE = [
    trial(task, seed, None if seed == 2 and t < 5 else float(t < 4), error=failure() if seed == 2 and t < 5 else None)
    for seed in range(3)
    for t, task in enumerate(SIX)
]


def test_an_outage_is_no_spread_and_its_seed_is_noted() -> None:
    summary = summarise(OUTAGE, SIX, [0, 1, 2])
    assert summary.score_lines[:2] == (
        "score 44.4 ± 38.5 % "
        "(sample std over 3 seeds; 66.7 ± 0.0 % over the 2 completed; coverage 13/18; unscored = 0)",
        "score over scored trials only 66.7 ± 0.0 % "
        "(13 of 18 trials; every task weighs the same; 95 % interval 8.9 to 99.2 %)",
    )
    assert "\nover seeds: 66.7 66.7 0.0* % (* some trials have no verdict); sample std expected" in printed(summary)
    assert "\nnote: unevenly spread: 5 of 5 unscored trials at seed 2\n" in printed(summary)
    even = [
        trial(t, s, None if t == SIX[s] else 1.0, error=failure() if t == SIX[s] else None)
        for t in SIX
        for s in range(3)
    ]
    assert "unevenly" not in printed(summarise(even, SIX, [0, 1, 2]))


def test_tasks_that_never_had_a_verdict_are_named() -> None:
    results = [trial("a", seed, 1.0) for seed in (0, 1)] + [trial("b", seed, None, error=failure()) for seed in (0, 1)]
    assert "\nnote: no verdict at any seed: 1 task (b)\n" in printed(summarise(results, ["a", "b"], [0, 1]))


def test_the_score_line_notes_that_no_seed_is_completed() -> None:
    results = [trial("a", 0, 1.0), trial("b", 1, 1.0)]
    lines = summarise(results, ["a", "b"], [0, 1]).score_lines
    assert lines[0].startswith("score so far 50.0 ± 0.0 % (sample std over 2 seeds, none completed; incomplete:")
    assert lines[1].startswith("score over scored trials only 100.0 % (2 of 4 trials;")


def test_the_text_contains_model_agent_start_and_uncertainty() -> None:
    begun = datetime(2026, 11, 23, 1, 29, tzinfo=UTC)
    results = [
        each.model_copy(update={"started_at": begun, "model": "m", "agent": "a"}) for each in eighteen([4, 4, 3])
    ]
    text = printed(summarise(results, SIX, [0, 1, 2]))
    assert "\nmodel m, agent a, begun 2026-11-23 01:29 UTC, 6 tasks, 3 seeds\nscore 61.1" in text
    assert "\nsolved 11/18 trials; pass@1 61.1, pass@2 66.7, pass@3 66.7, pass^2 55.6, pass^3 50.0 %\n" in text
    assert "\nover seeds: 66.7 66.7 50.0 %; sample std expected if seeds are paired at random 9.6 %\n" in text
    assert "\nover tasks: standard error 20.0 %, 95 % interval 9.3 to 97.7 % (Korn-Graubard)\n" in text


def test_results_of_later_attempts_are_marked() -> None:
    results = [trial("t", 0, 1.0, attempt=2), trial("t", 1, None, error=failure(), attempt=3), trial("t", 2, 0.0)]
    text = printed(summarise(results, ["t"], [0, 1, 2]))
    assert " 1' ERR' 0 " in text and "' after another attempt\n" in text
    assert "another attempt" not in printed(summarise(results[2:], ["t"], [2]))


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0, "0.0"), (1, "100.0"), (2999 / 3000, "99.97"), (1 / 3000, "0.03"), (0.9996, "99.96"), (0.99996, "99.996"),
        (1 - 1e-9, "99.999"), (1e-9, "1e-07"), (0.5, "50.0"), (1.5, "150.0"), (0.9994, "99.9"),
    ],
)  # fmt: skip
def test_nearly_all_is_not_all_and_hardly_any_is_not_none(fraction: float, text: str) -> None:
    assert percent(fraction) == text


def test_a_plan_that_repeats_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="planned twice"):
        summarise([], ["t", "t"], [0])


def test_rows_distinguish_pass_partial_fail_error_and_missing() -> None:
    results = [
        trial("t", 0, 1.0, outcome=Outcome.SUBMITTED, steps=2, timings=Timings(wall_sec=10)),
        trial("t", 1, 0.5, outcome=Outcome.STEP_LIMIT, steps=4, timings=Timings(wall_sec=20)),
        trial("t", 2, 0.0, outcome=Outcome.SUBMITTED, steps=6, timings=Timings(wall_sec=30)),
        trial("t", 3, None, error=failure()),
        trial("t", 4, None),
    ]
    [row] = summarise(results, ["t"], range(6)).tasks
    wanted = [Status.PASS, Status.PARTIAL, Status.FAIL, Status.ERROR, Status.ERROR, Status.MISSING]
    assert [cell.status for cell in row.cells] == wanted
    assert [cell.error for cell in row.cells] == [None, None, None, "EndpointDown", NO_VERDICT, None]
    assert (row.mean_reward, row.solved, row.scored) == (0.25, 1, 3)
    assert (row.mean_steps, row.mean_wall_sec) == (2.4, 12.0)
    assert row.outcomes == {"submitted": 2, "step_limit": 1}


def test_errors_are_grouped_by_stage_type_and_blame() -> None:
    results = [
        trial("a", 0, None, error=failure("first")),
        trial("b", 0, None, error=failure("second", retryable=False)),
        trial("c", 0, None, error=failure("third", stage=Stage.VERIFIER)),
    ]
    groups = summarise(results, ["a", "b", "c"], [0]).errors
    assert [(g.stage, g.count, g.retryable) for g in groups] == [(Stage.AGENT, 2, 1), (Stage.VERIFIER, 1, 1)]
    assert (groups[0].example_message, groups[0].example_trial) == ("first", "a seed 0")


def test_time_is_split_without_counting_anything_twice() -> None:
    timings = Timings(
        queue_sec=50,
        sandbox_sec=2,
        agent_sec=20,
        model_sec=12,
        command_sec=5,
        verifier_sec=6,
        teardown_sec=1,
        wall_sec=30,
    )
    time = summarise([trial("t", 0, 1.0, timings=timings)], ["t"], [0]).time
    parts = {"model": 12, "waiting": 0, "command": 5, "verifier": 6, "sandbox": 2, "teardown": 1, "other": 4}
    assert time.parts() == parts
    assert (time.total_sec, time.queue_sec) == (30, 50)


def test_waiting_for_an_endpoint_is_no_time_of_the_model() -> None:
    timings = Timings(agent_sec=100, model_sec=90, waited_sec=80, command_sec=5, wall_sec=100)
    time = summarise([trial("t", 0, 1.0, timings=timings)], ["t"], [0]).time
    assert (time.model_sec, time.waiting_sec, time.command_sec, time.total_sec) == (10, 80, 5, 100)
    # What the endpoint cannot have been waited for was waited for the engine.
    timings = Timings(agent_sec=100, model_sec=10, waited_sec=80, command_sec=85, wall_sec=100)
    time = summarise([trial("t", 0, 1.0, timings=timings)], ["t"], [0]).time
    assert (time.model_sec, time.waiting_sec, time.command_sec, time.total_sec) == (0, 80, 15, 100)


def test_the_summary_counts_replies_by_server_and_cached_prompt_tokens():
    results = [
        trial("t", 0, 1.0, usage=Usage(prompt_tokens=80, cached_tokens=60), replies_from={"http://b/v1": 1200}),
        trial("t", 1, 1.0, usage=Usage(prompt_tokens=20), replies_from={"http://b/v1": 1, "http://a/v1": 2}),
    ]
    summary = summarise(results, ["t"], [0, 1])
    assert summary.replies_from == {"http://a/v1": 2, "http://b/v1": 1201}
    lines = printed(summary).splitlines()
    assert "tokens: 100 prompt (60 cached, 60 %), 0 completion" in lines
    assert "replies: 2 from http://a/v1, 1,201 from http://b/v1" in lines


def test_tokens_that_the_server_did_not_count_are_unknown_and_not_0() -> None:
    silent, half = Usage(uncounted=2), Usage(prompt_tokens=50, completion_tokens=5, uncounted=1)
    summary = summarise([trial("t", 0, 1.0, usage=silent)], ["t"], [0])
    assert "tokens: not counted" in printed(summary).splitlines()
    summary = summarise([trial("t", 0, 1.0, usage=silent), trial("t", 1, 1.0, usage=half)], ["t"], [0, 1])
    assert summary.usage == Usage(prompt_tokens=50, completion_tokens=5, uncounted=3)
    assert "tokens: at least 50 prompt, 5 completion; replies not counted: 3" in printed(summary).splitlines()


def test_usage_is_summed_over_counted_trials() -> None:
    results = [trial("t", seed, 1.0, usage=Usage(prompt_tokens=5, completion_tokens=2)) for seed in (0, 1)]
    assert summarise(results, ["t"], [0, 1]).usage == Usage(prompt_tokens=10, completion_tokens=4)


def test_overrides_are_listed_below_the_score_lines() -> None:
    results, words = eighteen([4, 4, 3]), ("every timeout x2", "4 cpus instead of each task's")
    summary = summarise(results, SIX, [0, 1, 2], KnownAboutRun(overrides=words))
    lines = printed(summary).splitlines()
    last = max(place for place, line in enumerate(lines) if line.startswith("score"))
    assert lines[last + 1] == "overridden: every timeout x2, 4 cpus instead of each task's"
    assert summary.as_json()["overrides"] == list(words)
    assert "overridden" not in printed(summarise(results, SIX, [0, 1, 2]))


def test_missing_limits_are_listed_below_the_score() -> None:
    summary = summarise(eighteen([4, 4, 3]), SIX, [0, 1, 2], KnownAboutRun(lacking_limits=["a: memory not in force"]))
    assert any("a: memory not in force" in line for line in printed(summary).splitlines())
    assert summary.as_json()["lacking_limits"] == ["a: memory not in force"]


def test_the_json_form_survives_json() -> None:
    results = [*eighteen([4, 4, 3]), trial("late", 0, None, error=failure())]
    data = summarise(results, [*SIX, "late"], [0, 1, 2]).as_json()
    assert json.loads(json.dumps(data)) == data
    assert data["score"]["pass_at_k"].keys() == {"1", "2", "3"}
    assert data["tasks"][0]["cells"][0]["status"] == "pass"
    assert data["score_line"].startswith("score so far 52.4 ±")
    assert summarise([], ["t"], [0]).as_json()["score"] is None


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("width", [20, 80, 200])
def test_the_score_line_is_printed_whole_at_any_width(width: int, terminal: bool) -> None:
    summary = summarise(eighteen([4, 4, 3])[1:], SIX, [0, 1, 2])
    lines = printed(summary, width, terminal=terminal).splitlines()
    assert [line for line in lines if line.startswith("score")] == list(summary.score_lines)


def test_piped_output_has_no_colours_and_tables_of_at_most_100_columns() -> None:
    text = printed(summarise(eighteen([4, 4, 3]), SIX, [0, 1, 2]), width=80)
    assert "\x1b" not in text
    assert text.replace("±", "+").isascii()
    table = text[: text.index("by seed: 1 solved")]
    assert max(map(len, table.splitlines())) <= 100
    assert any(line.split()[:6] == ["task-3", "0.67", "2/3", "1", "1", "0"] for line in table.splitlines())


def test_errors_are_printed_apart_and_cannot_forge_output() -> None:
    message = "[bold]x[/bold] :smile:\n\x1b[2Jscore 100 %\nscore 100.0 %"
    summary = summarise([trial("t", 0, None, error=failure(message))], ["t"], [0])
    text = printed(summary, terminal=True)
    assert "1 x EndpointDown (stage agent, blame endpoint, 1 retryable)" in text
    assert "[bold]x[/bold] :smile: \\u001b[2Jscore 100 %" in text
    assert [line for line in text.splitlines() if line.startswith("score")] == list(summary.score_lines)


def test_a_console_without_unicode_does_not_crash() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    render(summarise(eighteen([4, 4, 3]), SIX, [0, 1, 2]), Console(file=out, width=100))
    out.flush()
    assert b"score 61.1 \\xb1 9.6 %" in raw.getvalue()


def test_long_text_is_cut() -> None:
    assert plain("x" * 1000, limit=10) == "xxxxxxx..."


def test_flagged_trials_are_counted_and_shown_a_line_each() -> None:
    flagged = Integrity(tamper=("system-replaced: /usr/bin/bash is\x1b[2J odd", "hosts: x"), repairs=("dpkg: mended",))
    weak = Integrity(tamper=("tests-touched: /tests/x was written",), regrades=1)
    doubtful = Integrity(remarks=("tool-failure: a download failed",))
    results = [
        trial("a", 0, 1.0, integrity=weak),
        trial("b", 0, 1.0, integrity=flagged),
        trial("c", 0, 0.0, integrity=doubtful),
        *(trial(f"d{number}", 0, 1.0, integrity=flagged) for number in range(20)),
    ]
    summary = summarise(results, [result.task for result in results], [0])
    counts = summary.counts
    assert (counts.flagged, counts.weakly_flagged, counts.repaired, counts.regraded) == (21, 1, 21, 1)
    assert (counts.remarked, len(summary.flags)) == (1, 22)
    assert summary.as_json()["flags"][-1]["is_weak"] is True
    text = printed(summary, 200)
    assert "signs of tampering (scored as they are): 21 trials, 1 more with weak ones" in text
    assert "b seed 0, reward 1: system-replaced: /usr/bin/bash is" in text
    assert "(and 1 more)" in text and "\x1b" not in text
    assert "... and 12 more trials" in text
    assert "note: containers repaired before the tests: 21\nnote: verifiers run again: 1\n" in text
    assert "note: zeros with a failed tool and no sign of a test in the output: 1\n" in text


def test_metrics_have_a_mean_over_the_tasks_that_report_them() -> None:
    told = [(0.5, 10.0), (0.75, 30.0)]
    results = [
        trial("measured", seed, accuracy, metrics={"accuracy": accuracy, "speed": speed})
        for seed, (accuracy, speed) in enumerate(told)
    ]
    results += [trial("plain", 0, 1.0), trial("plain", 1, None, error=failure())]
    summary = summarise(results, ["measured", "plain"], [0, 1])
    assert summary.metric_lines == ("metric speed 20 ± 14 (1 task, 2 trials)",)
    assert summary.as_json()["metrics"] == [
        {"name": "speed", "mean": 20.0, "std": pytest.approx(14.142, abs=1e-3), "tasks": 1, "trials": 2}
    ]
    assert "\nmetric speed 20 " in printed(summary)


def test_a_trial_without_the_number_counts_0_and_one_seed_has_no_std() -> None:
    results = [trial("a", 0, 1.0, metrics={"speed": 4.0}), trial("b", 0, 1.0, metrics={"speed": 8.0, "size": 6.0})]
    assert summarise(results, ["a", "b"], [0]).metric_lines == (
        "metric size 6 (1 task, 1 trial)",
        "metric speed 6 (2 tasks, 2 trials)",
    )
    at_two_seeds = [*results, trial("a", 1, None, error=failure()), trial("b", 1, 1.0)]
    assert summarise(at_two_seeds, ["a", "b"], [0, 1]).metrics[1].mean == 3.0


def test_too_large_numbers_are_no_metric() -> None:
    with pytest.raises(ValueError, match="must be finite numbers"):
        trial("a", 0, 1.0, metrics={"speed": 1e300})
