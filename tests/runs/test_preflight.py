"""Preflight: what cannot come to a verdict has its error before anything starts, and is told in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask
from run_plans import a_config, a_plan

from tbench.agents.trial_agent import AgentReport, NopAgent, OracleAgent, Workplace
from tbench.errors import TrialError, UsageError
from tbench.events import Event, Events, Note, TrialPhase, TrialVerdict
from tbench.results import Stage
from tbench.runs.preflight import refusal, refusals, require_a_task_that_can_run, words_about_size
from tbench.runs.run import execute_run
from tbench.runs.scheduling.admission import Demand
from tbench.sandbox.backend import Capacity
from tbench.sandbox.fake import FakeBackend
from tbench.tasks.sources import read_tasks
from tbench.tasks.task import Task

WANTS = '[{table}.env]\nKEY = "${{SURELY_UNSET}}"\n'
TPU = "[environment]\ntpu = { type = 'v4', topology = '2x2x1' }\n"


def why(path: Path, agent: str = "model", allowed: tuple[str, ...] = ()) -> tuple[str, str] | None:
    error = refusal(Task.read(path).allowing(allowed), "", agent)
    return None if error is None else (error.type, str(error))


def notes(seen: list[Event]) -> list[str]:
    return [event.text for event in seen if isinstance(event, Note)]


@pytest.mark.parametrize(
    ("table", "refused_agents"),
    [("environment", ["model", "nop", "oracle"]), ("verifier", ["model", "nop", "oracle"]), ("solution", ["oracle"])],
)
def test_a_missing_variable_refuses_whoever_would_miss_it(
    make_task: MakeTask, table: str, refused_agents: list[str]
) -> None:
    path = make_task(toml=WANTS.format(table=table))
    assert [agent for agent in ("model", "nop", "oracle") if why(path, agent)] == refused_agents
    words = (
        f"{table}.env.KEY = ${{SURELY_UNSET}}: SURELY_UNSET comes from the environment of tbench only with consent: "
    )
    assert why(path, "oracle") == (
        "env_missing", f"{words}give --allow-env SURELY_UNSET, and set SURELY_UNSET there",
    )  # fmt: skip


def test_a_variable_has_to_be_allowed_and_set_and_all_that_are_missing_are_named(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SURELY_SET", "x")
    path = make_task(toml='[verifier.env]\nA = "${SURELY_SET}"\nB = "${SURELY_UNSET}"\nC = "${SURELY_UNSET:-c}"\n')
    assert why(path) == (
        "env_missing",
        "verifier.env.A = ${SURELY_SET}: SURELY_SET comes from the environment of tbench only with consent: give "
        "--allow-env SURELY_SET; verifier.env.B = ${SURELY_UNSET}: SURELY_UNSET comes from the environment of tbench "
        "only with consent: give --allow-env SURELY_UNSET, and set SURELY_UNSET there",
    )
    both = ("SURELY_SET", "SURELY_UNSET")
    assert why(path, allowed=both) == (
        "env_missing", "verifier.env.B = ${SURELY_UNSET}: set SURELY_UNSET in the environment of tbench",
    )  # fmt: skip
    monkeypatch.setenv("SURELY_UNSET", "y")
    assert why(path, allowed=both) is None


def test_the_oracle_needs_a_solution_and_nobody_else_does(make_task: MakeTask) -> None:
    path = make_task(solve=None)
    assert why(path) == why(path, "my.module:Agent") is None
    assert why(path, "oracle") == (
        "oracle_missing", f"{path / 'solution' / 'solve.sh'}: missing, so there is no oracle",
    )  # fmt: skip


def test_a_solution_that_goes_away_after_the_plan_was_made_has_changed(make_task: MakeTask) -> None:
    task = Task.read(make_task())
    assert task.hash and refusal(task, "", "oracle") is None
    (task.path / "solution" / "solve.sh").unlink()
    assert refusal(task, "", "oracle") is None
    with pytest.raises(TrialError, match=r"solve\.sh is gone since the task's hash was taken"):
        assert task.solution


def test_tasks_that_cannot_run_are_found_by_name_in_a_set(make_task: MakeTask) -> None:
    make_task("good")
    make_task("tpu", toml=TPU)
    directory = make_task("broken", toml="[environment\n").parent
    found = refusals(read_tasks(str(directory)), "nop")
    assert {name: error.type for name, error in found.items()} == {"broken": "task_invalid", "tpu": "task_unsupported"}
    assert str(found["tpu"]) == "needs environment.tpu, which tbench does not have"


def test_a_run_of_nothing_that_can_run_is_refused_in_one_line(make_task: MakeTask) -> None:
    oracle = a_config().with_values(agent={"name": "oracle"})
    directory = make_task("a", solve=None).parent
    with pytest.raises(UsageError, match=r"^a cannot run: oracle_missing: .*solve\.sh: missing"):
        require_a_task_that_can_run(read_tasks(str(directory)), oracle)
    make_task("b", solve=None)
    make_task("c", toml=TPU)
    said = r"^none of 3 tasks can run \(oracle_missing 2, task_unsupported 1\); the first: a cannot run: oracle_missing"
    with pytest.raises(UsageError, match=said):
        require_a_task_that_can_run(read_tasks(str(directory)), oracle)
    require_a_task_that_can_run(read_tasks(str(directory)), a_config())


class Counting(NopAgent):
    """Notes in which tasks it worked."""

    def __init__(self, worked: list[str]) -> None:
        self._worked = worked

    async def work(self, place: Workplace) -> AgentReport:
        self._worked.append(place.task.name)
        return await super().work(place)


async def test_trials_that_cannot_run_have_their_error_first_and_neither_sandbox_nor_agent(
    make_task: MakeTask, tmp_path: Path
) -> None:
    make_task("alpha")
    make_task("needs-key", toml=WANTS.format(table="verifier"))
    source = str(make_task("zulu", toml=TPU).parent)
    seen: list[Event] = []
    worked: list[str] = []
    backend = FakeBackend()
    outcome = await execute_run(
        a_plan(seeds=(0, 1), concurrency=1),
        read_tasks(source),
        tmp_path / "run",
        lambda: Counting(worked),
        Events(seen.append),
        backend=backend,
    )
    results = [event.result for event in seen if isinstance(event, TrialVerdict)]
    kinds = [result.error.type if result.error else None for result in results]
    assert kinds == ["env_missing", "task_unsupported", "env_missing", "task_unsupported", None, None]
    assert {result.error.stage for result in results if result.error} == {Stage.PLAN}
    assert worked == ["alpha", "alpha"] and len(backend.made) == 2
    refused = {event.trial for event in seen if isinstance(event, TrialPhase) and "alpha" not in event.trial}
    assert {event.phase for event in seen if isinstance(event, TrialPhase) and event.trial in refused} == {
        "queued", "teardown", "done",
    }  # fmt: skip
    first = next(place for place, event in enumerate(seen) if isinstance(event, TrialPhase))
    assert notes(seen[:first]) == [
        "needs-key cannot run: env_missing: verifier.env.KEY = ${SURELY_UNSET}: SURELY_UNSET comes from the "
        "environment of tbench only with consent: give --allow-env SURELY_UNSET, and set SURELY_UNSET there",
        "zulu cannot run: task_unsupported: needs environment.tpu, which tbench does not have",
    ]
    assert len(outcome.results) == 6


async def test_an_oracle_without_a_solution_is_an_error_of_the_plan(make_task: MakeTask, tmp_path: Path) -> None:
    make_task("with")
    source = str(make_task("without", solve=None).parent)
    backend = FakeBackend()
    plan = a_plan(agent="oracle")
    plan = plan.model_copy(update={"config": plan.config.with_values(agent={"name": "oracle"})})
    outcome = await execute_run(plan, read_tasks(source), tmp_path / "run", OracleAgent, Events(), backend=backend)
    failed = {result.task: result.error for result in outcome.results if result.error}
    assert failed["without"].type == "oracle_missing" and failed["without"].stage is Stage.PLAN
    assert failed.keys() == {"without"} and len(backend.made) == 1


# -- size ------------------------------------------------------------------------------------------

LAPTOP = Capacity(2, 8192)


@pytest.mark.parametrize(
    ("demands", "overcommit", "said"),
    [
        ([("small", Demand(2, 8192))], 1, None),
        (
            [("small", Demand(1, 1)), ("big", Demand(4, 65536))],
            1,
            "larger than the machine, which has 2 cpus, 8.0 GB: big (4 cpus, 64.0 GB); "
            "each gets what there is, and runs alone",
        ),
        (
            [("big", Demand(4, 1024))],
            2,
            "larger than the machine, which has 2 cpus, 8.0 GB: big (4 cpus, 1.0 GB); each gets what there is",
        ),
    ],
)
def test_what_is_larger_than_the_machine_is_said_in_one_line(
    demands: list[tuple[str, Demand]], overcommit: float, said: str | None
) -> None:
    assert words_about_size(demands, [LAPTOP], overcommit) == said


def test_of_many_large_tasks_a_few_are_named() -> None:
    demands = [(f"t{number}", Demand(3, 1024)) for number in range(7)]
    assert re.search(r": t0 \(.*, t4 \(3 cpus, 1.0 GB\) and 2 more; each", words_about_size(demands, [LAPTOP], 1) or "")


@pytest.mark.parametrize(("overrides", "told"), [({}, 1), ({"cpus": 1, "memory_mb": 512}, 0)])
async def test_a_task_larger_than_the_machine_is_told_once_and_runs(
    make_task: MakeTask, tmp_path: Path, overrides: dict[str, Any], told: int
) -> None:
    source = str(make_task(toml="[environment]\ncpus = 4\nmemory_mb = 65536\n"))
    seen: list[Event] = []
    outcome = await execute_run(
        a_plan(seeds=(0, 1), **overrides),
        read_tasks(source),
        tmp_path / "run",
        NopAgent,
        Events(seen.append),
        backend=FakeBackend(capacity=LAPTOP),
    )
    assert [result.reward for result in outcome.results] == [1.0, 1.0]
    assert sum("larger than the machine" in note for note in notes(seen)) == told


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (None, None),
        (2, None),
        (1, "needs environment.gpus = 2, and the engine has 1 GPU; "),
        (0, "needs environment.gpus = 2, and the engine has no nvidia runtime; "),
    ],
)
def test_a_task_that_needs_more_gpus_than_there_are_is_refused(
    make_task: MakeTask, gpus: int | None, words: str | None
) -> None:
    task = Task.read(make_task(toml="[environment]\ngpus = 2\n"))
    error = refusal(task, "", "nop", gpus)
    assert (error is None) == (words is None)
    assert error is None or (error.type == "task_unsupported" and str(error).startswith(str(words)))


def test_a_verifier_of_its_own_is_refused_gpus_by_its_key(make_task: MakeTask) -> None:
    task = Task.read(make_task(toml="[verifier.environment]\ngpus = 1\n"))
    error = refusal(task, "", "nop", 0)
    assert error is not None
    assert str(error).startswith("needs verifier.environment.gpus = 1, and the engine has no nvidia runtime; ")
    assert refusal(task, "", "nop", 1) is None
