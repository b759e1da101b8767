"""Merging shards: the result is what one process would have written; what does not fit is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compared_runs import store_run
from hypothesis import given
from hypothesis import strategies as st
from run_plans import a_plan

from reports.report import write_report
from tbench.agents.trial_agent import NopAgent
from tbench.api.stored_runs import compared_runs, comparison_doubts, read_runs
from tbench.config.document import RunPlan
from tbench.config.values import Shard, validate_shard
from tbench.errors import UsageError
from tbench.events import Events
from tbench.runs.plan import own_shard, plan_trials
from tbench.runs.resume import EarlierRun
from tbench.runs.run import execute_run
from tbench.sandbox.fake import FakeBackend
from tbench.shards import WeighedTrial, divide, mean_durations, merge, plan_shard
from tbench.storage.read_run import read_run
from tbench.storage.run_files import trial_directory
from tbench.storage.run_store import RunStore
from tbench.storage.summaries import make_summary
from tbench.storage.trial_notes import append_note, new_note
from tbench.tasks.sources import TaskSet, read_tasks

# Dividing trials among shards: alike on every machine, no trial twice, and balanced.

seconds = st.one_of(st.sampled_from([0.0, 900.0, 3600.0]), st.floats(0, 1e5))
trials = st.lists(
    st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 9), seconds), max_size=60, unique_by=lambda each: each[:2]
).map(lambda drawn: [WeighedTrial(*each) for each in drawn])


@given(trials, st.integers(1, 12), st.randoms())
def test_each_trial_is_in_one_part_whatever_the_order_in_which_they_are_given(
    drawn: list[WeighedTrial], count: int, rng: random.Random
) -> None:
    parts = divide(drawn, count)
    assert len(parts) == count
    assert sorted(each for part in parts for each in part) == sorted(drawn)
    shuffled = rng.sample(drawn, len(drawn))
    assert divide(shuffled, count) == parts


@given(trials, st.integers(1, 12))
def test_two_parts_differ_by_no_more_than_one_trial(drawn: list[WeighedTrial], count: int) -> None:
    loads = [sum(each.seconds for each in part) for part in divide(drawn, count)]
    assert max(loads) - min(loads) <= max((each.seconds for each in drawn), default=0.0) + 1e-6


@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 8))
def test_trials_of_equal_length_are_spread_in_equal_numbers(tasks: int, seeds: int, count: int) -> None:
    for length in (0.0, 900.0):
        drawn = [WeighedTrial(f"t{task}", seed, length) for task in range(tasks) for seed in range(seeds)]
        sizes = [len(part) for part in divide(drawn, count)]
        assert max(sizes) - min(sizes) <= 1


def test_the_seeds_of_a_task_do_not_keep_together() -> None:
    drawn = [WeighedTrial(f"t{task:02}", seed, 900.0) for task in range(89) for seed in range(5)]
    having = [{each.task for each in part} for part in divide(drawn, 5)]
    assert min(map(len, having)) > 50


def test_shards_of_one_division_have_its_digest_and_others_do_not() -> None:
    drawn = [WeighedTrial("a", 0, 5.0), WeighedTrial("a", 1, 5.0), WeighedTrial("b", 0, 7.0)]
    first, second = (plan_shard(drawn, Shard(index, 2)) for index in (0, 1))
    assert first.digest == second.digest == plan_shard(drawn[::-1], Shard(0, 2)).digest
    assert sorted((*first.trials, *second.trials)) == [("a", 0), ("a", 1), ("b", 0)]
    assert plan_shard(drawn, Shard(0, 3)).digest != first.digest
    assert plan_shard([*drawn[:2], WeighedTrial("b", 0, 8.0)], Shard(0, 2)).digest != first.digest


@pytest.mark.parametrize("text", ["4/4", "1", "1/0", "-1/4", "1/4 ", "a/b", "0/1000000", "", "1/2/3", "٠/٤"])
def test_a_directory_that_is_not_a_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be I/N with I from 0 to N-1"):
        validate_shard(text)


def test_a_shard_has_one_spelling() -> None:
    assert validate_shard("00/04") == "0/4" and validate_shard(None) is None


# How long trials take, as earlier runs tell.


def a_run(path: Path, seconds: dict[str, list[float]], **more: object) -> Path:
    store_run(path, {task: [1.0] * len(each) for task, each in seconds.items()})
    lines = [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()]
    for line in lines:
        line["timings"]["wall_sec"] = seconds[line["task"]][line["seed"]]
        line.update(more)
    (path / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_the_mean_is_over_all_trials_of_all_runs(tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", {"a": [10.0, 20.0], "b": [1.0, 1.0]})
    other = a_run(tmp_path / "other", {"a": [60.0], "elsewhere": [5.0]})
    assert mean_durations([one, other], ["a", "b", "never run"]) == {"a": 30.0, "b": 1.0}
    assert mean_durations([], ["a"]) == {}


@pytest.mark.parametrize("more", [{"human_touched": True}, {"reward": None}, {"task": "of another dataset"}])
def test_a_run_without_durations_of_the_tasks_is_refused(tmp_path: Path, more: dict[str, object]) -> None:
    run = a_run(tmp_path / "one", {"a": [10.0]}, **more)
    with pytest.raises(UsageError, match=r"^--durations .*one: has no durations for the 1 tasks"):
        mean_durations([run], ["a"])


def test_a_path_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such run directory"):
        mean_durations([tmp_path / "none"], ["a"])


COUNT, SEEDS = 3, 2


@pytest.fixture
def tasks(make_task: Any) -> TaskSet:
    limits = {"alpha": 600, "beta": 60, "gamma": 60, "delta": 30}
    made = [make_task(name, toml=f"[agent]\ntimeout_sec = {sec}\n") for name, sec in limits.items()]
    return read_tasks(str(made[0].parent))


def plan_of(tasks: TaskSet, shard: str | None, run: str, **settings: Any) -> RunPlan:
    plan = a_plan(run, seeds=tuple(range(SEEDS)), agent="nop", shard=shard, **settings)
    config = plan.config.with_values(tasks={"seeds": SEEDS})
    own = own_shard(tasks, plan.seeds, config.schedule.shard, {})
    return plan.model_copy(update={"config": config, "shard": own})


async def a_shard(directory: Path, tasks: TaskSet, shard: str | None, **settings: Any) -> Path:
    earlier = EarlierRun.read(directory) if directory.exists() else None  # noqa: ASYNC240 - a test
    plan = plan_of(tasks, shard, directory.name, **settings)
    await execute_run(plan, tasks, directory, NopAgent, Events(), backend=FakeBackend(), earlier=earlier)
    return directory


@pytest.fixture
async def shards(tmp_path: Path, tasks: TaskSet) -> list[Path]:
    return [await a_shard(tmp_path / f"part-{index}", tasks, f"{index}/{COUNT}") for index in range(COUNT)]


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


async def test_the_notes_of_all_shards_are_kept(tmp_path: Path, shards: list[Path]) -> None:
    noted = []
    for shard in shards:
        trial = read_run(shard).results[0]
        noted.append((trial.task, trial.seed))
        append_note(shard, new_note(*noted[-1], trial.trial, ("slow",), ""))
    merge(shards, tmp_path / "whole")
    assert sorted(read_run(tmp_path / "whole").tags) == sorted(noted)


async def test_the_whole_has_what_a_run_without_shards_has(tmp_path: Path, tasks: TaskSet, shards: list[Path]) -> None:
    await a_shard(tmp_path / "one", tasks, None)
    merge(shards[::-1], tmp_path / "whole")
    one, whole = read_run(tmp_path / "one"), read_run(tmp_path / "whole")
    assert {each.trial: each.reward for each in whole.results} == {each.trial: each.reward for each in one.results}
    assert {each.run for each in whole.results} == {"whole"} and not whole.notes
    assert one.document is not None and whole.document is not None
    different = {"run", "created_at", "ended_at"}
    assert whole.document.model_dump(exclude=different) == one.document.model_dump(exclude=different)
    assert whole.document.status == "finished"
    files = [
        {str(file.relative_to(run)) for file in (run / "trials").rglob("*") if file.is_file()}
        for run in (tmp_path / "one", tmp_path / "whole")
    ]
    assert files[0] == files[1]
    result = json.loads((tmp_path / "whole" / "trials" / "alpha" / "seed-1" / "result.json").read_text())
    assert result["run"] == "whole"
    assert make_summary(whole).score == make_summary(one).score is not None
    journal = [json.loads(line) for line in (tmp_path / "whole" / "journal.jsonl").read_text().splitlines()]
    assert [each for each in journal if each["kind"] in ("run_started", "run_ended")] == [journal[0], journal[-1]]
    assert (journal[0]["trials"], journal[-1]["interrupted"]) == (8, False)
    assert sum(each["kind"] == "trial_finished" for each in journal) == 8


def test_a_shard_has_no_score_of_its_own_and_says_what_it_is(shards: list[Path]) -> None:
    summary = make_summary(read_run(shards[0]))
    assert summary.score is None and summary.shard is not None
    assert (summary.shard.name, summary.shard.whole) == ("0/3", 8)
    assert summary.counts.planned == summary.shard.trials == summary.counts.scored and summary.counts.missing == 0
    assert summary.score_line.startswith(f"no score of its own: shard 0/3 has {summary.shard.trials} of 8 trials")


def test_a_shard_is_compared_only_on_request(shards: list[Path]) -> None:
    runs = read_runs(shards[:2])
    (one, other) = comparison_doubts(shards[:2], runs, compared_runs(shards[:2], runs))
    assert one == f"{shards[0]}: is shard 0/3 of a run; combine the shards with tbench merge"
    assert other.startswith(f"{shards[1]}: is shard 1/3")


def test_the_page_about_a_shard_says_why_it_has_no_score(shards: list[Path], tmp_path: Path) -> None:
    write_report(shards[0], tmp_path / "page.html")
    said = (tmp_path / "page.html").read_text()
    assert "This is a shard of a run: it has only some of the tasks at each seed" in said
    assert "No trial has a verdict" not in said


def test_trials_have_the_ids_that_they_have_without_shards(tasks: TaskSet) -> None:
    whole = {each.trial for each in plan_trials(tasks, plan_of(tasks, None, "r"))}
    parts = [{each.trial for each in plan_trials(tasks, plan_of(tasks, f"{index}/3", "r"))} for index in range(3)]
    assert set.union(*parts) == whole and sum(map(len, parts)) == len(whole)


async def test_an_empty_shard_is_a_run_of_nothing(tmp_path: Path, tasks: TaskSet) -> None:
    shards = [await a_shard(tmp_path / f"part-{index}", tasks, f"{index}/9") for index in range(9)]
    empty = [each for each in shards if not read_run(each).results]
    assert len(empty) == 1 and read_run(empty[0]).document.status == "finished"  # type: ignore[union-attr]
    merge(shards, tmp_path / "whole")
    assert make_summary(read_run(tmp_path / "whole")).counts.scored == 8


async def test_missing_shards_are_named_and_may_be_run_later(
    tmp_path: Path, tasks: TaskSet, shards: list[Path]
) -> None:
    with pytest.raises(UsageError, match=r"^shard 1/3 is missing; "):
        merge([shards[0], shards[2]], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
    merge([shards[0], shards[2]], tmp_path / "whole", incomplete=True)
    partial = read_run(tmp_path / "whole")
    assert partial.document is not None and partial.document.status == "interrupted"
    assert "incomplete" in make_summary(partial).score_line
    await a_shard(tmp_path / "whole", tasks, None)
    whole = read_run(tmp_path / "whole")
    assert len(whole.results) == 8 == len({each.trial for each in whole.results})


def test_a_trial_without_a_result_is_named(tmp_path: Path, shards: list[Path]) -> None:
    lines = (shards[0] / "results.jsonl").read_text().splitlines(keepends=True)
    lost = json.loads(lines[0])
    (shards[0] / "results.jsonl").write_text("".join(lines[1:]))
    (trial_directory(shards[0], lost["task"], lost["seed"]) / "result.json").unlink()
    with pytest.raises(
        UsageError, match=f"1 trial of shard 0/3 without a result: {lost['task']} seed {lost['seed']}; "
    ):
        merge(shards, tmp_path / "whole")
    merge(shards, tmp_path / "whole", incomplete=True)
    assert make_summary(read_run(tmp_path / "whole")).counts.missing == 1


def test_a_shard_that_is_given_twice_is_named(tmp_path: Path, shards: list[Path]) -> None:
    shutil.copytree(shards[0], tmp_path / "copy")
    with pytest.raises(UsageError, match=r"copy: shard 0/3 is given twice, also as .*part-0"):
        merge([*shards, tmp_path / "copy"], tmp_path / "whole")


async def test_shards_of_other_settings_tasks_seeds_or_numbers_are_refused_by_name(
    tmp_path: Path, tasks: TaskSet, shards: list[Path], make_task: Any
) -> None:
    others = {
        "verify.mode": await a_shard(tmp_path / "settings", tasks, "1/3", verify="isolated"),
        'shards: 3 → 4': await a_shard(tmp_path / "number", tasks, "1/4"),
    }  # fmt: skip
    make_task("alpha", toml="[agent]\ntimeout_sec = 601\n")
    changed = read_tasks(str(tasks.tasks[0].path.parent))
    others["tasks.alpha"] = await a_shard(tmp_path / "task", changed, "1/3")
    for what, other in others.items():
        with pytest.raises(UsageError, match=rf"{other.name}: is not a shard of the same run as .*part-0: .*{what}"):
            merge([shards[0], other, shards[2]], tmp_path / "whole")


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("seeds", [0, 2], "seeds"),
        ("tbench_version", "0.0.9", "tbench"),
        ("shard", {"index": 1, "count": 3, "digest": "other", "trials": []}, "divided differently"),
        ("shard", None, "is not a shard of a run"),
    ],
)
def test_a_document_that_does_not_fit_is_refused(
    tmp_path: Path, shards: list[Path], key: str, value: object, said: str
) -> None:
    edit(shards[1] / "run.json", lambda content: content.update({key: value}))
    with pytest.raises(UsageError, match=said):
        merge(shards, tmp_path / "whole")


def test_trials_of_two_shards_or_of_none_are_refused_by_name(tmp_path: Path, shards: list[Path]) -> None:
    first = json.loads((shards[0] / "run.json").read_text())["shard"]["trials"][0]
    named = f"{first[0]} seed {first[1]}"
    foreign = (shards[0] / "results.jsonl").read_text().splitlines(keepends=True)
    own = (shards[1] / "results.jsonl").read_text()
    (shards[1] / "results.jsonl").write_text(own + "".join(foreign))
    with pytest.raises(UsageError, match="part-1: holds results of trials that are not its own: "):
        merge(shards, tmp_path / "whole")
    (shards[1] / "results.jsonl").write_text(own)
    edit(shards[1] / "run.json", lambda content: content["shard"]["trials"].append(first))
    with pytest.raises(UsageError, match=f"part-1: shares a trial with .*part-0: {named}"):
        merge(shards, tmp_path / "whole")
    edit(shards[1] / "run.json", lambda content: content["shard"]["trials"].pop())
    edit(shards[0] / "run.json", lambda content: content["shard"]["trials"].pop(0))
    (shards[0] / "results.jsonl").write_text(
        "".join(line for line in foreign if [json.loads(line)["task"], json.loads(line)["seed"]] != first)
    )
    with pytest.raises(UsageError, match=f"trials that belong to no shard: {named}"):
        merge(shards, tmp_path / "whole")


def test_a_shard_under_way_is_waited_for(tmp_path: Path, shards: list[Path]) -> None:
    store = RunStore.open(shards[1])
    try:
        with pytest.raises(UsageError, match="part-1: this shard is still running"):
            merge(shards, tmp_path / "whole")
    finally:
        store.close()


async def test_tasks_may_be_at_different_paths_on_each_machine(
    tmp_path: Path, tasks: TaskSet, shards: list[Path]
) -> None:
    moved = shutil.copytree(tasks.tasks[0].path.parent, tmp_path / "mounted")
    shutil.rmtree(shards[1])
    edited = plan_of(read_tasks(str(moved)), "1/3", "part-1", source=str(moved))
    await execute_run(edited, read_tasks(str(moved)), shards[1], NopAgent, Events(), backend=FakeBackend())
    merge(shards, tmp_path / "whole")
    assert make_summary(read_run(tmp_path / "whole")).counts.scored == 8


def test_nothing_is_overwritten(tmp_path: Path, shards: list[Path]) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "mine").touch()
    with pytest.raises(UsageError, match="not empty"):
        merge(shards, tmp_path / "whole")


def test_engines_and_servers_of_all_shards_are_kept(tmp_path: Path, shards: list[Path]) -> None:
    for index, shard in enumerate(shards):
        edit(shard / "run.json", lambda content, index=index: content["engine"].update(cpus=index))  # type: ignore[misc]
        edit(
            shard / "run.json",
            lambda content, index=index: content["locked"].update(base_url=f"http://node{index}/v1"),  # type: ignore[misc]
        )
    merge(shards, tmp_path / "whole")
    document = read_run(tmp_path / "whole").document
    assert document is not None and [each["cpus"] for each in document.engine["shards"]] == [0, 1, 2]
    assert document.locked.endpoints == ("http://node0/v1", "http://node1/v1", "http://node2/v1")


def test_unhealthy_tasks_of_all_shards_are_named(tmp_path: Path, shards: list[Path]) -> None:
    edit(shards[1] / "run.json", lambda content: content.update(unhealthy={"beta": "nop passes"}))
    edit(shards[2] / "run.json", lambda content: content.update(unhealthy={"alpha": "oracle fails"}))
    merge(shards, tmp_path / "whole")
    document = read_run(tmp_path / "whole").document
    assert document is not None and document.unhealthy == {"beta": "nop passes", "alpha": "oracle fails"}


def test_tasks_of_all_shards_are_healthy_where_each_has_measured_its_own(tmp_path: Path, shards: list[Path]) -> None:
    for shard, found in zip(shards, ({}, None, {}), strict=True):
        edit(shard / "run.json", lambda content, found=found: content.update(unhealthy=found))  # type: ignore[misc]
    merge(shards, tmp_path / "whole")
    edit(shards[1] / "run.json", lambda content: content.update(unhealthy={}))
    merge(shards, tmp_path / "measured")
    documents = [read_run(tmp_path / name).document for name in ("whole", "measured")]
    assert [each.unhealthy for each in documents if each is not None] == [None, {}]


async def test_a_shard_goes_on_as_itself_only(
    tmp_path: Path, tasks: TaskSet, shards: list[Path], make_task: Any
) -> None:
    from tbench.runs.plan import check_same_run

    earlier = EarlierRun.read(shards[0])
    plan = plan_of(tasks, "0/3", "part-0").model_copy(update={"shard": earlier.document.shard})
    check_same_run(earlier, plan, tasks)
    with pytest.raises(UsageError, match="cannot be resumed as another shard: it was started as shard 0/3"):
        check_same_run(earlier, plan_of(tasks, "1/3", "part-0"), tasks)
    with pytest.raises(UsageError, match="started as shard 0/3"):
        check_same_run(earlier, plan_of(tasks, None, "part-0"), tasks)
    make_task("epsilon")
    more = read_tasks(str(tasks.tasks[0].path.parent))
    with pytest.raises(UsageError, match="with more tasks or seeds, because it is a shard"):
        check_same_run(earlier, plan, more)
