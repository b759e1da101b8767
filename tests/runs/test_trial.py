"""trial: verdicts, every kind of failure and the files left behind, over a fake sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_tmux import Answer, FakeTmux
from full_disk import files_end_at
from run_plans import a_config, a_document

from harness.checkpoint import Checkpoint, Counts, HistoryCounts
from harness.fakes import ScriptedModel
from harness.limits import Limits
from harness.protocols import load_protocol
from harness.trajectory import Outcome, Reply, Step, Trajectory, Usage
from tbench.agents.model_agent import ModelAgent
from tbench.agents.trial_agent import AgentReport, NopAgent, OracleAgent, TrialAgent, Workplace
from tbench.config.settings import Verify, VerifyConfig
from tbench.errors import KINDS, TrialError
from tbench.events import Event, Events, TrialFinished, TrialPhase, TrialStep, TrialVerdict
from tbench.results import TrialResult
from tbench.runs.plan import as_configured
from tbench.runs.trial import Trial
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.backend import ExecResult
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.storage.read_run import read_steps
from tbench.storage.run_store import RunStore
from tbench.tasks.task import Task

MakeTask = Any
PYTEST = "uvx pytest /tests/test_outputs.py\n"
STEPS = Trajectory(
    protocol="p",
    steps=(Step(index=1, reply=Reply(content="hi"), model_sec=1.0, command_sec=2.0),),
    outcome=Outcome.SUBMITTED,
    usage=Usage(prompt_tokens=7, completion_tokens=3),
    model_sec=1.0,
    command_sec=2.0,
)


class ScriptedAgent:
    """Takes one action."""

    name = "scripted"

    def __init__(self, does: Callable[[Workplace], AgentReport], partial: Trajectory | None = None) -> None:
        self._does = does
        self._partial = partial

    async def work(self, place: Workplace) -> AgentReport:
        return self._does(place)

    def partial(self) -> Trajectory | None:
        return self._partial


def raising(error: Exception, partial: Trajectory | None = None) -> ScriptedAgent:
    def does(_: Workplace) -> AgentReport:
        raise error

    return ScriptedAgent(does, partial)


def logs(reward: bytes, **more: bytes) -> dict[str, bytes]:
    return {"verifier/reward.txt": reward, **{f"verifier/{name}.txt": data for name, data in more.items()}}


def edit_the_tests(place: Workplace, script: bytes) -> AgentReport:
    """Changes that a user may make on the host during a run."""
    (place.task.path / "tests" / "test.sh").write_bytes(script)
    return AgentReport(Outcome.FINISHED)


class Bench:
    """A trial and everything around it."""

    def __init__(self, tmp_path: Path, sandboxes: FakeBackend) -> None:
        self.store = RunStore.create(tmp_path / "run", a_document())
        self.sandboxes = sandboxes
        self.seen: list[Event] = []
        self.events = Events(self.seen.append)
        self.directory = self.store.trial_dir("small-task", 3)

    def trial(self, task: Task | None, agent: TrialAgent, verify: VerifyConfig | None = None) -> Trial:
        plan = TrialPlan("small-task.s3.x", "small-task", 3, task, "" if task else "task.toml: missing")
        return Trial(
            plan,
            run="r",
            make_agent=lambda: agent,
            model="m",
            backend=self.sandboxes,
            store=self.store,
            events=self.events,
            verify=verify,
        )

    async def run(self, task: Task | None, agent: TrialAgent | None = None) -> TrialResult:
        async with asyncio.timeout(20):
            tear_down = await self.trial(task, agent or NopAgent()).run(queue_sec=0.25)
            result = await tear_down()
        assert self.sandboxes.left == []
        return result

    @property
    def stored(self) -> TrialResult:
        return TrialResult.model_validate_json((self.directory / "result.json").read_text())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(sandbox: FakeSandbox | None = None, *, refuses: TrialError | None = None) -> Bench:
        def one(_: Task) -> FakeSandbox:
            if refuses is not None:
                raise refuses
            return sandbox or FakeSandbox()

        made.append(Bench(tmp_path, FakeBackend(one)))
        return made[-1]

    yield make
    for bench in made:
        bench.store.close()


MakeBench = Callable[..., Bench]


@pytest.mark.parametrize("reward", [0.0, 0.605, 1.0])
async def test_a_verdict_is_a_reward_without_error(bench: MakeBench, make_task: MakeTask, reward: float) -> None:
    made = bench(FakeSandbox(logs(str(reward).encode(), stdout=b"1 passed in 1s")))
    result = await made.run(Task.read(make_task()))
    assert (result.reward, result.error, result.outcome) == (reward, None, Outcome.FINISHED)
    assert (result.run, result.trial, result.task, result.seed) == ("r", "small-task.s3.x", "small-task", 3)
    assert (result.agent, result.model, result.attempt, result.final) == ("nop", "m", 1, True)


async def test_the_task_says_which_rewards_it_gives(bench: MakeBench, make_task: MakeTask) -> None:
    task = Task.read(make_task(toml="[verifier]\nreward_range = [-1, 2.5]\n"))
    assert (await bench(FakeSandbox(logs(b"2.5"))).run(task)).reward == 2.5


async def test_a_reward_out_of_range_is_an_error(bench: MakeBench, make_task: MakeTask) -> None:
    result = await bench(FakeSandbox(logs(b"2.5"))).run(Task.read(make_task()))
    assert result.reward is None and result.error is not None
    assert result.error.type == "verifier_bad_reward"
    assert "'2.5', which is outside of the range from 0 to 1 ([verifier] reward_range" in result.error.message


async def test_the_verifiers_files_are_stored_beside_the_result(bench: MakeBench, make_task: MakeTask) -> None:
    files = logs(b"1", stdout=b"fine", ctrf=b"{}") | {"agent/notes.txt": b"n", "artifacts/a/b": b"\xff"}
    made = bench(FakeSandbox(files))
    await made.run(Task.read(make_task()))
    kept = {path.relative_to(made.directory).as_posix() for path in made.directory.rglob("*") if path.is_file()}
    assert kept == {*files, "result.json"}


async def test_the_agents_own_files_cannot_pass_for_ours(bench: MakeBench, make_task: MakeTask) -> None:
    names = ("result.json", "trajectory.json", "steps.jsonl", "session.cast", "traceback.txt")
    planted = dict.fromkeys(names, b"forged")
    made = bench(FakeSandbox(logs(b"1") | planted))
    await made.run(Task.read(make_task()))
    forged = [path.name for path in made.directory.rglob("*") if path.is_file() and path.read_bytes() == b"forged"]
    assert forged == []


async def test_steps_tokens_and_times_come_from_the_trajectory(bench: MakeBench, make_task: MakeTask) -> None:
    made = bench()
    result = await made.run(Task.read(make_task()), ScriptedAgent(lambda _: AgentReport(Outcome.SUBMITTED, STEPS)))
    assert (result.steps, result.usage, result.outcome) == (1, STEPS.usage, Outcome.SUBMITTED)
    assert (result.timings.model_sec, result.timings.command_sec, result.timings.queue_sec) == (1.0, 2.0, 0.25)
    assert Trajectory.model_validate_json((made.directory / "trajectory.json").read_text()) == STEPS


class Watching(ScriptedModel):
    """Reads, at each query, the files on disk by then."""

    def __init__(self, replies: Sequence[str], directory: Path) -> None:
        super().__init__(replies, context_tokens=1 << 20)
        self.seen: list[tuple[int, int]] = []
        self._directory = directory

    async def query(self, *arguments: Any, **options: Any) -> Reply:
        recorded = (self._directory / "session.cast").read_text(errors="replace").count("make report")
        self.seen.append((len(read_steps(self._directory)), recorded))
        return await super().query(*arguments, **options)


async def test_after_each_step_the_steps_and_the_session_are_on_disk(bench: MakeBench, make_task: MakeTask) -> None:
    made = bench(FakeSandbox(connect=FakeTmux(lambda _: Answer("done\n")).connect))
    reply = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "make report\\n", "duration": 5.0}]}'
    model = Watching([reply] * 3, made.directory)
    agent = ModelAgent(model, load_protocol("keystrokes-json"), Limits(steps=3))
    result = await made.run(Task.read(make_task()), agent)
    assert [steps for steps, _ in model.seen] == [0, 1, 2]
    recorded = [count for _, count in model.seen]
    assert recorded[0] == 0 and recorded[2] > recorded[1] > 0
    trajectory = Trajectory.model_validate_json((made.directory / "trajectory.json").read_text())
    assert (result.steps, read_steps(made.directory)) == (3, list(trajectory.steps))
    assert trajectory.warnings == {}


async def test_a_disk_that_fills_up_costs_steps_on_disk_and_not_the_trial(
    bench: MakeBench, make_task: MakeTask
) -> None:
    def works(place: Workplace) -> AgentReport:
        with files_end_at(10):
            place.on_step_done(STEPS.steps[0])
        return AgentReport(Outcome.SUBMITTED, STEPS)

    made = bench()
    assert (await made.run(Task.read(make_task()), ScriptedAgent(works))).reward == 1.0
    trajectory = Trajectory.model_validate_json((made.directory / "trajectory.json").read_text())
    assert trajectory == STEPS.model_copy(update={"warnings": {"steps_incomplete": 1}})


async def test_a_secret_of_the_task_is_hidden_in_the_line_of_a_step(
    bench: MakeBench, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED", "open-sesame-0815")

    def shows(place: Workplace) -> AgentReport:
        place.on_step(2, f"{'x' * 93} open-sesame-0815 {'x' * 200}")
        return AgentReport(Outcome.SUBMITTED)

    made = bench()
    toml = '[environment]\nallow_internet = false\n[environment.env]\nTOKEN = "${PLANTED}"\n'
    await made.run(Task.read(make_task(toml=toml)).with_access(["PLANTED"]), ScriptedAgent(shows))
    (line,) = [event.line for event in made.seen if isinstance(event, TrialStep)]
    assert "[PLANT" in line and "open-" not in line and len(line) < 210


async def test_every_timing_is_a_duration(bench: MakeBench, make_task: MakeTask) -> None:
    timings = (await bench().run(Task.read(make_task()))).timings.model_dump()
    assert all(value >= 0 for value in timings.values())
    assert timings["wall_sec"] >= max(timings["sandbox_sec"], timings["agent_sec"], timings["verifier_sec"])


async def test_the_agent_gets_the_tasks_limit_its_seed_and_its_directory(bench: MakeBench, make_task: MakeTask) -> None:
    places: list[Workplace] = []

    def look(place: Workplace) -> AgentReport:
        places.append(place)
        place.on_step(1, "$ ls\n")
        return AgentReport(Outcome.SUBMITTED)

    made = bench()
    await made.run(Task.read(make_task(toml="[agent]\ntimeout_sec = 12.5\n")), ScriptedAgent(look))
    assert (places[0].timeout_sec, places[0].seed, places[0].directory) == (12.5, 3, made.directory)
    assert TrialStep(trial="small-task.s3.x", attempt=1, step=1, line="$ ls") in made.seen


async def test_an_agent_timeout_is_judged(bench: MakeBench, make_task: MakeTask) -> None:
    result = await bench().run(Task.read(make_task()), ScriptedAgent(lambda _: AgentReport(Outcome.AGENT_TIMEOUT)))
    assert (result.reward, result.outcome, result.error) == (1.0, Outcome.AGENT_TIMEOUT, None)


async def test_the_phases_come_in_order_and_the_verdict_before_the_teardown(
    bench: MakeBench, make_task: MakeTask
) -> None:
    made = bench()
    result = await made.run(Task.read(make_task()))
    phases = [event.phase for event in made.seen if isinstance(event, TrialPhase)]
    assert phases == ["sandbox", "agent", "verifier", "teardown", "done"]
    kinds = [event.kind for event in made.seen if not isinstance(event, TrialPhase)]
    assert kinds == ["trial_verdict", "trial_finished"]
    assert TrialFinished(result=result) in made.seen


async def test_the_verdict_is_on_disk_before_the_sandbox_goes(bench: MakeBench, make_task: MakeTask) -> None:
    made = bench()
    tear_down = await made.trial(Task.read(make_task()), NopAgent()).run(queue_sec=0)
    assert made.stored.reward == 1.0
    assert made.sandboxes.left == ["small-task.s3.x"]
    await tear_down()
    assert made.sandboxes.left == []


class FullSandbox(FakeSandbox):
    """A sandbox whose agent has written too much."""

    async def disk_exceeded(self) -> asyncio.Event:
        killed = asyncio.Event()
        killed.set()
        return killed


async def test_an_agent_that_writes_too_much_is_stopped_and_judged(bench: MakeBench, make_task: MakeTask) -> None:
    stopped: list[bool] = []

    class Working(ScriptedAgent):
        async def work(self, place: Workplace) -> AgentReport:
            try:
                return await asyncio.Future()
            finally:
                stopped.append(True)

    agent = Working(lambda _: AgentReport(Outcome.SUBMITTED))
    result = await bench(FullSandbox(logs(b"0"), ())).run(Task.read(make_task()), agent)
    assert (result.reward, result.outcome, result.error, stopped) == (0.0, Outcome.DISK_LIMIT, None, [True])


FAILURES: dict[str, dict[str, Any]] = {
    "task_unsupported": {"task": {"toml": "[environment]\ntpu = { type = 'v4', topology = '2x2x1' }\n"}},
    "task_changed": {"agent": ScriptedAgent(lambda place: edit_the_tests(place, b"echo 1"))},
    "env_missing": {"task": {"toml": '[verifier]\nenv = { A = "${SURELY_UNSET}" }\n'}},
    "image_build_failed": {"refuses": TrialError("image_build_failed", "no")},
    "image_build_timeout": {"refuses": TrialError("image_build_timeout", "no")},
    "image_unavailable": {"refuses": TrialError("image_unavailable", "no")},
    "image_no_space": {"refuses": TrialError("image_no_space", "no")},
    "engine_unreachable": {"refuses": TrialError("engine_unreachable", "no")},
    "sandbox_failed": {"refuses": TrialError("sandbox_failed", "no")},
    "healthcheck_failed": {"refuses": TrialError("healthcheck_failed", "no")},
    "terminal_failed": {"agent": raising(TrialError("terminal_failed", "no"))},
    "endpoint_unavailable": {"agent": raising(TrialError("endpoint_unavailable", "no"))},
    "endpoint_refused": {"agent": raising(TrialError("endpoint_refused", "no"))},
    "request_too_large": {"agent": raising(TrialError("request_too_large", "HTTP 413"))},
    "never_answered": {"agent": raising(TrialError("never_answered", "no"))},
    "reply_timeout": {"agent": raising(TrialError("reply_timeout", "no"))},
    "agent_crashed": {"agent": raising(TrialError("agent_crashed", "ZeroDivisionError"))},
    "oracle_missing": {"agent": OracleAgent(), "task": {"solve": None}},
    "sandbox_lost": {"answers": [TrialError("sandbox_lost", "gone")]},
    "verifier_failed": {"answers": [ExecResult(97)]},
    "disk_full": {"answers": [ExecResult(97)], "sandbox": FullSandbox},
    "verifier_timeout": {"answers": [ExecResult(None, timed_out=True)]},
    "verifier_no_reward": {"logs": {}},
    "verifier_bad_reward": {"logs": logs(b"many")},
    "verifier_never_ran": {"logs": logs(b"0"), "task": {"test": PYTEST}},
    "verifier_tampered": {"answers": [ExecResult(137)]},
    "internal": {"agent": raising(ZeroDivisionError("a bug"))},
}


@pytest.mark.parametrize("type_", FAILURES)
async def test_a_failure_is_attributed_and_never_a_zero(bench: MakeBench, make_task: MakeTask, type_: str) -> None:
    case = FAILURES[type_]
    sandbox = case.get("sandbox", FakeSandbox)(case.get("logs", logs(b"1")), case.get("answers", ()))
    made = bench(sandbox, refuses=case.get("refuses"))
    task = Task.read(make_task(**case.get("task", {})))
    assert task.hash, "a run plans its trials by it"
    result = await made.run(task, case.get("agent"))
    assert result.error is not None
    kind = KINDS[type_]
    assert (result.error.type, result.error.stage, result.error.blame) == (type_, kind.stage, kind.blame)
    assert result.error.retryable == kind.retryable
    assert result.reward is None
    assert made.stored.error == result.error


async def test_a_directory_that_could_not_be_read_is_an_error_of_its_trial(bench: MakeBench) -> None:
    result = await bench().run(None)
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("task_invalid", "task.toml: missing")


def test_every_kind_of_error_can_be_made() -> None:
    tested_elsewhere = {
        *("task_invalid", "trust_missing", "image_denied", "image_rate_limited", "service_failed", "setup_failed"),
        *("artifacts_too_large", "tests_missing", "result_unwritable", "aborted", "rewound"),
    }
    assert set(KINDS) == set(FAILURES) | tested_elsewhere


async def test_a_bug_leaves_its_traceback_beside_the_result(bench: MakeBench, make_task: MakeTask) -> None:
    made = bench()
    result = await made.run(Task.read(make_task()), raising(ZeroDivisionError("a\nbug")))
    assert result.error is not None
    assert result.error.message == "ZeroDivisionError: a bug"
    assert "in does" in (made.directory / "traceback.txt").read_text()


def unstorable() -> Trajectory:
    """A trajectory that JSON cannot hold, since a list of its reply contains itself."""
    loop: list[Any] = []
    loop.append(loop)
    return STEPS.model_copy(update={"warnings": {"bug": loop}})


@pytest.mark.parametrize("error", [None, TrialError("endpoint_unavailable", "503 for an hour")])
async def test_a_trajectory_that_cannot_be_stored_is_a_bug_that_costs_its_trial_only(
    bench: MakeBench, make_task: MakeTask, error: TrialError | None
) -> None:
    made = bench()
    ended = AgentReport(Outcome.FINISHED, unstorable())
    agent = raising(error, unstorable()) if error is not None else ScriptedAgent(lambda _: ended)
    result = await made.run(Task.read(make_task()), agent)
    assert result.error is not None and (result.error.type, result.reward) == ("internal", None)
    assert "Circular reference" in result.error.message
    assert ("503 for an hour" in result.error.message) is (error is not None)
    assert "write_files" in (made.directory / "traceback.txt").read_text()
    stored = TrialResult.model_validate_json((made.directory / "result.json").read_bytes())
    assert (stored.error, stored.reward) == (result.error, None)
    assert not (made.directory / "trajectory.json").exists()


async def test_steps_before_a_failure_are_kept(bench: MakeBench, make_task: MakeTask) -> None:
    made = bench()
    error = TrialError("endpoint_unavailable", "503 for an hour")
    result = await made.run(Task.read(make_task()), raising(error, STEPS))
    assert (result.steps, result.usage) == (1, STEPS.usage)
    assert (made.directory / "trajectory.json").exists()


async def test_a_failed_verifiers_files_and_the_outcome_are_kept(bench: MakeBench, make_task: MakeTask) -> None:
    made = bench(FakeSandbox(logs(b"many", stdout=b"Traceback")))
    result = await made.run(Task.read(make_task()))
    assert result.outcome is Outcome.FINISHED
    assert (made.directory / "verifier" / "stdout.txt").read_bytes() == b"Traceback"


async def test_a_reward_whose_files_cannot_be_written_is_no_reward(bench: MakeBench, make_task: MakeTask) -> None:
    made = bench()
    (made.store.path / "trials").write_text("a file where a directory should be")
    result = await made.run(Task.read(make_task()))
    assert result.error is not None
    assert (result.error.type, result.reward) == ("result_unwritable", None)
    assert str(made.directory) in result.error.message


async def test_a_cancelled_trial_removes_its_sandbox_and_has_no_result(bench: MakeBench, make_task: MakeTask) -> None:
    at_work = asyncio.Event()

    class Stuck(NopAgent):
        async def work(self, place: Workplace) -> AgentReport:
            at_work.set()
            return await asyncio.Future()

    made = bench()
    running = asyncio.create_task(made.trial(Task.read(make_task()), Stuck()).run(queue_sec=0))
    async with asyncio.timeout(20):
        await at_work.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert made.sandboxes.left == []
    assert not (made.directory / "result.json").exists()


async def test_a_subscriber_that_fails_at_the_verdict_costs_no_container(bench: MakeBench, make_task: MakeTask) -> None:
    def full_disk(event: Event) -> None:
        if isinstance(event, TrialVerdict):
            raise OSError("No space left on device")

    made = bench()
    made.events.subscribe(full_disk)
    with pytest.raises(OSError, match="No space left"):
        await made.trial(Task.read(make_task()), NopAgent()).run(queue_sec=0)
    assert list(made.sandboxes.made) == ["small-task.s3.x"]
    assert made.sandboxes.left == []


async def test_the_verifier_runs_with_its_own_environment_user_and_limit(
    bench: MakeBench, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERIFIER_KEY", "k")
    toml = '[verifier]\ntimeout_sec = 77\nenv = { KEY = "${VERIFIER_KEY}", OTHER = "${NOT_SET_AT_ALL:-o}" }\n'
    sandbox = FakeSandbox()
    await bench(sandbox).run(Task.read(make_task(toml=toml)).with_access(["VERIFIER_KEY"]))
    call = sandbox.calls[0]
    own = {name: value for name, value in call.environment.items() if not name.startswith("TBENCH_VERIFIER_")}
    assert (own, call.user) == ({"KEY": "k", "OTHER": "o"}, "root")
    assert call.timeout_sec > 77


async def test_a_user_who_is_not_root_gets_tests_that_root_has_staged(bench: MakeBench, make_task: MakeTask) -> None:
    sandbox = FakeSandbox(runs_as_root=False)
    await bench(sandbox).run(Task.read(make_task()))
    staged, run, collected = sandbox.calls[:3]
    assert (staged.user, bool(staged.stdin)) == ("root", True)
    assert (run.user, run.stdin) == (None, b"")
    assert collected.user == "root"


async def test_secrets_of_the_host_are_in_no_file(
    bench: MakeBench, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERIFIER_KEY", "very-secret")
    made = bench()
    toml = '[verifier]\nenv = { KEY = "${VERIFIER_KEY}" }\n'
    await made.run(Task.read(make_task(toml=toml)).with_access(["VERIFIER_KEY"]))
    written = [path.read_text() for path in made.store.path.rglob("*") if path.is_file()]
    assert written
    assert not any("very-secret" in text for text in written)


async def test_a_zero_beside_a_failed_tool_stands_with_a_remark(bench: MakeBench, make_task: MakeTask) -> None:
    made = bench(FakeSandbox(logs(b"0", stdout=b"/app/run.sh: line 1: curl: command not found")))
    result = await made.run(Task.read(make_task(test="# no pytest\nbash /app/run.sh\n")))
    assert (result.reward, result.error) == (0.0, None)
    assert made.stored.integrity.remarks == ("tool-failure: a tool of the verifier is missing",)


async def test_signs_of_tampering_are_in_the_result_with_and_without_a_verdict(
    bench: MakeBench, make_task: MakeTask
) -> None:
    report = b"%b\n\n%b\ncode\t0\nevidence\t/tests/test.sh\nrepair\tcwd: made again\n%b end\n" % ((b"0" * 36,) * 3)
    result = await bench(FakeSandbox(logs={}, answers=[ExecResult(0, report)])).run(Task.read(make_task()))
    assert result.error is not None and result.error.type == "verifier_no_reward"
    assert result.integrity.evidence == ("/tests/test.sh",)
    assert result.integrity.repairs == ("cwd: made again",)
    assert result.integrity.tamper[0].startswith("planted-tests:")


async def test_all_metrics_are_kept_and_the_one_that_the_run_names_counts(
    bench: Callable[..., Bench], make_task: MakeTask
) -> None:
    sandbox = FakeSandbox({"verifier/reward.json": b'{"accuracy": 0.25, "speed": 12}'})
    config = a_config().with_values(verify={"metric": "accuracy"})
    result = await bench(sandbox).run(as_configured(Task.read(make_task()), config))
    assert (result.reward, result.metrics) == (0.25, {"accuracy": 0.25, "speed": 12.0})


async def test_the_output_of_an_entry_point_is_kept(bench: Callable[..., Bench], make_task: MakeTask) -> None:
    made = bench(FakeSandbox(printed=b"up at last\n"))
    await made.run(Task.read(make_task()))
    assert (made.directory / "entrypoint.log").read_bytes() == b"up at last\n"


# -- the container for the verdict ---------------------------------------------------------------


class Checkpointed:
    """Saves its conversation, and counts the copies of its sandbox that were started by the end of its work."""

    def __init__(self, name: str, *, claims: bool, fails: bool = False) -> None:
        self.name, self.claims, self.fails = name, claims, fails
        self.copies = -1

    async def work(self, place: Workplace) -> AgentReport:
        place.on_checkpoint(Checkpoint(0.0, 0, HistoryCounts(), Counts(warnings={}, claimed=self.claims)))
        await asyncio.sleep(0)
        assert isinstance(place.sandbox, FakeSandbox)
        self.copies = len(place.sandbox.copies)
        if self.fails:
            raise TrialError("endpoint_unavailable", "gone")
        return AgentReport(Outcome.FINISHED)

    def partial(self) -> Trajectory | None:
        return None


@pytest.mark.parametrize(
    ("mode", "name", "claims", "copies"),
    [
        ("both", "model", True, 1),
        ("isolated", "model", True, 1),
        ("both", "model", False, 0),
        ("shared", "model", True, 0),
        ("both", "oracle", False, 1),
        ("shared", "oracle", False, 0),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
async def test_the_container_for_the_verdict_starts_before_the_agent_has_ended_and_is_removed_with_the_trial(
    bench: MakeBench, make_task: MakeTask, mode: Verify, name: str, claims: bool, copies: int, fails: bool
) -> None:
    sandbox = FakeSandbox(logs(b"1"))
    made, agent = bench(sandbox), Checkpointed(name, claims=claims, fails=fails)
    tear_down = await made.trial(Task.read(make_task()), agent, VerifyConfig(mode=mode)).run(0.0)
    result = await tear_down()
    assert agent.copies == copies
    assert (result.reward is None) is fails
    assert all(copy.removed for copy in sandbox.copies) and sandbox.removed
