"""run: plans and ids, failures among successes, interruption and files on disk, over fake sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fake_tmux import FakeTmux
from live_runs import RunBeingWritten
from pydantic import ValidationError
from rich.console import Console
from run_plans import A_MODEL, a_document, a_plan

from harness.fakes import ScriptedModel
from harness.limits import Limits
from harness.protocols import load_protocol
from harness.trajectory import Outcome
from tbench.agents.model_agent import ModelAgent
from tbench.agents.trial_agent import AgentReport, NopAgent, TrialAgent, Workplace
from tbench.cli.progress import LiveView
from tbench.config.document import RunPlan
from tbench.config.settings import RunConfig
from tbench.errors import TrialError, UsageError
from tbench.events import Event, Events, RunStarted, TrialFinished, TrialPhase
from tbench.results import ImageOrigin, TrialResult
from tbench.runs.live.commands import LiveControl
from tbench.runs.plan import plan_trials
from tbench.runs.resume import EarlierRun
from tbench.runs.run import Run, RunOutcome, execute_run
from tbench.runs.stop_policy import PlannedStop
from tbench.sandbox.archive import unpack
from tbench.sandbox.backend import Capacity
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.storage.read_run import read_plan
from tbench.storage.run_store import RunStore
from tbench.tasks.environment import Environment
from tbench.tasks.sources import TaskSet, read_tasks
from tbench.tasks.task import Task
from tbench.view.run_state import WatchedRun

MakeTask = Any
EIGHT_CPUS = Capacity(8, 1e6)
RESULT_KEYS = {
    "schema_version", "run", "trial", "task", "seed", "attempt", "final", "agent", "model", "reward", "outcome",
    "error", "steps", "usage", "replies_from", "replies", "timings", "started_at", "finished_at", "human_touched",
    "integrity", "host", "out_of_memory", "image_id", "image_origin", "task_steps", "reward_all_steps", "metrics",
    "verifier_image_id", "verifier_image_origin", "machine", "memory_peak_mb", "went_on",
}  # fmt: skip
TIMING_KEYS = {
    "queue_sec", "sandbox_sec", "agent_sec", "model_sec", "waited_sec", "command_sec", "verifier_sec",
    "tests_sec", "teardown_sec", "wall_sec",
}  # fmt: skip
USAGE_KEYS = {"prompt_tokens", "completion_tokens", "cached_tokens", "uncounted"}
ERROR_KEYS = {"stage", "type", "blame", "retryable", "message"}


def plan_of(**more: Any) -> RunPlan:
    return a_plan(**{"seeds": (0, 1), "agent": "nop", "concurrency": 2} | more)


@pytest.fixture
def tasks(make_task: MakeTask) -> TaskSet:
    paths = [make_task(name) for name in ("alpha", "beta", "gamma")]
    return read_tasks(str(paths[0].parent))


@dataclass
class Finished:
    """A finished run and its files."""

    outcome: RunOutcome
    directory: Path
    seen: list[Event]

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in (self.directory / "results.jsonl").read_text().splitlines()]

    @property
    def journal(self) -> list[Any]:
        return [json.loads(line) for line in (self.directory / "journal.jsonl").read_text().splitlines()]


class Bench:
    """Makes runs and executes them."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.directory = directory
        self.seen: list[Event] = []
        self.make_sandbox: Callable[[Task], FakeSandbox] = lambda _: FakeSandbox()
        self.sandboxes = FakeBackend()

    def prepare(
        self,
        tasks: TaskSet,
        plan: RunPlan | None = None,
        *,
        agent: Callable[[], TrialAgent] = NopAgent,
        capacity: Capacity = EIGHT_CPUS,
        subscriber: Callable[[Event], None] | None = None,
    ) -> Run:
        self.sandboxes = FakeBackend(self.make_sandbox, capacity)
        store = self._stack.enter_context(contextlib.closing(RunStore.create(self.directory, a_document())))
        events = Events(self.seen.append, *([subscriber] if subscriber else []))
        plan = plan or plan_of()
        run = Run(plan, tasks, make_agent=agent, backend=self.sandboxes, store=store, events=events)
        events.emit(RunStarted(run=plan.run, trials=len(plan_trials(tasks, plan))))
        return run

    async def execute(self, *args: Any, **kwargs: Any) -> Finished:
        run = self.prepare(*args, **kwargs)
        async with asyncio.timeout(20):
            outcome = await run.execute()
            assert self.sandboxes.left == []
        return Finished(outcome, self.directory, self.seen)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        yield Bench(tmp_path / "run", stack)


async def test_each_result_has_what_the_machine_went_through(bench: Bench, tasks: TaskSet) -> None:
    finished = await bench.execute(tasks, capacity=Capacity(8, 1e6, is_this_machine=True))
    assert all(line["host"]["memory_available_min_mb"] > 0 for line in finished.lines)
    assert "host watch" not in {task.get_name() for task in asyncio.all_tasks()}


class StuckIn(NopAgent):
    """Works on every task at once, but forever on some."""

    def __init__(self, names: set[str], reached: asyncio.Semaphore) -> None:
        self._names = names
        self._reached = reached

    async def work(self, place: Workplace) -> AgentReport:
        if place.task.name in self._names:
            self._reached.release()
            await asyncio.Future()
        return await super().work(place)


# -- plans ---------------------------------------------------------------------------------------


def test_a_plan_is_tasks_times_seeds_seed_by_seed(tasks: TaskSet) -> None:
    plans = plan_trials(tasks, plan_of(seeds=(0, 5)))
    assert [(plan.task_name, plan.seed) for plan in plans] == [
        (name, seed) for seed in (0, 5) for name in ("alpha", "beta", "gamma")
    ]


def test_tasks_that_cannot_be_read_are_planned_too(tasks: TaskSet) -> None:
    plans = plan_trials(TaskSet(tasks.tasks, {"aaa": "task.toml: missing"}), plan_of(seeds=(0,)))
    assert [(plan.task_name, plan.task is None) for plan in plans][:2] == [("aaa", True), ("alpha", False)]
    assert plans[0].invalid == "task.toml: missing"


def ids(tasks: TaskSet, **more: Any) -> list[str]:
    return [plan.trial for plan in plan_trials(tasks, plan_of(**more))]


def test_the_same_plan_has_the_same_ids_and_all_are_different(tasks: TaskSet) -> None:
    assert ids(tasks) == ids(tasks)
    assert len(set(ids(tasks))) == 6
    assert ids(tasks)[0].startswith("alpha.s0.")


@pytest.mark.parametrize(
    "other",
    [
        {"agent": "oracle"},
        {"model": "other"},
        {"protocol": "bash-block"},
        {"prompt_hash": "h"},
        {"settling": "strict"},
        {"temperature": 1},
        {"steps": 3},
    ],
)
def test_ids_differ_where_something_else_is_measured(tasks: TaskSet, other: dict[str, Any]) -> None:
    assert not set(ids(tasks, **A_MODEL | other)) & set(ids(tasks, **A_MODEL))


@pytest.mark.parametrize(
    "other",
    [
        {"concurrency": 9},
        {"base_url": "http://elsewhere:8001/v1"},
        {"cpu_overcommit": 4.0},
        {"max_load": 2.0},
        {"run": "another"},
        {"source": "elsewhere"},
        {"build": True},
        {"served": {"id": "m", "context_tokens": 8192}},
    ],
)
def test_ids_are_the_same_where_only_place_and_speed_differ(tasks: TaskSet, other: dict[str, Any]) -> None:
    assert ids(tasks, **A_MODEL | other) == ids(tasks, **A_MODEL)


def test_an_id_does_not_depend_on_the_other_seeds(tasks: TaskSet) -> None:
    assert ids(tasks, seeds=(1,)) == ids(tasks, seeds=(0, 1))[3:]


def test_an_id_changes_with_the_tasks_content_only(tasks: TaskSet) -> None:
    before = ids(tasks)
    (tasks.tasks[1].path / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    changed = TaskSet(tuple(Task.read(task.path) for task in tasks.tasks), {})
    after = ids(changed)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True] * 2


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"cpu_overcommit": 0}])
def test_a_configuration_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        plan_of(**wrong)
    with pytest.raises(ValidationError, match="colour"):
        RunConfig.model_validate({"schedule": {"colour": "red"}})


# -- runs ----------------------------------------------------------------------------------------


async def test_every_trial_has_a_line_and_a_directory(bench: Bench, tasks: TaskSet) -> None:
    done = await bench.execute(tasks)
    planned = {plan.trial for plan in plan_trials(tasks, plan_of())}
    assert {line["trial"] for line in done.lines} == planned
    assert not done.outcome.interrupted
    for line in done.lines:
        directory = done.directory / "trials" / line["task"] / f"seed-{line['seed']}"
        stored = TrialResult.model_validate_json((directory / "result.json").read_text())
        assert (stored.trial, stored.reward) == (line["trial"], 1.0)


async def test_the_lines_are_the_results(bench: Bench, tasks: TaskSet) -> None:
    done = await bench.execute(tasks)
    assert [TrialResult.model_validate(line) for line in done.lines] == done.outcome.results


async def test_a_line_has_exactly_the_keys_of_the_design(bench: Bench, tasks: TaskSet) -> None:
    bench.make_sandbox = lambda task: FakeSandbox({} if task.name == "beta" else {"verifier/reward.txt": b"1"})
    done = await bench.execute(tasks)
    errors = 0
    for line in done.lines:
        assert set(line) == RESULT_KEYS
        assert set(line["timings"]) == TIMING_KEYS
        assert set(line["usage"]) == USAGE_KEYS
        if line["error"] is not None:
            assert set(line["error"]) == ERROR_KEYS
            errors += 1
        assert isinstance(line["reward"], float) is (line["error"] is None)
    assert errors == 2


async def test_the_journal_has_the_life_of_every_trial_in_order(bench: Bench, tasks: TaskSet) -> None:
    done = await bench.execute(tasks)
    assert done.journal[0] == {"kind": "run_started", "run": "r", "trials": 6}
    assert done.journal[-1] == {"kind": "run_ended", "interrupted": False}
    for trial in {line["trial"] for line in done.lines}:
        own = [entry for entry in done.journal if trial in (entry.get("trial"), entry.get("result", {}).get("trial"))]
        entries = [entry.get("phase") or entry["kind"] for entry in own]
        assert entries == [
            "queued", "sandbox", "agent", "verifier", "trial_verdict", "teardown", "trial_finished", "done",
        ]  # fmt: skip


async def test_one_failure_of_each_kind_leaves_the_other_trials_alone(
    bench: Bench, tasks: TaskSet, make_task: MakeTask
) -> None:
    make_task("unsupported", toml="[environment]\ntpu = { type = 'v4', topology = '2x2x1' }\n")
    make_task("malformed", toml="[agent\n")
    make_task("unbuildable")
    make_task("buggy")
    make_task("silent")

    def make(task: Task) -> FakeSandbox:
        if task.name == "unbuildable":
            raise TrialError("image_build_failed", "environment/Dockerfile: no")
        if task.name == "buggy":
            raise KeyError("a bug")
        return FakeSandbox({}) if task.name == "silent" else FakeSandbox()

    bench.make_sandbox = make
    done = await bench.execute(read_tasks(str(tasks.tasks[0].path.parent)), plan_of(seeds=(0,)))
    found = {line["task"]: line["error"]["type"] if line["error"] else line["reward"] for line in done.lines}
    assert found == {
        "alpha": 1.0,
        "beta": 1.0,
        "gamma": 1.0,
        "unsupported": "task_unsupported",
        "malformed": "task_invalid",
        "unbuildable": "image_build_failed",
        "buggy": "internal",
        "silent": "verifier_no_reward",
    }
    assert "KeyError: 'a bug'" in (done.directory / "trials/buggy/seed-0/traceback.txt").read_text()


async def test_all_seeds_are_judged_by_the_tests_that_the_hash_names(bench: Bench, tasks: TaskSet) -> None:
    """The tests are edited on the host after the first verdict."""

    class Editing(NopAgent):
        async def work(self, place: Workplace) -> AgentReport:
            if place.seed == 1:
                (place.task.path / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt")
            return await super().work(place)

    alpha = TaskSet(tasks.tasks[:1], {})
    script = (alpha.tasks[0].path / "tests" / "test.sh").read_bytes()
    await bench.execute(alpha, plan_of(seeds=(0, 1, 2), concurrency=1), agent=Editing)
    asked = [each for made in bench.sandboxes.made.values() for each in (made, *made.copies)]
    judged = [call.stdin for made in asked for call in made.calls if call.stdin]
    archives = [unpack(io.BytesIO(stdin), 1 << 20) for stdin in judged]
    assert [files["tests/test.sh"] for files in archives if files] == [script] * 3


async def test_trials_that_do_not_fit_together_wait(bench: Bench, tasks: TaskSet) -> None:
    at_once = most = 0

    class Counting(NopAgent):
        async def work(self, place: Workplace) -> AgentReport:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.05)  # long enough for others to start in
            at_once -= 1
            return await super().work(place)

    await bench.execute(tasks, plan_of(concurrency=6), agent=Counting, capacity=Capacity(2, 1e6))
    assert most == 2


async def test_every_trial_gets_its_own_agent_and_sandbox(bench: Bench, tasks: TaskSet) -> None:
    made: list[NopAgent] = []

    def agent() -> NopAgent:
        made.append(NopAgent())
        return made[-1]

    await bench.execute(tasks, agent=agent)
    assert len(made) == 6
    assert len({id(sandbox) for sandbox in bench.sandboxes.made.values()}) == 6


async def test_a_directory_with_a_run_is_refused_and_kept(bench: Bench, tasks: TaskSet) -> None:
    done = await bench.execute(tasks)
    before = (done.directory / "results.jsonl").read_bytes()
    with pytest.raises(UsageError, match="nothing is overwritten"):
        bench.prepare(tasks)
    assert (done.directory / "results.jsonl").read_bytes() == before


async def test_an_interrupted_run_keeps_what_has_finished_and_removes_the_rest(bench: Bench, tasks: TaskSet) -> None:
    reached = asyncio.Semaphore(0)
    finished: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, TrialFinished):
            finished.append(event.result.task)
            reached.release()

    run = bench.prepare(tasks, plan_of(seeds=(0,)), agent=lambda: StuckIn({"beta", "gamma"}, reached), subscriber=note)
    running = asyncio.create_task(run.execute())
    async with asyncio.timeout(20):
        for _ in range(3):
            await reached.acquire()
        running.cancel()
        await asyncio.wait({running})
    outcome = run.outcome
    assert running.cancelled() and outcome.interrupted
    assert finished == [result.task for result in outcome.results] == ["alpha"]
    assert bench.sandboxes.left == []
    done = Finished(outcome, bench.directory, bench.seen)
    assert [line["task"] for line in done.lines] == ["alpha"]
    assert done.journal[-1] == {"kind": "run_ended", "interrupted": True}


async def test_a_run_interrupted_at_once_has_no_results_and_no_sandboxes(bench: Bench, tasks: TaskSet) -> None:
    run = bench.prepare(tasks, agent=lambda: StuckIn({"alpha", "beta", "gamma"}, asyncio.Semaphore(0)))
    running = asyncio.create_task(run.execute())
    async with asyncio.timeout(20):
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})
    assert running.cancelled()
    assert (run.outcome.interrupted, run.outcome.results, bench.sandboxes.left) == (True, [], [])


async def test_an_attempt_is_seen_and_paused_while_the_one_before_it_is_still_torn_down(
    bench: Bench, tasks: TaskSet, tmp_path: Path
) -> None:
    at_work, may_end = asyncio.Event(), asyncio.Event()
    removed = asyncio.Semaphore(0)
    live = LiveView()

    class Slow(FakeSandbox):
        async def remove(self) -> None:
            await at_work.wait()
            await super().remove()

    class FailsOnce(NopAgent):
        attempts = 0

        async def work(self, place: Workplace) -> AgentReport:
            FailsOnce.attempts += 1
            if FailsOnce.attempts == 1:
                raise TrialError("sandbox_lost", "gone")
            at_work.set()
            await may_end.wait()
            return await super().work(place)

    def note(event: Event) -> None:
        live(event)
        if isinstance(event, TrialPhase) and event.phase == "done":
            removed.release()

    bench.make_sandbox = lambda _: Slow()
    alpha = TaskSet(tasks.tasks[:1], {})
    run = bench.prepare(alpha, plan_of(seeds=(0,), retries=1), agent=FailsOnce, subscriber=note)
    running = asyncio.create_task(run.execute())
    async with asyncio.timeout(20):
        await removed.acquire()
        watched = WatchedRun(read_plan(bench.directory))
        watched.follow(None)
        assert [(each.attempt, each.phase) for each in watched.trials.values()] == [(2, "agent")]
        control = LiveControl(run.control)
        assert [(each.attempt, each.phase) for each in control.state().trials] == [(2, "agent")]
        assert control.pause("alpha", now=False) == "alpha/0: will be held at its next model call"
        console = Console(file=io.StringIO(), width=80, height=24)
        with console.capture() as shown:
            console.print(live.render(80, 24))
        assert "alpha · 0  agent" in shown.get()
        may_end.set()
        await running

    # Tests of the viewer have journals that are written to look like a run's.
    with RunBeingWritten(tmp_path / "written", ("alpha",), seeds=1) as written:
        written.begin("alpha", 0)
        written.judge("alpha", 0, None, final=False)
        written.begin("alpha", 0, attempt=2)
        written.judge("alpha", 0, 1.0)
        written.end()
    assert entries_of(tmp_path / "written") == entries_of(bench.directory)


def entries_of(run: Path) -> list[tuple[str, int | None, str | None]]:
    """The events of a journal: their kinds, attempts and phases, in order."""
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return [(each["kind"], each.get("result", each).get("attempt"), each.get("phase")) for each in events]


async def test_an_interruption_during_a_teardown_loses_nothing(bench: Bench, tasks: TaskSet) -> None:
    removing, may_go = asyncio.Event(), asyncio.Event()

    class Slow(FakeSandbox):
        async def remove(self) -> None:
            removing.set()
            await may_go.wait()
            await super().remove()

    bench.make_sandbox = lambda _: Slow()
    run = bench.prepare(TaskSet(tasks.tasks[:1], {}), plan_of(seeds=(0,)))
    running = asyncio.create_task(run.execute())
    async with asyncio.timeout(20):
        await removing.wait()
        running.cancel()
        await asyncio.sleep(0)
        may_go.set()
        await asyncio.wait({running})
    assert running.cancelled() and not run.outcome.interrupted  # it came to its end all the same
    assert [result.reward for result in run.outcome.results] == [1.0]
    assert bench.sandboxes.left == []


async def test_a_teardown_does_not_hold_a_place(bench: Bench, tasks: TaskSet) -> None:
    at_work = asyncio.Event()

    class Waiting(FakeSandbox):
        async def remove(self) -> None:
            await at_work.wait()
            await super().remove()

    class Second(NopAgent):
        async def work(self, place: Workplace) -> AgentReport:
            if place.task.name == "beta":
                at_work.set()
            return await super().work(place)

    bench.make_sandbox = lambda _: Waiting()
    done = await bench.execute(TaskSet(tasks.tasks[:2], {}), plan_of(seeds=(0,), concurrency=1), agent=Second)
    assert len(done.outcome.results) == 2


@pytest.mark.parametrize("kind", ["trial_verdict", "trial_finished"])
async def test_a_subscriber_that_fails_stops_the_run_loudly_and_leaves_no_sandbox(
    bench: Bench, tasks: TaskSet, kind: str
) -> None:
    def full_disk(event: Event) -> None:
        if event.kind == kind:
            raise OSError("No space left on device")

    run = bench.prepare(tasks, subscriber=full_disk)
    async with asyncio.timeout(20):
        with pytest.raises(OSError, match="No space left"):
            await run.execute()
    assert bench.sandboxes.made
    assert bench.sandboxes.left == []


async def test_no_bug_at_a_trials_end_hides_another(bench: Bench, tasks: TaskSet) -> None:
    def fail(event: Event) -> None:
        if event.kind == "trial_finished":
            raise LookupError(event.result.task)

    run = bench.prepare(tasks, plan_of(seeds=(0,)), subscriber=fail)
    async with asyncio.timeout(20):
        with pytest.raises(LookupError) as raised:
            await run.execute()
    bugs = [str(raised.value), *(note.rpartition(": ")[2] for note in raised.value.__notes__)]
    assert sorted(bugs) == ["alpha", "beta", "gamma"]


# -- the backend ----------------------------------------------------------------------------------


class Plain:
    """A sandbox with the mandatory methods only."""


class PlainBackend(FakeBackend):
    """A backend whose sandboxes have no optional capability."""

    name = "the plain backend"
    sandbox_type = Plain


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"verify": "isolated"}, "--verify isolated: the plain backend cannot compare a sandbox with its image"),
        ({"verify": "both"}, "--verify both: the plain backend cannot compare a sandbox with its image"),
        ({"snapshot": True, "verify": "shared"}, "--snapshot: the plain backend cannot take snapshots"),
        (
            {"keep": "failed", "verify": "shared"},
            "--keep failed: the plain backend cannot keep a sandbox beyond its run",
        ),
    ],
)
async def test_a_mode_that_the_backend_cannot_do_is_refused_before_anything_starts(
    tasks: TaskSet, tmp_path: Path, asked: dict[str, Any], words: str
) -> None:
    backend = PlainBackend()
    with pytest.raises(UsageError, match=words):
        await execute_run(plan_of(**asked), tasks, tmp_path / "run", NopAgent, Events(), backend=backend)
    assert not (tmp_path / "run").exists()
    assert not backend.made


class NeverReady(FakeBackend):
    """A backend whose opening never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.opening = asyncio.Event()

    async def open(self, say: Callable[[str], None]) -> None:
        await super().open(say)
        self.opening.set()
        await asyncio.Future()


async def test_a_planned_stop_leaves_its_reason_with_the_run(tasks: TaskSet, tmp_path: Path) -> None:
    stop = PlannedStop(datetime.now())

    def note(event: Event) -> None:
        if isinstance(event, TrialPhase):
            stop.begin("--for 1h")

    events = Events(note)
    running = asyncio.create_task(
        execute_run(plan_of(), tasks, tmp_path / "run", NopAgent, events, backend=FakeBackend(), stop=stop)
    )
    await asyncio.wait({running})
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (document["status"], document["stopped"]) == ("interrupted", "--for 1h")


async def test_a_run_that_is_cancelled_before_its_first_trial_is_interrupted(tasks: TaskSet, tmp_path: Path) -> None:
    backend, ended = NeverReady(), list[RunOutcome]()
    running = asyncio.create_task(
        execute_run(plan_of(), tasks, tmp_path / "run", NopAgent, Events(), backend=backend, on_end=ended.append)
    )
    await backend.opening.wait()
    lines = (tmp_path / "run" / "journal.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == [{"kind": "run_started", "run": "r", "trials": 6}]
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled() and [(each.results, each.interrupted) for each in ended] == [([], True)]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"
    assert not backend.is_open


async def test_a_time_limit_around_runs_one_after_another_ends_them_and_keeps_what_was_done(
    tasks: TaskSet, tmp_path: Path
) -> None:
    reached, ended = asyncio.Semaphore(0), list[RunOutcome]()

    def note(event: Event) -> None:
        if isinstance(event, TrialFinished):
            reached.release()

    async def runs() -> None:
        for number in range(3):
            await execute_run(
                plan_of(seeds=(0,)),
                tasks,
                tmp_path / f"run-{number}",
                lambda: StuckIn({"gamma"}, reached),
                Events(note),
                backend=FakeBackend(),
                on_end=ended.append,
            )

    async def limited() -> None:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
            group.create_task(strike(limit))
            await runs()

    async def strike(limit: asyncio.Timeout) -> None:
        for _ in range(3):  # gamma stuck, and the two others finished
            await reached.acquire()
        limit.reschedule(0)

    with pytest.raises(TimeoutError):
        await limited()
    assert not (tmp_path / "run-1").exists()
    assert json.loads((tmp_path / "run-0/run.json").read_text())["status"] == "interrupted"
    lines = (tmp_path / "run-0/results.jsonl").read_text().splitlines()
    assert {json.loads(line)["task"] for line in lines} == {"alpha", "beta"}
    (outcome,) = ended
    assert outcome.interrupted and len(outcome.results) == 2


async def test_run_json_says_where_the_sandboxes_were(tasks: TaskSet, tmp_path: Path) -> None:
    backend = FakeBackend(capacity=Capacity(3, 512))
    await execute_run(plan_of(), tasks, tmp_path / "run", NopAgent, Events(), backend=backend)
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    assert document["engine"] == {"backend": "fake", "cpus": 3, "memory_mb": 512}
    assert {task["image_id"] for task in document["tasks"]} == {"fake"}


def images_in(directory: Path) -> tuple[list[Any], list[Any]]:
    """Return the images in run.json and in the results, with their origins."""
    tasks = json.loads((directory / "run.json").read_text())["tasks"]
    lines = [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]
    shown = [[(each["image_id"], (each["image_origin"] or {}).get("how")) for each in kind] for kind in (tasks, lines)]
    return shown[0], shown[1]


async def test_results_and_run_json_say_where_images_came_from_and_a_later_start_keeps_it(
    make_task: MakeTask, tmp_path: Path
) -> None:
    class Building(FakeBackend):
        async def sandbox(self, environment: Environment, *more: Any) -> FakeSandbox:
            made = await super().sandbox(environment, *more)
            self.image_origins[environment.name] = ImageOrigin(how="built", reference="tbench/a:1", built_from="1")
            return made

    make_task("a")
    tasks = read_tasks(str(make_task("b", toml="[environment]\ntpu = { type = 'v4', topology = '2x2x1' }\n").parent))
    directory = tmp_path / "run"
    await execute_run(plan_of(seeds=(0,)), tasks, directory, NopAgent, Events(), backend=Building())
    assert images_in(directory) == ([("fake", "built"), (None, None)], [(None, None), ("fake", "built")])
    earlier = EarlierRun.read(directory)
    await execute_run(plan_of(), tasks, directory, NopAgent, Events(), backend=FakeBackend(), earlier=earlier)
    planned, results = images_in(directory)
    assert planned == [("fake", "built"), (None, None)]
    assert results[2:] == [(None, None), ("fake", "present")]


async def test_the_data_of_an_ended_trial_is_freed_without_the_garbage_collector(bench: Bench, tasks: TaskSet) -> None:
    """A history has megabytes, and full collections are rare, because each stops all other trials."""
    done = '{"analysis": "", "plan": "", "commands": [], "task_complete": true}'
    made: list[weakref.ref[Any]] = []

    class Watched(ModelAgent):
        async def work(self, place: Workplace) -> AgentReport:
            report = await super().work(place)
            made.extend((weakref.ref(self), weakref.ref(self._agent)))
            return report

    def agent() -> Watched:
        return Watched(ScriptedModel([done, done]), load_protocol("keystrokes-json"), Limits(steps=3))

    bench.make_sandbox = lambda _: FakeSandbox(connect=FakeTmux().connect)
    gc.collect()
    gc.disable()
    try:
        finished = await bench.execute(tasks, agent=agent)
        await asyncio.sleep(0)
        assert {result.outcome for result in finished.outcome.results} == {Outcome.SUBMITTED}
        assert made
        assert [each() for each in made if each() is not None] == []
    finally:
        gc.enable()
