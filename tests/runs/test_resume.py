"""resume: which results stand, which trials are left, attempt numbers, and what must not have changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from run_plans import A_MODEL, a_document, a_plan

from tbench.agents.trial_agent import AgentReport, NopAgent, Workplace
from tbench.config.document import RunPlan
from tbench.config.settings import RunConfig
from tbench.errors import TrialError, UsageError
from tbench.events import Events
from tbench.results import TrialResult
from tbench.runs.admission import RetryErrors
from tbench.runs.plan import check_same_run, plan_trials
from tbench.runs.resume import EarlierRun, resume
from tbench.runs.run import Run, RunOutcome, execute_run
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.scores.summarise import summarise
from tbench.scores.summary import Status
from tbench.storage.read_run import read_run
from tbench.storage.run_store import RESULTS_NAME, RunStore
from tbench.tasks.sources import TaskSet, read_tasks
from tbench.tasks.task import Task

MakeTask = Any
TIME = datetime(2026, 1, 2, tzinfo=UTC)


def plan_of(**more: Any) -> RunPlan:
    return a_plan(**{"seeds": (0, 1), "agent": "nop", "concurrency": 1} | more)


@pytest.fixture
def tasks(make_task: MakeTask) -> TaskSet:
    paths = [make_task(name) for name in ("alpha", "beta")]
    return read_tasks(str(paths[0].parent))


class Bench:
    """A run directory, and runs in it over fake sandboxes."""

    def __init__(self, directory: Path, tasks: TaskSet) -> None:
        self.directory = directory
        self.tasks = tasks

    @contextlib.contextmanager
    def store(self) -> Iterator[RunStore]:
        exists = (self.directory / "run.json").exists()
        with contextlib.closing(
            RunStore.open(self.directory)
            if exists
            else RunStore.create(self.directory, a_document(plan_of(), self.tasks.tasks))
        ) as store:
            yield store

    async def run(
        self,
        sandbox: Callable[[], FakeSandbox] = FakeSandbox,
        *,
        agent: Callable[[], NopAgent] = NopAgent,
        retry_errors: RetryErrors | None = None,
        **more: Any,
    ) -> RunOutcome:
        configuration = plan_of(**more)
        sandboxes = FakeBackend(lambda _: sandbox())
        with self.store() as store:
            plans, _ = resume(store, plan_trials(self.tasks, configuration), retry_errors or RetryErrors())
            run = Run(
                configuration,
                self.tasks,
                make_agent=agent,
                backend=sandboxes,
                store=store,
                events=Events(),
                plans=plans,
            )
            async with asyncio.timeout(20):
                outcome = await run.execute()
        assert sandboxes.left == []
        return outcome

    @property
    def lines(self) -> list[TrialResult]:
        return [
            TrialResult.model_validate_json(line) for line in (self.directory / RESULTS_NAME).read_text().splitlines()
        ]

    @property
    def finals(self) -> dict[tuple[str, int], TrialResult]:
        finals = [line for line in self.lines if line.final]
        by_trial = {(line.task, line.seed): line for line in finals}
        assert len(by_trial) == len(finals), "a trial has two final results"
        return by_trial


@pytest.fixture
def bench(tmp_path: Path, tasks: TaskSet) -> Bench:
    return Bench(tmp_path / "run", tasks)


def lost() -> TrialError:
    return TrialError("sandbox_lost", "gone")


class Failing(NopAgent):
    """Raises the errors of a list, one per attempt; then works."""

    def __init__(self, errors: list[TrialError]) -> None:
        self._errors = errors

    async def work(self, place: Workplace) -> AgentReport:
        if self._errors:
            raise self._errors.pop(0)
        return await super().work(place)


# -- retries within a run ------------------------------------------------------------------------


async def test_a_retryable_error_has_another_attempt_and_both_are_kept(bench: Bench) -> None:
    errors = [lost()]
    await bench.run(agent=lambda: Failing(errors), seeds=(0,), retries=1)
    alpha = [line for line in bench.lines if line.task == "alpha"]
    assert [(line.attempt, line.final, line.reward, line.error is None) for line in alpha] == [
        (1, False, None, False),
        (2, True, 1.0, True),
    ]
    directory = bench.directory / "trials" / "alpha" / "seed-0"
    assert json.loads((directory / "result.json").read_text())["error"]["type"] == "sandbox_lost"
    assert json.loads((directory / "attempt-2" / "result.json").read_text())["reward"] == 1.0


async def test_the_last_attempt_is_final_whatever_its_outcome(bench: Bench) -> None:
    await bench.run(agent=lambda: Failing([lost()]), seeds=(0,), retries=2)
    assert [(line.attempt, line.final) for line in bench.lines if line.task == "alpha"] == [
        (1, False),
        (2, False),
        (3, True),
    ]
    assert bench.finals["alpha", 0].error is not None


async def test_an_error_that_no_attempt_heals_has_none(bench: Bench) -> None:
    await bench.run(lambda: FakeSandbox({}), seeds=(0,), retries=3)
    assert [(line.task, line.attempt, line.final) for line in bench.lines] == [("alpha", 1, True), ("beta", 1, True)]


# -- what is left --------------------------------------------------------------------------------


async def test_nothing_is_left_of_a_finished_run(bench: Bench) -> None:
    await bench.run()
    before = bench.lines
    assert (await bench.run()).results == []
    assert bench.lines == before


async def test_only_what_has_no_verdict_is_run_again(bench: Bench) -> None:
    await bench.run(seeds=(0,))
    outcome = await bench.run(seeds=(0, 1))
    assert [(result.task, result.seed) for result in outcome.results] == [("alpha", 1), ("beta", 1)]
    assert len(bench.finals) == 4


async def test_a_retryable_error_is_left_to_do_and_gives_way_to_the_next_attempt(bench: Bench) -> None:
    await bench.run(agent=lambda: Failing([lost()]), seeds=(0,))
    assert all(line.error is not None for line in bench.finals.values())
    await bench.run(seeds=(0,))
    assert {(line.attempt, line.reward) for line in bench.finals.values()} == {(2, 1.0)}
    assert len(bench.lines) == 4


async def test_other_errors_stand_until_they_are_named(bench: Bench) -> None:
    await bench.run(lambda: FakeSandbox({}), seeds=(0,))
    assert (await bench.run(seeds=(0,))).results == []
    assert (await bench.run(seeds=(0,), retry_errors=RetryErrors.parse("verifier_timeout"))).results == []
    named = await bench.run(lambda: FakeSandbox({}), seeds=(0,), retry_errors=RetryErrors.parse("verifier_no_reward"))
    assert [result.attempt for result in named.results] == [2, 2]
    everything = await bench.run(seeds=(0,), retry_errors=RetryErrors.parse("all"))
    assert [(result.attempt, result.reward) for result in everything.results] == [(3, 1.0), (3, 1.0)]
    assert {line.attempt for line in bench.finals.values()} == {3}


async def test_errors_never_retried_are_not_retried_on_resume_unless_named(bench: Bench) -> None:
    never = {"retries": 1, "retry_never": ["sandbox_lost"]}
    choice = plan_of(**never).config.schedule.retry_choice
    await bench.run(agent=lambda: Failing([lost()]), seeds=(0,), **never)
    assert {(line.attempt, line.final) for line in bench.lines} == {(1, True)}
    assert (await bench.run(seeds=(0,), retry_errors=RetryErrors.parse(None, choice), **never)).results == []
    with pytest.raises(UsageError, match="sandbox_lost"):
        RetryErrors.parse("sandbox_lost", choice)
    again = await bench.run(seeds=(0,), retry_errors=RetryErrors.parse("all", choice), **never)
    assert [result.reward for result in again.results] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"retry_only": ["sandbox_lots"]}, "did you mean sandbox_lost"),
        ({"retry_never": ["nonsense"]}, "retryable: "),
        ({"retry_only": ["verifier_timeout"]}, "second chance"),
        ({"retry_only": ["rewound"]}, "is not a failure"),
        (
            {"retry_only": ["sandbox_lost,terminal_failed"], "retry_never": ["terminal_failed"]},
            "both contain",
        ),
    ],
)
def test_contradictory_retry_options_are_refused(schedule: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RunConfig.model_validate({"schedule": schedule})


def test_a_type_of_error_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match=r"--retry-errors sandbox_lots: no such type of error; known: .*sandbox_lost"):
        RetryErrors.parse("verifier_timeout,sandbox_lots")


async def test_an_attempt_that_was_cut_short_keeps_its_number_and_its_files(bench: Bench) -> None:
    cut = bench.directory / "trials" / "alpha" / "seed-0"
    with bench.store():
        cut.mkdir(parents=True)
        (cut / "session.cast").write_text("so far")
    await bench.run(seeds=(0,))
    assert (cut / "session.cast").read_text() == "so far"
    assert bench.finals["alpha", 0].attempt == 2
    assert (cut / "attempt-2" / "result.json").exists()


async def test_a_verdict_whose_line_was_lost_is_not_measured_again(bench: Bench) -> None:
    await bench.run(seeds=(0,))
    results = bench.directory / RESULTS_NAME
    results.write_text(results.read_text().splitlines()[1] + "\n")
    assert (await bench.run(seeds=(0,))).results == []
    assert {trial: line.reward for trial, line in bench.finals.items()} == {("alpha", 0): 1.0, ("beta", 0): 1.0}


async def test_a_result_that_is_torn_or_of_another_plan_is_no_verdict(bench: Bench) -> None:
    await bench.run(seeds=(0,))
    (bench.directory / RESULTS_NAME).write_text("")
    alpha, beta = (bench.directory / "trials" / name / "seed-0" / "result.json" for name in ("alpha", "beta"))
    alpha.write_text(alpha.read_text()[:100])
    beta.write_text(beta.read_text().replace('"trial": "beta.s0.', '"trial": "beta.s0.f'))
    await bench.run(seeds=(0,))
    assert {line.attempt for line in bench.finals.values()} == {2}


@pytest.mark.parametrize("cut", [1, 20, -2, -1])
async def test_a_torn_last_line_is_tolerated_and_its_trial_counted_once(bench: Bench, cut: int) -> None:
    await bench.run(seeds=(0,))
    for name in (RESULTS_NAME, "journal.jsonl"):
        whole = (bench.directory / name).read_bytes()
        last = whole.rstrip(b"\n").rpartition(b"\n")[2] + b"\n"
        (bench.directory / name).write_bytes(whole[: -len(last)] + last[:cut])
    await bench.run(seeds=(0,))
    assert {trial: line.reward for trial, line in bench.finals.items()} == {("alpha", 0): 1.0, ("beta", 0): 1.0}
    for line in (bench.directory / "journal.jsonl").read_text().splitlines():
        json.loads(line)


async def test_a_task_that_was_mended_replaces_its_error(bench: Bench, tasks: TaskSet) -> None:
    bench.tasks = TaskSet(tasks.tasks[1:], {"alpha": "task.toml: broken"})
    await bench.run(seeds=(0,))
    bench.tasks = tasks
    await bench.run(seeds=(0,))
    assert bench.finals["alpha", 0].reward == 1.0


async def test_a_resumed_run_is_summarised_over_its_last_attempts(bench: Bench) -> None:
    await bench.run(agent=lambda: Failing([lost()]), seeds=(0, 1))
    await bench.run(seeds=(0, 1))
    stored = read_run(bench.directory)
    summary = summarise(stored.results, stored.planned_tasks, stored.planned_seeds)
    assert (summary.counts.scored, summary.counts.errors, summary.counts.other_attempts) == (4, 0, 4)
    assert {cell.status for row in summary.tasks for cell in row.cells} == {Status.PASS}


# -- what must not have changed ------------------------------------------------------------------


def test_two_processes_cannot_write_one_run(bench: Bench) -> None:
    with bench.store(), pytest.raises(UsageError, match="this run is still going on"):
        RunStore.open(bench.directory)
    with bench.store():
        pass


@pytest.fixture
def earlier(bench: Bench) -> EarlierRun:
    with bench.store():
        pass
    return EarlierRun.read(bench.directory)


def test_the_same_run_may_have_more_tasks_and_seeds(earlier: EarlierRun, tasks: TaskSet, make_task: MakeTask) -> None:
    more = read_tasks(str(make_task("gamma").parent))
    check_same_run(earlier, plan_of(seeds=(0, 1, 2), concurrency=9, base_url="http://other/v1", run="x"), more)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"agent": "oracle"}, 'with another configuration: agent.name: "nop" → "oracle"; start a new run'),
        ({"model": "m", "temperature": 1}, 'model: null → "m"'),
        ({"prompt_hash": "p", "steps": 3}, "limits.steps: nothing → 3"),
        ({"seeds": (1, 2)}, "without its seeds 0; give --seeds and --first-seed again"),
    ],
)
def test_another_configuration_is_refused_by_its_keys(
    earlier: EarlierRun, tasks: TaskSet, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check_same_run(earlier, plan_of(**changes), tasks)
    assert words in str(refused.value)


def test_nested_keys_are_named_with_both_values(earlier: EarlierRun, tasks: TaskSet) -> None:
    before = plan_of(**A_MODEL, temperature=0.7)
    earlier = replace(earlier, document=a_document(before, tasks.tasks))
    with pytest.raises(UsageError, match=r"configuration: model.temperature: 0.7 → 0.8; start a new run$"):
        check_same_run(earlier, plan_of(**A_MODEL, temperature=0.8), tasks)


def test_changed_and_missing_tasks_are_named(earlier: EarlierRun, tasks: TaskSet) -> None:
    with pytest.raises(UsageError, match="without its tasks beta; add the tasks"):
        check_same_run(earlier, plan_of(), TaskSet(tasks.tasks[:1], {}))
    (tasks.tasks[0].path / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    with pytest.raises(UsageError, match="these tasks have changed since: alpha; restore them"):
        check_same_run(earlier, plan_of(), read_tasks(str(tasks.tasks[0].path.parent)))


def test_a_directory_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{tmp_path}: has no run.json"):
        EarlierRun.read(tmp_path)


async def test_limits_that_did_not_hold_are_known_during_the_run_and_when_it_goes_on_elsewhere(
    make_task: MakeTask, tmp_path: Path
) -> None:
    class Engine(FakeBackend):
        """Reports its limits once it is open."""

        memory = "not in force"

        def describe(self) -> dict[str, Any]:
            return {**super().describe(), **({"limits": {"memory": self.memory}} if self.is_open or self.made else {})}

    class Elsewhere(Engine):
        memory = "in force"

    def make(_: Task) -> FakeSandbox:
        during.append(read_run(directory).lacking_limits)
        return FakeSandbox()

    directory, during = tmp_path / "run", list[tuple[str, ...]]()
    tasks = read_tasks(str(make_task().parent))
    await execute_run(a_plan(), tasks, directory, NopAgent, Events(), backend=Engine(make))
    earlier = EarlierRun.read(directory)
    await execute_run(a_plan(), tasks, directory, NopAgent, Events(), backend=Elsewhere(make), earlier=earlier)
    assert during == [("memory not in force",)]
    assert read_run(directory).lacking_limits == ("memory not in force",)
