"""preflight: tasks that cannot get a verdict fail before anything starts, with one line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask
from run_plans import a_plan

from tbench.agents.trial_agent import AgentReport, NopAgent, OracleAgent, TrialAgent, Workplace
from tbench.errors import TrialError, UsageError
from tbench.events import Event, Events, Note, TrialPhase, TrialVerdict
from tbench.results import Stage
from tbench.runs.admission import Demand
from tbench.runs.plan import as_configured, plan_trials
from tbench.runs.preflight import (
    ImageRemover,
    not_runnable_tasks,
    require_runnable_task,
    size_warning,
    tasks_refused_by,
    why_not_runnable,
)
from tbench.runs.run import RunOutcome, execute_run
from tbench.sandbox.backend import Capacity
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.tasks.environment import Environment
from tbench.tasks.sources import TaskSet, read_tasks
from tbench.tasks.task import Task

WANTS = '[{table}.env]\nKEY = "${{SURELY_UNSET}}"\n'
TPU = "[environment]\ntpu = { type = 'v4', topology = '2x2x1' }\n"


def why(path: Path, agent: str = "model", allowed: tuple[str, ...] = ()) -> tuple[str, str] | None:
    error = why_not_runnable(Task.read(path).with_access(allowed), "", agent)
    return None if error is None else (error.type, str(error))


def notes(seen: list[Event]) -> list[str]:
    return [event.text for event in seen if isinstance(event, Note)]


@pytest.mark.parametrize(
    ("table", "refused_agents"),
    [("environment", ["model", "nop", "oracle"]), ("verifier", ["model", "nop", "oracle"]), ("solution", ["oracle"])],
)
def test_a_missing_variable_refuses_the_agents_that_need_it(
    make_task: MakeTask, table: str, refused_agents: list[str]
) -> None:
    path = make_task(toml=WANTS.format(table=table))
    assert [agent for agent in ("model", "nop", "oracle") if why(path, agent)] == refused_agents
    remedy = "add --allow-env SURELY_UNSET, and set SURELY_UNSET in tbench's environment"
    assert why(path, "oracle") == (
        "env_missing",
        f"{table}.env.KEY = ${{SURELY_UNSET}}: SURELY_UNSET is not allowed; {remedy}",
    )


def test_a_variable_has_to_be_allowed_and_set_and_all_that_are_missing_are_named(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SURELY_SET", "x")
    path = make_task(toml='[verifier.env]\nA = "${SURELY_SET}"\nB = "${SURELY_UNSET}"\nC = "${SURELY_UNSET:-c}"\n')
    assert why(path) == (
        "env_missing",
        "verifier.env.A = ${SURELY_SET}: SURELY_SET is not allowed; add --allow-env SURELY_SET; "
        "verifier.env.B = ${SURELY_UNSET}: SURELY_UNSET is not allowed; add --allow-env SURELY_UNSET, and set "
        "SURELY_UNSET in tbench's environment",
    )
    both = ("SURELY_SET", "SURELY_UNSET")
    assert why(path, allowed=both) == (
        "env_missing", "verifier.env.B = ${SURELY_UNSET}: set SURELY_UNSET in tbench's environment",
    )  # fmt: skip
    monkeypatch.setenv("SURELY_UNSET", "y")
    assert why(path, allowed=both) is None


def test_only_the_oracle_needs_a_solution(make_task: MakeTask) -> None:
    path = make_task(solve=None)
    assert why(path) == why(path, "my.module:Agent") is None
    assert why(path, "oracle") == (
        "oracle_missing", f"{path / 'solution' / 'solve.sh'}: missing, so there is no oracle",
    )  # fmt: skip


def test_a_solution_that_bash_cannot_run_keeps_only_the_oracle_from_running(make_task: MakeTask) -> None:
    path = make_task(solve="#!/bin/bash\r\necho 1 >/app/done\r\n")
    assert why(path) is None
    said = "has Windows line ends (CR LF), which bash takes for part of each command; convert it with dos2unix"
    assert why(path, "oracle") == ("task_invalid", f"{path / 'solution' / 'solve.sh'}: {said}")


def test_a_solution_that_goes_away_after_the_plan_was_made_has_changed(make_task: MakeTask) -> None:
    task = Task.read(make_task())
    assert task.hash and why_not_runnable(task, "", "oracle") is None
    (task.path / "solution" / "solve.sh").unlink()
    assert why_not_runnable(task, "", "oracle") is None
    with pytest.raises(TrialError, match=r"solve\.sh was removed after the task's hash was computed"):
        assert task.solution


def test_tasks_that_cannot_run_are_found_by_name_in_a_set(make_task: MakeTask) -> None:
    make_task("good")
    make_task("tpu", toml=TPU)
    directory = make_task("broken", toml="[environment\n").parent
    found = not_runnable_tasks(read_tasks(str(directory)), "nop")
    assert {name: error.type for name, error in found.items()} == {"broken": "task_invalid", "tpu": "task_unsupported"}
    assert str(found["tpu"]) == "needs environment.tpu, which tbench does not have"


def test_a_run_of_nothing_that_can_run_is_refused_in_one_line(make_task: MakeTask) -> None:
    directory = make_task("a", solve=None).parent
    with pytest.raises(UsageError, match=r"^a cannot run: oracle_missing: .*solve\.sh: missing"):
        require_runnable_task(read_tasks(str(directory)), "oracle")
    make_task("b", solve=None)
    make_task("c", toml=TPU)
    said = r"^none of 3 tasks can run \(oracle_missing 2, task_unsupported 1\); the first: a cannot run: oracle_missing"
    with pytest.raises(UsageError, match=said):
        require_runnable_task(read_tasks(str(directory)), "oracle")
    require_runnable_task(read_tasks(str(directory)), "model")


class Counting(NopAgent):
    """Records the tasks that it worked on."""

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
        "needs-key cannot run: env_missing: verifier.env.KEY = ${SURELY_UNSET}: SURELY_UNSET is not "
        "allowed; add --allow-env SURELY_UNSET, and set SURELY_UNSET in tbench's environment",
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
            "each gets what the machine has, and runs alone",
        ),
        (
            [("big", Demand(4, 1024))],
            2,
            "larger than the machine, which has 2 cpus, 8.0 GB: big (4 cpus, 1.0 GB); each gets what the machine has",
        ),
    ],
)
def test_a_task_larger_than_the_machine_is_reported_in_one_line(
    demands: list[tuple[str, Demand]], overcommit: float, said: str | None
) -> None:
    assert size_warning(demands, [LAPTOP], overcommit) == said


def test_of_many_large_tasks_a_few_are_named() -> None:
    demands = [(f"t{number}", Demand(3, 1024)) for number in range(7)]
    assert re.search(r": t0 \(.*, t4 \(3 cpus, 1.0 GB\) and 2 more; each", size_warning(demands, [LAPTOP], 1) or "")


@pytest.mark.parametrize(("overrides", "reported"), [({}, 1), ({"cpus": 1, "memory_mb": 512}, 0)])
async def test_a_task_larger_than_the_machine_is_reported_once_and_runs(
    make_task: MakeTask, tmp_path: Path, overrides: dict[str, Any], reported: int
) -> None:
    plan, path = a_plan(seeds=(0, 1), **overrides), make_task(toml="[environment]\ncpus = 4\nmemory_mb = 65536\n")
    seen: list[Event] = []
    outcome = await execute_run(
        plan,
        TaskSet((as_configured(Task.read(path), plan.config),), {}),
        tmp_path / "run",
        NopAgent,
        Events(seen.append),
        backend=FakeBackend(capacity=LAPTOP),
    )
    assert [result.reward for result in outcome.results] == [1.0, 1.0]
    assert sum("larger than the machine" in note for note in notes(seen)) == reported


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (None, None),
        (2, None),
        (1, "needs environment.gpus = 2, but the engine has 1 GPU; "),
        (0, "needs environment.gpus = 2, but the engine has no nvidia runtime; "),
    ],
)
def test_a_task_that_needs_more_gpus_than_there_are_is_refused(
    make_task: MakeTask, gpus: int | None, words: str | None
) -> None:
    task = Task.read(make_task(toml="[environment]\ngpus = 2\n"))
    error = why_not_runnable(task, "", "nop", gpus)
    assert (error is None) == (words is None)
    assert error is None or (error.type == "task_unsupported" and str(error).startswith(str(words)))


def test_a_verifier_of_its_own_is_refused_gpus_by_its_key(make_task: MakeTask) -> None:
    task = Task.read(make_task(toml="[verifier.environment]\ngpus = 1\n"))
    error = why_not_runnable(task, "", "nop", 0)
    assert error is not None
    assert str(error).startswith("needs verifier.environment.gpus = 1, but the engine has no nvidia runtime; ")
    assert why_not_runnable(task, "", "nop", 1) is None


# The images of a run: reported and prefetched before it, removed after the last trial of a task.


class Imaging(FakeBackend):
    """Records requests about images, and the sandboxes removed by then."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.asked: list[tuple[list[str], bool]] = []
        self.others: list[list[str]] = []
        self.left_at_drop: list[int] = []
        self.failing: Mapping[str, TrialError] = {}
        self.has_dropped = asyncio.Event()

    async def describe_pulls(self, environments: Sequence[Environment], *, ask: bool) -> Sequence[str]:
        self.asked.append(([each.name for each in environments], ask))
        return ("3 images to be pulled", "the images may not fit")

    async def prefetch(self, environments: Sequence[Environment]) -> Mapping[str, TrialError]:
        assert not self.made, "no trial has begun"
        await super().prefetch(environments)
        return self.failing

    async def drop_image(self, environment: Environment, others: Sequence[Environment]) -> int:
        self.others.append([each.name for each in others])
        own = [trial for trial in self.left if trial.startswith(f"{environment.name}.")]
        self.left_at_drop.append(len(own))
        self.has_dropped.set()
        return await super().drop_image(environment, others)


@pytest.fixture
def tasks(make_task: Any) -> TaskSet:
    paths = [make_task(name) for name in ("alpha", "beta")]
    return read_tasks(str(paths[0].parent))


async def run(
    tasks: TaskSet,
    directory: Path,
    backend: FakeBackend,
    make_agent: Callable[[], TrialAgent] = NopAgent,
    **settings: Any,
) -> tuple[RunOutcome, list[str]]:
    """The outcome, and the messages."""
    seen: list[Event] = []
    plan = a_plan(**{"seeds": (0, 1), "agent": "nop", "concurrency": 2} | settings)
    outcome = await execute_run(plan, tasks, directory / "run", make_agent, Events(seen.append), backend=backend)
    return outcome, [event.text for event in seen if isinstance(event, Note)]


async def test_a_run_reports_the_images_to_pull_before_it_begins(tasks: TaskSet, tmp_path: Path) -> None:
    backend = Imaging()
    _, said = await run(tasks, tmp_path, backend)
    assert said[:2] == ["3 images to be pulled", "the images may not fit"]
    assert backend.asked == [(["alpha", "beta"], True)] and backend.prefetched == [] and backend.dropped == []


async def test_offline_no_registry_is_asked(tasks: TaskSet, tmp_path: Path) -> None:
    backend = Imaging()
    await run(tasks, tmp_path, backend, offline=True)
    assert backend.asked == [(["alpha", "beta"], False)]


async def test_prefetch_gets_all_images_first_and_a_failed_one_stops_no_other(tasks: TaskSet, tmp_path: Path) -> None:
    backend = Imaging()
    backend.failing = {"beta": TrialError("image_denied", "HOST wants a login")}
    outcome, said = await run(tasks, tmp_path, backend, prefetch=True)
    assert backend.prefetched == ["alpha", "beta"] and len(outcome.results) == 4
    assert said[2:4] == ["beta has no image: image_denied: HOST wants a login", "images: 1 of 2 available"]


async def test_a_task_that_is_refused_gets_no_image(make_task: Any, tmp_path: Path) -> None:
    make_task("alpha")
    path = make_task("beta", toml='[environment]\nos = "windows"\n')
    backend = Imaging()
    await run(read_tasks(str(path.parent)), tmp_path, backend, prefetch=True)
    assert backend.prefetched == ["alpha"]


async def test_the_image_of_a_task_is_dropped_once_when_its_last_sandbox_is_gone(
    tasks: TaskSet, tmp_path: Path
) -> None:
    backend = Imaging()
    _, said = await run(tasks, tmp_path, backend, drop_images=True, concurrency=1)
    assert backend.dropped == ["alpha", "beta"], "seed by seed: the second seeds are the last"
    assert backend.others == [["beta"], []] and backend.left_at_drop == [0, 0]
    assert said[-1] == "2 images removed, up to 2.0 MB"


async def test_an_attempt_that_another_follows_is_not_the_last(tasks: TaskSet, tmp_path: Path) -> None:
    backend = Imaging(make=lambda _: FakeSandbox(answers=[TrialError("verifier_failed", "once")]))
    outcome, _ = await run(tasks, tmp_path, backend, drop_images=True, seeds=(0,), retries=1)
    assert len(outcome.results) == 4 and sorted(backend.dropped) == ["alpha", "beta"]


class HoldPoint(NopAgent):
    """Works until it is cancelled, in the task beta."""

    begun = asyncio.Event()

    async def work(self, place: Workplace) -> AgentReport:
        if place.task.name == "beta":
            self.begun.set()
            await asyncio.Event().wait()
        return await super().work(place)


async def test_a_run_that_is_cut_short_keeps_the_images_of_trials_that_are_still_to_come(
    tasks: TaskSet, tmp_path: Path
) -> None:
    HoldPoint.begun, backend = asyncio.Event(), Imaging()
    running = asyncio.create_task(run(tasks, tmp_path, backend, HoldPoint, drop_images=True, seeds=(0,)))
    async with asyncio.timeout(20):
        await HoldPoint.begun.wait()
        await backend.has_dropped.wait()
        running.cancel()
        await asyncio.wait({running})
    assert running.cancelled() and backend.dropped == ["alpha"]


async def test_images_that_cannot_be_removed_are_not_counted(tasks: TaskSet) -> None:
    class Keeping(Imaging):
        async def drop_image(self, environment: Environment, others: Sequence[Environment]) -> int:
            return 0

    plans = plan_trials(tasks, a_plan())
    dropping = ImageRemover(Keeping(), plans)
    for plan in plans:
        await dropping.note_finished(plan)
    assert dropping.message == ""


@pytest.mark.parametrize("option", ["prefetch", "drop_images"])
async def test_a_backend_without_images_refuses_image_options(tasks: TaskSet, tmp_path: Path, option: str) -> None:
    class Without:
        def __init__(self) -> None:
            self._backend = FakeBackend()

        def __getattr__(self, name: str) -> Any:
            if name in ("prefetch", "drop_image", "about_pulls"):
                raise AttributeError(name)
            return getattr(self._backend, name)

    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')}: the fake backend"):
        await run(tasks, tmp_path, Without(), **{option: True})  # type: ignore[arg-type]
    outcome, _ = await run(tasks, tmp_path, Without())  # type: ignore[arg-type]
    assert len(outcome.results) == 4


class _ChoosyBackend(FakeBackend):
    """A backend that cannot run one of the tasks."""

    def refuse(self, environment: Environment) -> str:
        return "needs a moon" if environment.task.name == "lunar" else ""


async def test_a_task_that_the_backend_refuses_is_named(make_task: MakeTask, tmp_path: Path) -> None:
    tasks = TaskSet(tuple(Task.read(make_task(name)) for name in ("lunar", "plain")), {})
    backend, events = _ChoosyBackend(), list[Event]()
    assert list(tasks_refused_by(backend, tasks.tasks)) == ["lunar"]
    assert tasks_refused_by(FakeBackend(), tasks.tasks) == {}
    await execute_run(a_plan("r"), tasks, tmp_path / "run", NopAgent, Events(events.append), backend=backend)
    said = [event.text for event in events if isinstance(event, Note)]
    assert any("lunar" in text and "needs a moon" in text for text in said)
