"""Trials of tasks with several steps over a fake sandbox: order, which steps follow, and rewards."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask
from fake_tmux import FakeTmux
from run_plans import a_document, a_plan
from step_tasks import step_task

from harness.fakes import ScriptedModel
from harness.limits import Limits
from harness.protocols import load_protocol
from harness.trajectory import Outcome, Reply, Step, Trajectory, Usage
from reports.trial.section import read_sections
from tbench.agents.model_agent import ModelAgent
from tbench.agents.trial_agent import AgentReport, TrialAgent, Workplace
from tbench.cli.progress import LiveView, PlainLines
from tbench.config.settings import SandboxConfig
from tbench.errors import TrialError
from tbench.events import Event, Events, TrialTaskStep
from tbench.exchange.contexts import RunProtocol, make_contexts
from tbench.results import TrialResult
from tbench.runs.regrade import regrade
from tbench.runs.resume import EarlierRun
from tbench.runs.run import execute_run
from tbench.runs.trial import Trial
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.archive import FileEntry, pack
from tbench.sandbox.backend import ExecResult, MakeBackend
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.scores.summarise import summarise
from tbench.storage.read_run import read_run, read_steps, read_trajectory
from tbench.storage.run_store import RunStore
from tbench.tasks.sources import read_tasks
from tbench.tasks.task import Task

TOKENS = Usage(prompt_tokens=7, completion_tokens=3)


class JudgedSandbox(FakeSandbox):
    """A sandbox in which each verifier writes the next of these files, or raises the next of these errors."""

    def __init__(self, *verdicts: Mapping[str, bytes] | Exception, setup: int = 0) -> None:
        super().__init__(connect=FakeTmux().connect)
        self.verdicts = list(verdicts)
        self._setup = setup

    async def make_fresh(self) -> FakeSandbox:
        return JudgedSandbox({})

    def _default_answer(self, script: str) -> ExecResult:
        if "rename-session" in script:
            self._connect = FakeTmux().connect
        if "bash /app/setup.sh" in script:
            return ExecResult(self._setup, b"apt-get: no such mirror")
        if "/tests/test.sh" not in script:
            return super()._default_answer(script)
        logs = self.verdicts[0]
        if isinstance(logs, Exception):
            raise self.verdicts.pop(0)
        if self.calls[-1].environment["TBENCH_VERIFIER_PART"] == "collect":
            self.verdicts.pop(0)
        files = {f"/logs/{name}": FileEntry(data) for name, data in logs.items()}
        mark = b"0" * 36
        return ExecResult(0, b"%b\n%b%b\ncode\t0\n%b end\n" % (mark, pack(files), mark, mark))


def text(reward: float) -> dict[str, bytes]:
    return {"verifier/reward.txt": str(reward).encode()}


def metrics(**numbers: float) -> dict[str, bytes]:
    return {"verifier/reward.json": json.dumps(numbers).encode()}


class Worker:
    """One agent of a trial, which records where it works."""

    name = "worker"

    def __init__(self, places: list[Workplace], error: TrialError | None = None) -> None:
        self._places = places
        self._error = error

    async def work(self, place: Workplace) -> AgentReport:
        self._places.append(place)
        number = len(self._places)
        step = Step(index=1, reply=Reply(content=f"reply {number}"), model_sec=2.0)
        place.on_step(1, "$")
        place.on_step_done(step)
        if self._error is not None and number == 2:
            raise self._error
        trajectory = Trajectory(protocol="p", steps=(step,), usage=TOKENS, model_sec=2.0)
        return AgentReport(Outcome.SUBMITTED if number == 1 else Outcome.AGENT_TIMEOUT, trajectory)

    def partial(self) -> Trajectory | None:
        return None


class Bench:
    """Trials of one task, and their files."""

    def __init__(self, directory: Path) -> None:
        self.store = RunStore.create(directory, a_document())
        self.seen: list[Event] = []
        self.places: list[Workplace] = []
        self.directory = self.store.trial_dir("small-task", 0)

    async def run(
        self,
        path: Path,
        sandbox: FakeSandbox,
        make_agent: Callable[[], TrialAgent] | None = None,
        **asked: Any,
    ) -> TrialResult:
        backend = FakeBackend(lambda _: sandbox)
        trial = Trial(
            TrialPlan("small-task.s0.x", "small-task", 0, Task.read(path)),
            run="r",
            make_agent=make_agent or (lambda: Worker(self.places)),
            model="m",
            backend=backend,
            store=self.store,
            events=Events(self.seen.append),
            sandbox=SandboxConfig(**asked),
        )
        async with asyncio.timeout(20):
            result = await (await trial.run(queue_sec=0))()
        assert backend.left == []
        return result


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "run")
    with contextlib.closing(made.store):
        yield made


# -- who works when ------------------------------------------------------------------------------


async def test_each_step_has_an_agent_of_its_own_in_the_same_sandbox(bench: Bench, make_task: MakeTask) -> None:
    made: list[Worker] = []

    def make() -> Worker:
        made.append(Worker(bench.places))
        return made[-1]

    top = "[agent]\ntimeout_sec = 100\n"
    path = step_task(make_task, "one", "two", top=top, two="[steps.agent]\ntimeout_sec = 5\n")
    result = await bench.run(path, JudgedSandbox(text(1), text(0.5)), make)
    assert (len(made), len({id(place.sandbox) for place in bench.places})) == (2, 1)
    assert [place.task.instruction for place in bench.places] == ["Make /app/one.\n", "Make /app/two.\n"]
    assert [place.timeout_sec for place in bench.places] == [100, 5]
    assert [place.directory for place in bench.places] == [bench.directory / "steps" / name for name in ("one", "two")]
    assert result.reward == 0.75


async def test_the_result_has_the_sum_of_the_steps_and_each_of_them(bench: Bench, make_task: MakeTask) -> None:
    result = await bench.run(step_task(make_task, "one", "two"), JudgedSandbox(text(1), text(0.5)))
    assert (result.steps, result.usage, result.timings.model_sec) == (2, TOKENS + TOKENS, 4.0)
    assert result.outcome == Outcome.AGENT_TIMEOUT, "that of the last step"
    one, two = result.task_steps
    assert (one.name, one.reward, one.outcome, one.steps, one.usage) == ("one", 1.0, Outcome.SUBMITTED, 1, TOKENS)
    assert (two.reward, two.metrics, two.stopped, two.error) == (0.5, {}, "", None)
    assert one.timings.model_sec == 2.0 and 0 < one.timings.wall_sec <= result.timings.wall_sec
    stored = TrialResult.model_validate_json((bench.directory / "result.json").read_text())
    assert stored.task_steps == result.task_steps


async def test_the_files_of_each_step_are_in_its_own_directory(bench: Bench, make_task: MakeTask) -> None:
    one, two = text(1) | {"agent/notes.txt": b"1"}, text(1) | {"agent/notes.txt": b"2"}
    await bench.run(step_task(make_task, "one", "two"), JudgedSandbox(one, two))
    files = ("steps.jsonl", "trajectory.json", "verifier/reward.txt", "agent/notes.txt")
    found = {path.relative_to(bench.directory).as_posix() for path in bench.directory.rglob("*") if path.is_file()}
    assert found == {"result.json", *(f"steps/{name}/{file}" for name in ("one", "two") for file in files)}
    assert (bench.directory / "steps" / "two" / "agent" / "notes.txt").read_bytes() == b"2"
    assert [step.reply.content for step in read_steps(bench.directory / "steps" / "two")] == ["reply 2"]


async def test_each_task_step_has_a_new_conversation_with_its_own_seeds(bench: Bench, make_task: MakeTask) -> None:
    claim = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'
    models: list[ScriptedModel] = []

    def make() -> ModelAgent:
        models.append(ScriptedModel([claim, claim], context_tokens=1 << 20))
        return ModelAgent(models[-1], load_protocol("keystrokes-json"), Limits(steps=2))

    result = await bench.run(step_task(make_task, "one", "two"), JudgedSandbox(text(1), text(1)), make)
    assert (result.reward, result.steps) == (1.0, 4), "two steps each: the limit is of a conversation"
    first = [model.requests[0] for model in models]
    assert first[0].seed != first[1].seed
    assert ["Make /app/one" in str(each) for each in first] == [True, False]
    assert ["Make /app/two" in str(each) for each in first] == [False, True]


@pytest.mark.parametrize("protocol", ["keystrokes-json", "bash-tool"])
async def test_a_step_that_inherits_the_session_is_the_next_message_of_the_same_conversation(
    bench: Bench, make_task: MakeTask, tmp_path: Path, protocol: str
) -> None:
    models: list[ScriptedModel] = []
    claim = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'

    def make() -> ModelAgent:
        said = [f"{claim} {len(models)}.{number}" for number in (1, 2)]
        models.append(ScriptedModel(said, context_tokens=1 << 20))
        return ModelAgent(models[-1], load_protocol(protocol), Limits(steps=2))

    inherits = "inherit_prior_session = true\n"
    path = step_task(make_task, "one", "two", "three", "four", two=inherits, three=inherits)
    result = await bench.run(path, JudgedSandbox(*[text(1)] * 4), make)
    assert (result.reward, [step.steps for step in result.task_steps]) == (1.0, [2, 2, 2, 2])
    of_steps = [read_trajectory(bench.directory / "steps" / name) for name in ("one", "two", "three", "four")]
    for number in (1, 2):
        before, now = of_steps[number - 1], of_steps[number]
        assert before is not None and now is not None
        first = models[number].requests[0].messages
        assert tuple(first) == now.messages[: now.inherited]
        assert now.messages[: len(before.messages) - 1] == before.messages[:-1]
        assert f"Make /app/{('one', 'two', 'three')[number]}" in first[-1].content
        assert [step.index for step in now.steps] == [1, 2], "the limit of steps is of a task step"
        contexts = make_contexts(now, RunProtocol(load_protocol(protocol), same_prompts=True))
        assert contexts.is_whole
        assert [turn.step.index for turn in contexts.turns[-1] if turn.step is not None] == [1, 2]
    new = models[3].requests[0].messages
    assert of_steps[3] is not None and of_steps[3].inherited == 0
    assert "Make /app/one" not in str(new) and "Make /app/four" in str(new)
    shown = read_sections(tmp_path / "run", result)[1]
    assert "Make /app/two" in shown.prompt[0].content and len(shown.prompt) == 1


async def test_leftovers_of_the_step_before_are_removed_before_the_next(bench: Bench, make_task: MakeTask) -> None:
    sandbox = JudgedSandbox(text(1), text(1))
    await bench.run(step_task(make_task, "one", "two"), sandbox)
    prepared = [
        (call.environment["TBENCH_STEP_BEFORE"], call.user)
        for call in sandbox.calls
        if "TBENCH_STEP_BEFORE" in call.environment
    ]
    assert prepared == [("0", "root"), ("1", "root")]


async def test_files_of_a_step_come_before_its_setup_and_healthcheck(bench: Bench, make_task: MakeTask) -> None:
    files = {"steps/two/workdir/setup.sh": "exit 0", "steps/two/workdir/data/a.txt": "a"}
    path = step_task(make_task, "one", "two", files=files, two="[steps.healthcheck]\ncommand = 'ask it'\n")
    (path / "steps" / "two" / "workdir" / "setup.sh").chmod(0o750)
    sandbox = JudgedSandbox(text(1), text(1))
    await bench.run(path, sandbox)
    assert {name: entry.mode for name, entry in sandbox.files.items()} == {
        "/app/setup.sh": 0o755,  # as git has it
        "/app/data": 0o755,
        "/app/data/a.txt": 0o644,
    }
    scripts = [call.script for call in sandbox.calls]
    setup, asked = (next(i for i, each in enumerate(scripts) if word in each) for word in ("setup.sh >", "ask it"))
    assert setup < asked


async def test_files_of_a_step_belong_to_the_agents_user(bench: Bench, make_task: MakeTask) -> None:
    class Asked(JudgedSandbox):
        def _default_answer(self, script: str) -> ExecResult:
            return ExecResult(0, b"1000\n100\n") if "id -u" in script else super()._default_answer(script)

    sandbox = Asked(text(1))
    path = step_task(make_task, "one", files={"steps/one/workdir/a": "a"}, top="[agent]\nuser = 'dev'\n")
    await bench.run(path, sandbox)
    assert sandbox.files["/app/a"].owner == (1000, 100)
    assert next(call.user for call in sandbox.calls if "id -u" in call.script) == "dev"


# -- which steps follow --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "verdict", "why"),
    [
        ("0.5", text(0.5), ""),
        ("0.5", text(0.4), "reward 0.4 is below min_reward 0.5"),
        ("0", text(0), ""),
        ("0.5", metrics(reward=0.4, style=1), "reward 0.4 is below min_reward 0.5"),
        ("0.5", metrics(style=1), "no reward, but min_reward is 0.5"),
        ("{ style = 0.5 }", metrics(reward=0, style=0.5), ""),
        ("{ style = 0.5 }", metrics(reward=1, style=0.25), "style 0.25 is below min_reward 0.5"),
        ("{ reward = 0.1, style = 0.5 }", metrics(reward=1), "no style, but min_reward is 0.5"),
        ("{ reward = 0.1 }", text(0.05), "reward 0.05 is below min_reward 0.1"),
    ],
)
async def test_another_step_follows_where_the_reward_is_high_enough(
    bench: Bench, make_task: MakeTask, least: str, verdict: dict[str, bytes], why: str
) -> None:
    path = step_task(make_task, "one", "two", one=f"min_reward = {least}\n")
    result = await bench.run(path, JudgedSandbox(verdict, text(1)))
    assert (result.task_steps[0].stopped, result.task_steps[1].begun, result.error) == (why, not why, None)
    assert len(bench.places) == (1 if why else 2)


async def test_after_the_last_step_nothing_is_stopped(bench: Bench, make_task: MakeTask) -> None:
    result = await bench.run(step_task(make_task, "one", one="min_reward = 1\n"), JudgedSandbox(text(0)))
    assert (result.task_steps[0].stopped, result.reward, result.reward_all_steps) == ("", 0.0, 0.0)


@pytest.mark.parametrize(
    ("strategy", "rewards", "reward", "reward_all_steps"),
    [
        ("mean", (1, 0.5, 0), 0.5, 0.5),
        ("mean", (1, 0.25), 0.625, 1.25 / 3),
        ("mean", (0.4,), 0.4, 0.4 / 3),
        ("final", (1, 1, 0.5), 0.5, 0.5),
        ("final", (1, 0.25), 0.25, 0),
        ("", (0.4,), 0.4, 0.4 / 3),
    ],
)
async def test_rewards_by_both_conventions_for_steps_that_were_never_begun(
    bench: Bench,
    make_task: MakeTask,
    strategy: str,
    rewards: tuple[float, ...],
    reward: float,
    reward_all_steps: float,
) -> None:
    top = f"multi_step_reward_strategy = '{strategy}'\n" if strategy else ""
    gates = dict.fromkeys(("one", "two"), "min_reward = 0.5\n")
    path = step_task(make_task, "one", "two", "three", top=top, **gates)
    result = await bench.run(path, JudgedSandbox(*map(text, rewards)))
    assert result.reward == pytest.approx(reward)
    assert result.reward_all_steps == pytest.approx(reward_all_steps)
    assert [step.begun for step in result.task_steps] == [number < len(rewards) for number in range(3)]


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "options"),
    [
        ("endpoint_unavailable", {"agent": TrialError("endpoint_unavailable", "503")}),
        ("sandbox_lost", {"verdicts": [text(1), TrialError("sandbox_lost", "gone")]}),
        ("verifier_no_reward", {"verdicts": [text(1), {}]}),
        ("setup_failed", {"setup": 100}),
        ("healthcheck_failed", {"two": "[steps.healthcheck]\ncommand = 'exit 1'\nretries = 1\n"}),
    ],
)
async def test_a_step_without_a_verdict_is_an_error_of_the_trial_and_no_number(
    bench: Bench, make_task: MakeTask, type_: str, options: dict[str, Any]
) -> None:
    class Unwell(JudgedSandbox):
        def _default_answer(self, script: str) -> ExecResult:
            return ExecResult(1) if "exit 1'" in script else super()._default_answer(script)

    files = {"steps/two/workdir/setup.sh": "exit 1"} if "setup" in options else {}
    path = step_task(make_task, "one", "two", "three", files=files, two=options.get("two", ""))
    sandbox = Unwell(*options.get("verdicts", [text(1), text(1)]), setup=options.get("setup", 0))
    result = await bench.run(path, sandbox, lambda: Worker(bench.places, options.get("agent")))
    assert result.error is not None
    assert (result.error.type, result.reward, result.reward_all_steps) == (type_, None, None)
    one, two, three = result.task_steps
    assert (one.reward, two.reward, two.error, three.begun) == (1.0, None, result.error, False)


async def test_a_failed_setup_is_reported_with_its_last_output(bench: Bench, make_task: MakeTask) -> None:
    path = step_task(make_task, "one", files={"steps/one/workdir/setup.sh": "exit 1"})
    result = await bench.run(path, JudgedSandbox(text(1), setup=100))
    assert result.error is not None and result.error.retryable
    assert result.error.message == "setup.sh of step one ended with 100: apt-get: no such mirror"


async def test_signs_and_remarks_name_their_step(bench: Bench, make_task: MakeTask) -> None:
    both = text(1) | metrics(reward=0.5)
    result = await bench.run(step_task(make_task, "one", "two"), JudgedSandbox(both, both))
    kinds = [sign.partition(": ")[0] for sign in result.integrity.tamper]
    assert kinds == ["other-reward", "unconfirmed"] * 2
    assert [sign.rpartition(" (step ")[2] for sign in result.integrity.tamper] == ["one)", "one)", "two)", "two)"]


# -- events -------------------------------------------------------------------------------------


async def test_each_task_step_is_reported_when_it_begins(
    bench: Bench, make_task: MakeTask, capsys: pytest.CaptureFixture[str]
) -> None:
    await bench.run(step_task(make_task, "one", "two"), JudgedSandbox(text(1), text(1)))
    begun = [(each.number, each.count, each.name) for each in bench.seen if isinstance(each, TrialTaskStep)]
    assert begun == [(1, 2, "one"), (2, 2, "two")]
    lines, view, names = PlainLines(verbose=True), LiveView(), set[str]()
    for event in bench.seen:
        lines(event)
        view(event)
        names |= {row.name for row in view._rows.values()}
    printed = capsys.readouterr().err
    assert "small-task seed 0: task step 2 of 2: two" in printed
    assert names == {"small-task · 0", "small-task · 0 (1/2)", "small-task · 0 (2/2)"}


async def test_a_summary_says_the_score_by_both_conventions_where_they_differ(
    bench: Bench, make_task: MakeTask
) -> None:
    path = step_task(make_task, "one", "two", one="min_reward = 0.5\n")
    stopped = await bench.run(path, JudgedSandbox(text(0.4)))
    summary = summarise([stopped], ["small-task"], [0])
    assert summary.score_lines[0].startswith("score 40.0 %")
    line = "score 20.0 % with 0 for the 1 task step that 1 trial never began; above, they are left out as in Harbor"
    assert summary.score_lines[-1] == line
    done = stopped.model_copy(update={"task_steps": stopped.task_steps[:1], "reward_all_steps": 0.4})
    assert summarise([done], ["small-task"], [0]).unreached is None


async def test_another_attempt_does_all_steps_again(tmp_path: Path, make_task: MakeTask) -> None:
    lost = JudgedSandbox(text(1), TrialError("sandbox_lost", "gone"))
    sandboxes = iter([lost, JudgedSandbox(text(0.5), text(1))])
    path, directory = step_task(make_task, "one", "two"), tmp_path / "done"
    backend = FakeBackend(lambda _: next(sandboxes))
    tasks, plan = read_tasks(str(path)), a_plan(agent="nop", source=str(path))
    await execute_run(plan, tasks, directory, lambda: Worker([]), Events(), backend=backend)
    earlier = EarlierRun.read(directory)
    done = await execute_run(plan, tasks, directory, lambda: Worker([]), Events(), backend=backend, earlier=earlier)
    assert [(each.reward, each.attempt, each.final) for each in done.results] == [(0.75, 2, True)]
    first, second = read_run(directory).results
    assert first.error is not None and (first.error.type, first.final) == ("sandbox_lost", False)
    assert [step.reward for step in first.task_steps] == [1.0, None]
    kept = directory / "trials" / "small-task" / "seed-0"
    rewards = [(kept / place / "steps/one/verifier/reward.txt").read_text() for place in ("", "attempt-2")]
    assert (rewards, second.attempt) == (["1", "0.5"], 2)


# -- what is kept --------------------------------------------------------------------------------


async def test_each_step_has_a_snapshot_and_the_last_stands_for_the_trial(bench: Bench, make_task: MakeTask) -> None:
    await bench.run(step_task(make_task, "one", "two"), JudgedSandbox(text(1), text(1)), snapshot=True)
    assert json.loads((bench.directory / "kept.json").read_text()) == {
        "image": "sha256:2",
        "image of step one": "sha256:1",
        "image of step two": "sha256:2",
    }


class Reopening(FakeBackend):
    """A backend that reopens nothing; it only has the methods."""

    async def reopen(self, *_: object) -> FakeSandbox:
        raise AssertionError

    async def from_snapshot(self, *_: object) -> FakeSandbox:
        raise AssertionError


async def test_steps_that_were_judged_in_the_agents_own_container_are_not_verified_again(
    tmp_path: Path, make_task: MakeTask
) -> None:
    path = step_task(make_task, "one", "two")
    tasks, directory = read_tasks(str(path)), tmp_path / "done"
    plan = a_plan(agent="nop", keep="all", source=str(path))
    backend = Reopening(lambda _: JudgedSandbox(text(1), text(1)))
    await execute_run(plan, tasks, directory, lambda: Worker([]), Events(), backend=backend)
    (change,) = await regrade(lambda _: lambda _: lambda _: backend, directory, (), None, print)
    why_not = "the handover of its step one is missing; run the trial again"
    assert (change.after, change.why_not) == (None, why_not)
    (result,) = read_run(directory).results
    assert [step.reward for step in result.task_steps] == [1.0, 1.0]


APART = dict.fromkeys(("one", "two", "three"), 'verifier = { environment_mode = "separate" }\n')


async def test_the_handover_of_each_step_is_verified_again_without_the_agents_sandbox(
    tmp_path: Path, make_task: MakeTask
) -> None:
    path = step_task(make_task, "one", "two", "three", **APART | {"two": f"min_reward = 1.0\n{APART['two']}"})
    tasks, directory = read_tasks(str(path)), tmp_path / "done"
    sandboxes = iter([FakeSandbox(), *(FakeSandbox(text(each)) for each in (1, 0, 0.5, 1))])
    backend = FakeBackend(lambda _: next(sandboxes))
    plan = a_plan(agent="nop", source=str(path), engines=("unix:///run/other.sock",))
    await execute_run(plan, tasks, directory, lambda: Worker([]), Events(), backend=backend)
    (before,) = read_run(directory).results
    assert [(step.reward, step.begun) for step in before.task_steps] == [(1.0, True), (0.0, True), (None, False)]
    asked: list[tuple[tuple[str, ...], str]] = []

    def machines(sandbox: SandboxConfig) -> Callable[[str], MakeBackend]:
        def on_machine(machine: str) -> MakeBackend:
            asked.append((sandbox.engines, machine))
            return lambda _: backend

        return on_machine

    (change,) = await regrade(machines, directory, (), None, print)
    assert asked == [(("unix:///run/other.sock",), "")], "any engine of the run, not the one that is found here"
    after = change.after
    assert after is not None, change.why_not
    # The step that was never come to stays so.
    assert [(step.reward, step.begun) for step in after.task_steps] == [(0.5, True), (1.0, True), (None, False)]
    assert (after.reward, after.reward_all_steps, after.integrity.regrades) == (0.75, 0.5, 1)
    trial = directory / "trials" / "small-task" / "seed-0"
    assert [(trial / "steps/one" / name / "reward.txt").read_text() for name in ("verifier", "verifier-1")] == [
        "0.5",
        "1",
    ]
    assert [result.reward for result in read_run(directory).results if result.final] == [0.75]
