"""Runs over machines that are lost, come back, join and leave; there is no engine here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fleet_machines import FakeMachine, FleetRun, Works, until

from tbench import Runner
from tbench.config.settings import RunConfig
from tbench.errors import EngineUnavailable, TrialError, UsageError
from tbench.fleet.fleet import MAX_FAILURES, Fleet
from tbench.results import ErrorInfo
from tbench.rewards.executed import Live, agent_reward
from tbench.runs.admission import MAX_LOST_MACHINES
from tbench.sandbox.backend import open_backend
from tbench.tasks.sources import TaskSet, read_tasks

MakeTask = Any
FULL = "no space left on device"


@pytest.fixture
def tasks(make_task: MakeTask) -> TaskSet:
    paths = [make_task(name) for name in ("alpha", "beta", "gamma", "delta")]
    return read_tasks(str(paths[0].parent))


@pytest.fixture
def large_and_small(make_task: MakeTask) -> TaskSet:
    """The large one comes first."""
    toml = "[environment]\ncpus = {}\nmemory_mb = 256\nallow_internet = false\n"
    paths = [make_task("a-large", toml=toml.format(4)), make_task("small", toml=toml.format(1))]
    return read_tasks(str(paths[0].parent))


# -- where trials are ------------------------------------------------------------------------------


async def test_trials_are_on_all_machines_and_results_and_run_json_name_them(tasks: TaskSet, tmp_path: Path) -> None:
    run = FleetRun(tasks, tmp_path / "run", [FakeMachine("a"), FakeMachine("b", version="2")])
    outcome = await run.end()
    assert [result.reward for result in outcome.results] == [1.0] * 4
    assert sorted(result.machine or "" for result in outcome.results) == ["a", "a", "b", "b"]
    engine = run.document["engine"]
    assert [machine["name"] for machine in engine["machines"]] == ["a", "b"]
    assert engine["cpus"] == 4 and engine["machines"][1]["version"] == "2"


async def test_images_are_got_on_all_machines_before_the_first_trial(tasks: TaskSet, tmp_path: Path) -> None:
    a, b = FakeMachine("a"), FakeMachine("b")
    run = FleetRun(tasks, tmp_path / "run", [a, b], prefetch=True, drop_images=True)
    await run.end()
    assert sorted(a.backend.prefetched) == sorted(b.backend.prefetched) == ["alpha", "beta", "delta", "gamma"]
    assert sorted(a.backend.dropped) == sorted(b.backend.dropped) == ["alpha", "beta", "delta", "gamma"]


# -- machines that are lost ------------------------------------------------------------------------


async def test_the_trials_of_a_machine_that_is_lost_get_their_verdicts_elsewhere(
    tasks: TaskSet, tmp_path: Path
) -> None:
    a, b = FakeMachine("a"), FakeMachine("b", lets_go=False)
    run = FleetRun(tasks, tmp_path / "run", [a, b], retries=0)
    run.begin()
    await until(lambda: len(b.begun) == 2)
    b.wrong = "no route to host"
    outcome = await run.end()
    assert {name: line["reward"] for name, line in run.final.items()} == dict.fromkeys(
        ("alpha 0", "beta 0", "gamma 0", "delta 0"), 1.0
    )
    assert {line["machine"] for line in run.final.values()} == {"a"}
    lost = [line for line in run.lines if not line["final"]]
    assert [(line["machine"], line["reward"], line["attempt"]) for line in lost] == [("b", None, 1)] * 2
    assert {line["error"]["type"] for line in lost} == {"engine_unreachable"}
    assert {line["error"]["message"] for line in lost} == {"b: no route to host"}
    assert b.done == ["given up", "closed"]
    assert "b: is lost: no route to host; 2 trials on it to be continued elsewhere" in run.notes
    assert not outcome.interrupted and outcome.stopped is None


async def test_a_loss_costs_no_retry_until_there_were_too_many(make_task: MakeTask, tmp_path: Path) -> None:
    a = FakeMachine("a", lets_go=False)
    tasks = read_tasks(str(make_task("alpha").parent))
    run = FleetRun(tasks, tmp_path / "run", [a], retries=0)
    running = run.begin()
    for number in range(1, MAX_LOST_MACHINES + 2):
        await until(lambda number=number: len(a.begun) == number)
        a.wrong = "unplugged"
        await until(lambda number=number: a.done.count("given up") == number)
        a.wrong = ""
    await running
    await run.end()
    assert [line["final"] for line in run.lines] == [False] * MAX_LOST_MACHINES + [True]
    assert (run.lines[-1]["reward"], run.lines[-1]["error"]["type"]) == (None, "engine_unreachable")


async def test_a_machine_that_is_silent_for_a_moment_keeps_its_trials_and_gets_no_others(
    tasks: TaskSet, tmp_path: Path
) -> None:
    a, b = FakeMachine("a", cpus=1), FakeMachine("b", cpus=3, lets_go=False)
    run = FleetRun(tasks, tmp_path / "run", [a, b], lost_after_sec=60.0)
    run.begin()
    await until(lambda: len(b.begun) == 3)
    b.wrong = "no answer"
    await until(lambda: not run.fleet.run_machines[1].takes_trials)
    assert run.fleet.run_machines[1].is_up
    b.wrong = ""
    await until(lambda: run.fleet.run_machines[1].takes_trials)
    b.lets_go.set()
    await run.end()
    assert [line["attempt"] for line in run.lines] == [1] * 4
    assert b.done == ["closed"]


async def test_a_machine_that_comes_back_is_cleaned_up_and_has_trials_again(tasks: TaskSet, tmp_path: Path) -> None:
    a, b = FakeMachine("a", cpus=1, lets_go=False), FakeMachine("b", lets_go=False)
    run = FleetRun(tasks, tmp_path / "run", [a, b])
    run.begin()
    await until(lambda: len(b.begun) == 2)
    b.wrong, b.left = "unplugged", 2
    await until(lambda: "given up" in b.done)
    b.lets_go.set()
    b.wrong = ""
    await until(lambda: len(b.begun) > 2)
    a.lets_go.set()
    await run.end()
    assert b.done == ["given up", "recovered", "closed"]
    assert "b: is back; removed 2 containers left on it" in run.notes
    assert all(line["reward"] == 1.0 for line in run.final.values()) and len(run.final) == 4


async def test_a_machine_that_answers_and_cannot_be_used_stays_away_and_says_why_once(
    tasks: TaskSet, tmp_path: Path
) -> None:
    a, b = FakeMachine("a", lets_go=False), FakeMachine("b", lets_go=False)
    b.cannot_recover = "its disk is gone"
    run = FleetRun(tasks, tmp_path / "run", [a, b])
    run.begin()
    await until(lambda: len(b.begun) == 2)
    b.wrong = "unplugged"
    await until(lambda: "given up" in b.done)
    b.wrong = ""
    words = "b: answers again, but cannot be used: its disk is gone"
    await until(lambda: words in run.notes)
    await asyncio.sleep(0.1)
    a.lets_go.set()
    await run.end()
    assert run.notes.count(words) == 1 and "recovered" not in b.done
    assert {line["machine"] for line in run.final.values()} == {"a"}


async def test_a_run_waits_for_its_only_machine_and_goes_on_when_it_is_back(tasks: TaskSet, tmp_path: Path) -> None:
    a = FakeMachine("a", lets_go=False)
    run = FleetRun(tasks, tmp_path / "run", [a])
    run.begin()
    await until(lambda: len(a.begun) == 2)
    a.wrong = "unplugged"
    await until(lambda: "given up" in a.done)
    a.lets_go.set()
    a.wrong = ""
    outcome = await run.end()
    assert [line["reward"] for line in run.final.values()] == [1.0] * 4 and not outcome.interrupted


async def test_a_run_whose_machines_are_all_away_for_long_stops_and_keeps_what_was_finished(
    tasks: TaskSet, tmp_path: Path
) -> None:
    a, b = FakeMachine("a", cpus=1), FakeMachine("b", cpus=1, lets_go=False)
    run = FleetRun(tasks, tmp_path / "run", [a, b], no_machine_sec=0.1)
    run.begin()
    await until(lambda: len(b.begun) == 1 and len(run.lines) == 3)
    b.wrong, a.wrong = "off", "no route to host"
    outcome = await run.end()
    assert outcome.stopped is not None
    assert outcome.stopped.startswith("no machine has been available for 0 s (a: no route to host; b: off")
    assert run.document["status"] == "stopped"
    rewards = sorted((line["reward"] for line in run.final.values()), key=str)
    assert rewards in ([1.0] * 3, [1.0] * 3 + [None])
    assert all(line["error"]["type"] == "engine_unreachable" for line in run.lines if line["reward"] is None)


async def test_a_fleet_that_stops_ends_its_run_with_the_reason(tasks: TaskSet, tmp_path: Path) -> None:
    a = FakeMachine("a", cpus=1, lets_go=False)
    run = FleetRun(tasks, tmp_path / "run", [a])
    run.begin()
    await until(lambda: a.begun)
    run.fleet.stop("the cluster is gone")
    outcome = await run.end()
    assert (outcome.stopped, run.document["status"]) == ("the cluster is gone", "stopped")
    assert [(line["final"], line["reward"]) for line in run.lines] == [(True, None)]
    assert run.notes.count("stopping: the cluster is gone; running trials finish first") == 1


async def test_a_run_that_is_cancelled_while_a_machine_is_lost_leaves_nothing(tasks: TaskSet, tmp_path: Path) -> None:
    a, b = FakeMachine("a", lets_go=False), FakeMachine("b", lets_go=False)
    run = FleetRun(tasks, tmp_path / "run", [a, b])
    running = run.begin()
    await until(lambda: len(a.begun) == len(b.begun) == 2)
    # In one turn of the loop: the trials on it are ended twice.
    run.fleet.leave(b, "unplugged")
    running.cancel()
    outcome = await run.end()
    assert outcome.interrupted and run.document["status"] == "interrupted"
    assert all(line["reward"] is None for line in run.lines)


async def test_a_run_that_is_cancelled_leaves_nothing_on_any_machine(tasks: TaskSet, tmp_path: Path) -> None:
    a, b = FakeMachine("a", lets_go=False), FakeMachine("b", lets_go=False)
    run = FleetRun(tasks, tmp_path / "run", [a, b])
    running = run.begin()
    await until(lambda: len(a.begun) == len(b.begun) == 2)
    running.cancel()
    outcome = await run.end()
    assert outcome.interrupted and run.lines == []
    assert len(a.backend.made) == len(b.backend.made) == 2


async def test_what_fits_only_a_machine_that_is_away_waits_for_it_in_nobodys_way(
    large_and_small: TaskSet, tmp_path: Path
) -> None:
    a, b = FakeMachine("a", cpus=1), FakeMachine("b", cpus=4, lets_go=False)
    run = FleetRun(large_and_small, tmp_path / "run", [a, b])
    run.begin()
    await until(lambda: b.begun == ["a-large"])
    b.wrong = "unplugged"
    await until(lambda: "given up" in b.done and "small" in a.begun)
    b.lets_go.set()
    b.wrong = ""
    await run.end()
    assert {name: line["machine"] for name, line in run.final.items()} == {"small 0": "a", "a-large 0": "b"}


async def test_what_fits_only_a_machine_that_stays_away_is_alone_on_another(
    large_and_small: TaskSet, tmp_path: Path
) -> None:
    a, b = FakeMachine("a", cpus=1), FakeMachine("b", cpus=4, lets_go=False)
    run = FleetRun(large_and_small, tmp_path / "run", [a, b], no_machine_sec=0.1)
    run.begin()
    await until(lambda: b.begun == ["a-large"])
    b.wrong = "unplugged"
    await run.end()
    assert {line["machine"] for line in run.final.values()} == {"a"}


# -- machines that join and leave --------------------------------------------------------------------


async def test_a_machine_that_joins_late_has_trials(tasks: TaskSet, tmp_path: Path) -> None:
    a, late = FakeMachine("a", cpus=1, lets_go=False), FakeMachine("late", cpus=1)
    run = FleetRun(tasks, tmp_path / "run", [a])
    run.begin()
    await until(lambda: a.begun)
    await run.fleet.join(late)
    await until(lambda: len(late.begun) == 3)
    a.lets_go.set()
    run.machines.append(late)
    await run.end()
    assert "late: has joined, with 1 cpu and 976.6 GB of memory" in run.notes
    assert [machine["name"] for machine in run.document["engine"]["machines"]] == ["a", "late"]


async def test_a_machine_that_cannot_be_made_ready_does_not_join(tasks: TaskSet, tmp_path: Path) -> None:
    a, late = FakeMachine("a", lets_go=False), FakeMachine("late")
    late.backend.refuses_to_open = "has no disk"
    run = FleetRun(tasks, tmp_path / "run", [a])
    run.begin()
    await until(lambda: a.begun)
    with pytest.raises(UsageError, match=r"^late: has no disk$"):
        await run.fleet.join(late)
    a.lets_go.set()
    await run.end()
    assert late.done == ["closed"] and late.begun == []


async def test_a_machine_that_leaves_gives_its_trials_to_the_others(tasks: TaskSet, tmp_path: Path) -> None:
    a, b = FakeMachine("a"), FakeMachine("b", lets_go=False)
    run = FleetRun(tasks, tmp_path / "run", [a, b], retries=0)
    run.begin()
    await until(lambda: len(b.begun) == 2)
    run.fleet.leave(b, "its node was shut down")
    await run.end()
    assert {line["machine"] for line in run.final.values()} == {"a"}
    assert [line["error"]["message"] for line in run.lines if not line["final"]] == ["b: its node was shut down"] * 2
    assert b.done[:2] == ["given up", "closed"] and "recovered" not in b.done


# -- machines that fail ------------------------------------------------------------------------------


async def test_a_machine_on_which_nothing_starts_is_set_aside_and_tried_again_later(
    tasks: TaskSet, tmp_path: Path
) -> None:
    a, full = FakeMachine("a", cpus=1), FakeMachine("full", cpus=8)
    full.fails_with = TrialError("image_no_space", FULL)
    run = FleetRun(tasks, tmp_path / "run", [a, full], seeds=(0, 1, 2, 3), retries=1, aside_sec=0.3)
    run.begin()
    await until(lambda: any("is set aside" in note for note in run.notes))
    full.fails_with = None
    await run.end()
    assert f"full: is set aside: image_no_space: {FULL}; trying again in 0.005 min" in run.notes
    assert sum("set aside" in note for note in run.notes) == 1
    assert [line["reward"] for line in run.final.values()] == [1.0] * 16
    failed = [line for line in run.lines if not line["final"]]
    assert {line["machine"] for line in failed} == {"full"} and len(failed) >= MAX_FAILURES


async def test_a_trial_that_a_machine_failed_waits_for_another_though_that_one_is_busy(
    make_task: MakeTask, tmp_path: Path
) -> None:
    a, full = FakeMachine("a", cpus=1, lets_go=False), FakeMachine("full", cpus=1)
    full.fails_with = TrialError("sandbox_failed", FULL)
    paths = [make_task(name) for name in ("alpha", "beta")]
    run = FleetRun(read_tasks(str(paths[0].parent)), tmp_path / "run", [a, full], retries=1)
    run.begin()
    await until(lambda: a.begun and any(not line["final"] for line in run.lines))
    await asyncio.sleep(0.05)
    a.lets_go.set()
    await run.end()
    assert [line["reward"] for line in run.final.values()] == [1.0] * 2
    assert len(run.lines) == 3


async def test_the_last_machine_is_never_set_aside(tasks: TaskSet, tmp_path: Path) -> None:
    a, full = FakeMachine("a", lets_go=False), FakeMachine("full")
    full.fails_with = TrialError("image_no_space", FULL)
    run = FleetRun(tasks, tmp_path / "run", [a, full], seeds=(0, 1, 2), retries=0)
    run.begin()
    await until(lambda: len(a.begun) == 2)
    a.wrong = "unplugged"
    await until(lambda: "given up" in a.done)
    await run.end()
    assert sum("set aside" in note for note in run.notes) == 1  # while there was another
    assert run.fleet.run_machines[1].failures > MAX_FAILURES and run.fleet.run_machines[1].takes_trials
    assert all(line["reward"] is None for line in run.final.values()) and len(run.final) == 12


async def test_errors_of_tasks_and_of_what_runs_in_a_sandbox_set_no_machine_aside(
    tasks: TaskSet, tmp_path: Path
) -> None:
    a, b = FakeMachine("a"), FakeMachine("b")
    a.fails_with = b.fails_with = TrialError("image_build_failed", "no such package")
    run = FleetRun(tasks, tmp_path / "run", [a, b], seeds=(0, 1, 2))
    await run.end()
    assert [node.failures for node in run.fleet.run_machines] == [0, 0]


async def test_one_success_in_between_is_enough_to_stay() -> None:
    fleet = Fleet([FakeMachine("a"), FakeMachine("b")])
    notes: list[str] = []
    async with open_backend(fleet, notes.append):
        _, node = fleet.run_machines
        error = ErrorInfo.of(TrialError("sandbox_failed", FULL))
        for outcome in (error, error, None, error, error):
            node.record_attempt(outcome)
        assert node.takes_trials and notes == []
        node.record_attempt(error)
        assert not node.takes_trials and len(notes) == 1


# -- others than runs --------------------------------------------------------------------------------


async def test_a_runner_follows_its_machines_and_says_when_there_are_none_any_more(make_task: MakeTask) -> None:
    a, b, path = FakeMachine("a"), FakeMachine("b"), make_task("alpha")
    fleet = Fleet([a])
    async with Runner(RunConfig().with_values(agent={"name": "nop"}), backend=lambda _: fleet) as runner:
        assert (await runner.trial(path, seed=0)).result.machine == "a"
        await fleet.join(b)
        fleet.leave(a, "its node was shut down")
        assert (await runner.trial(path, seed=1)).result.machine == "b"
        fleet.stop("the cluster is gone")
        with pytest.raises(EngineUnavailable, match=r"^the cluster is gone$"):
            await runner.trial(path, seed=2)
    assert b.done[-1] == "closed"


async def test_a_reward_without_a_machine_is_refused_with_the_reason(make_task: MakeTask) -> None:
    a, path = FakeMachine("a", lets_go=False), make_task("alpha")
    fleet = Fleet([a])
    rewarding = asyncio.create_task(agent_reward(path, Works, live=Live(backend=lambda _: fleet, retries=0)))
    await until(lambda: a.begun)
    fleet.stop("the cluster is gone")
    with pytest.raises(EngineUnavailable, match=r"^the cluster is gone$"):
        await rewarding


# -- machines that differ ----------------------------------------------------------------------------


async def test_machines_of_different_architectures_are_refused_by_their_names(tasks: TaskSet, tmp_path: Path) -> None:
    machines = [FakeMachine("a", architecture="amd64"), FakeMachine("b", architecture="arm64")]
    run = FleetRun(tasks, tmp_path / "run", machines)
    with pytest.raises(UsageError, match=r"^b: has the architecture arm64, and a has amd64; "):
        await run.begin()
    assert all(machine.done[-1] == "closed" and machine.begun == [] for machine in machines)


async def test_a_machine_of_another_architecture_does_not_join() -> None:
    fleet, late = Fleet([FakeMachine("a", architecture="amd64")]), FakeMachine("late", architecture="arm64")
    async with open_backend(fleet):
        with pytest.raises(UsageError, match=r"^late: has the architecture arm64, and a has amd64; "):
            await fleet.join(late)
        assert late.done == ["closed"] and len(fleet.run_machines) == 1


async def test_what_else_differs_is_one_line_for_each_machine() -> None:
    told = {"backend": "docker", "version": "28.2", "storage_driver": "overlay2", "cgroup_version": "2"}
    machines = [
        FakeMachine("a", **told),
        FakeMachine("b", **told | {"version": "27.1"}),
        FakeMachine("c", **told),
        FakeMachine("d", **told | {"backend": "podman", "version": "5.4", "cgroup_version": "1"}),
    ]
    fleet, notes = Fleet(machines), list[str]()
    async with open_backend(fleet, notes.append):
        await fleet.join(FakeMachine("late", **told | {"storage_driver": "vfs"}))
    ending = "; results name each trial's machine"
    assert notes == [
        f"b: has Docker 27.1, and a has Docker 28.2{ending}",
        f"d: has Podman 5.4, cgroup 1, and a has Docker 28.2, cgroup 2{ending}",
        f"late: has storage driver vfs, and a has storage driver overlay2{ending}",
        "late: has joined, with 2 cpus and 976.6 GB of memory",
    ]
