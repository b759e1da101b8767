"""control: pausing, messaging, ending and watching trials of a running run."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_tmux import FakeTmux, scripted
from run_plans import a_document, a_plan

from harness.agent import TYPED_HEADING, Agent, Limits
from harness.fakes import ScriptedModel
from harness.protocols.keystrokes_json import KeystrokesJson
from harness.terminal import Terminal
from harness.trajectory import Outcome
from tbench.agents.trial_agent import AgentReport, NopAgent, Workplace
from tbench.control.wire import Answer
from tbench.errors import UsageError
from tbench.events import Event, Events, TrialPhase
from tbench.results import TrialResult
from tbench.runs.control import RunControl
from tbench.runs.live.commands import LiveControl
from tbench.runs.plan import plan_trials
from tbench.runs.run import Run, RunOutcome, make_debugger
from tbench.sandbox.backend import Capacity
from tbench.sandbox.fake import FakeBackend
from tbench.scores.summarise import summarise
from tbench.storage.run_store import RunStore
from tbench.tasks.sources import TaskSet, read_tasks

MakeTask = Any


class Asking(NopAgent):
    """Asks before each of three steps, and records the messages."""

    def __init__(self, received: dict[str, list[str]], at: dict[str, int]) -> None:
        self._received, self._at = received, at

    async def work(self, place: Workplace) -> AgentReport:
        assert place.oversight is not None
        name = f"{place.task.name}/{place.seed}"
        for step in range(1, 4):
            place.on_step(step, f"line {step}")
            self._at[name] = step
            self._received.setdefault(name, []).extend(await place.oversight.before_query(step))
            await asyncio.sleep(0)
        return AgentReport(Outcome.FINISHED)


class Stuck(NopAgent):
    """Works for ever."""

    async def work(self, place: Workplace) -> AgentReport:
        await asyncio.Future()
        raise AssertionError


class Spoken:
    """A running run, controlled by a test."""

    def __init__(self, run: Run, task: asyncio.Task[RunOutcome]) -> None:
        self.run, self.control, self.task = run, LiveControl(run.control), task

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 -- of what another task does, without a word about it
                await asyncio.sleep(0.001)

    async def results(self) -> dict[str, TrialResult]:
        async with asyncio.timeout(20):
            outcome = await self.task
        return {f"{result.task}/{result.seed}": result for result in outcome.results}


@pytest.fixture
def tasks(make_task: MakeTask) -> TaskSet:
    paths = [make_task(name) for name in ("alpha", "beta")]
    return read_tasks(str(paths[0].parent))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with closing(RunStore.create(tmp_path / "run", a_document())) as store:
        yield store


@asynccontextmanager
async def running(tasks: TaskSet, store: RunStore, agent: Callable[[], NopAgent], **more: Any) -> AsyncIterator[Spoken]:
    seen: list[Event] = []
    backend = FakeBackend(capacity=Capacity(8, 1e6))
    plan = a_plan(**{"seeds": (0, 1), "agent": "nop", "concurrency": 2} | more)
    run = Run(plan, tasks, make_agent=agent, backend=backend, store=store, events=Events(seen.append))
    LiveControl(run.control).pause(None, now=True)
    task = asyncio.create_task(run.execute())
    try:
        yield Spoken(run, task)
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert backend.left == []


@pytest.fixture
def received() -> dict[str, list[str]]:
    return {}


@pytest.fixture
def at() -> dict[str, int]:
    return {}


async def test_a_paused_run_starts_nothing_until_it_goes_on(
    tasks: TaskSet, store: RunStore, received: dict[str, list[str]], at: dict[str, int]
) -> None:
    async with running(tasks, store, lambda: Asking(received, at)) as live:
        await asyncio.sleep(0.05)
        assert at == {}
        assert live.control.state().paused == "holding all"
        live.control.go_on(None)
        assert len(await live.results()) == 4
        assert live.control.state().ended == 4


async def test_a_trial_is_held_at_its_next_model_call_while_others_go_on(
    tasks: TaskSet, store: RunStore, received: dict[str, list[str]], at: dict[str, int]
) -> None:
    async with running(tasks, store, lambda: Asking(received, at), concurrency=4) as live:
        control = live.control
        live.run.control.start_gate.open()
        await live.until(lambda: sum(each.held for each in control.state().trials) == 4)
        assert {each.step for each in control.state().trials} == {1}
        assert {each.line for each in control.state().trials} == {"line 1"}
        assert control.pause("beta/1", now=False) == "beta/1: will be held at its next model call"
        assert "beta/1" in control.go_on(None)
        await live.until(lambda: control.state().ended == 3)
        (left,) = control.state().trials
        assert (left.task, left.seed, left.paused, left.held, left.phase) == ("beta", 1, True, True, "agent")
        control.go_on("beta")
        assert len(await live.results()) == 4


async def test_a_message_reaches_its_trial_which_no_longer_counts(
    tasks: TaskSet, store: RunStore, received: dict[str, list[str]], at: dict[str, int]
) -> None:
    async with running(tasks, store, lambda: Asking(received, at), concurrency=4) as live:
        live.run.control.start_gate.open()
        await live.until(lambda: len(at) == 4)
        live.control.say("alpha/0", "Look at the log.")
        live.control.go_on(None)
        results = await live.results()
    assert received["alpha/0"] == ["Look at the log."]
    assert received["beta/0"] == []
    assert {name for name, result in results.items() if result.human_touched} == {"alpha/0"}
    summary = summarise(results.values(), ["alpha", "beta"], [0, 1])
    assert summary.counts.scored == 3
    assert summary.counts.human_touched == 1
    (error,) = summary.errors
    assert error.type == "human_touched"
    assert "does not count" in error.example_message


async def test_a_trial_that_is_ended_has_an_error_and_no_verdict(
    tasks: TaskSet, store: RunStore, received: dict[str, list[str]], at: dict[str, int]
) -> None:
    async with running(tasks, store, lambda: Asking(received, at), concurrency=4) as live:
        live.run.control.start_gate.open()
        await live.until(lambda: len(at) == 4)
        assert live.control.abort("beta/0") == "beta/0: is ended without a verdict"
        with pytest.raises(UsageError, match=r"beta/0: already has a verdict, or is being ended"):
            live.control.abort("beta/0")
        live.control.go_on(None)
        results = await live.results()
    ended = results.pop("beta/0")
    assert ended.reward is None
    assert ended.error is not None
    assert (ended.error.type, ended.error.retryable) == ("aborted", False)
    assert all(result.reward is not None for result in results.values())


async def test_ctrl_c_ends_a_run_that_is_held_and_one_whose_trial_is_being_ended(
    tasks: TaskSet, store: RunStore
) -> None:
    async with running(tasks, store, Stuck, concurrency=4) as live:
        live.control.go_on(None)
        await live.until(lambda: [each.phase for each in live.control.state().trials] == ["agent"] * 4)
        live.control.abort("beta/0")
        live.task.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait({live.task})
    assert live.task.cancelled() and live.run.outcome.interrupted


async def test_more_slots_let_more_trials_begin(tasks: TaskSet, store: RunStore) -> None:
    async with running(tasks, store, Stuck, concurrency=1) as live:
        live.control.go_on(None)
        await live.until(lambda: len(live.control.state().trials) == 1)
        assert live.control.resize(3) == "concurrency 3, was 1"
        await live.until(lambda: len(live.control.state().trials) == 3)
        assert live.control.state().concurrency == 3


async def test_an_unknown_trial_is_refused_with_similar_names(tasks: TaskSet, store: RunStore) -> None:
    async with running(tasks, store, Stuck, concurrency=4) as live:
        live.control.go_on(None)
        await live.until(lambda: len(live.control.state().trials) == 4)
        with pytest.raises(UsageError, match=r"^alpa/0: no such trial is running; did you mean alpha/0"):
            live.control.abort("alpa/0")
        with pytest.raises(UsageError, match=r"^alpha: several trials of this task are running: alpha/0, alpha/1$"):
            live.control.pause("alpha", now=False)
        with pytest.raises(UsageError, match=r"tbench ps lists running trials"):
            live.control.say("zzzzzz", "x")


def a_run(planned: int) -> RunControl:
    return RunControl("r", planned, 1, make_debugger=partial(make_debugger, waits=False, asks=False))


async def test_an_agent_that_has_ended_gets_no_message(tasks: TaskSet, store: RunStore) -> None:
    run = a_run(planned=1)
    (plan, *_) = plan_trials(tasks, a_plan(seeds=(0,), agent="nop"))
    with run.trial(plan):
        run.on_event(TrialPhase(trial=plan.trial, attempt=1, task="alpha", seed=0, phase="verifier"))
        with pytest.raises(UsageError, match=r"^alpha/0: its agent has ended \(verifier\)$"):
            LiveControl(run).say("alpha/0", "x")


def test_a_run_without_trials_says_so() -> None:
    control = LiveControl(a_run(planned=0))
    assert control.state().trials == ()
    assert control.pause(None, now=False) == "no other trial starts; 0 trials under way"
    assert control.state().paused == "starting nothing"


def test_a_run_without_clients_does_not_import_live_control() -> None:
    code = "import sys, tbench.runs.run, tbench.runs.trial; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tbench.runs.control" in loaded
    assert [name for name in loaded if name.startswith(("tbench.runs.live", "tbench.control.wire"))] == []


# -- its terminal ----------------------------------------------------------------------------------

LS = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n", "duration": 5.0}]}'
CLAIM = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'


class AtTerminal(NopAgent):
    """A scripted model at a fake terminal."""

    def __init__(self, script: list[Any]) -> None:
        self.model = ScriptedModel(script)
        self.tmux = FakeTmux(scripted({"ls": "file\n", "echo by hand": "by hand\n"}))

    async def work(self, place: Workplace) -> AgentReport:
        terminal = Terminal(self.tmux.connect)
        await terminal.open()
        place.on_terminal(terminal)
        agent = Agent(
            self.model,
            terminal,
            KeystrokesJson(),
            Limits(),
            on_step=lambda step: place.on_step(step, ""),
            oversight=place.oversight,
        )
        try:
            trajectory = await agent.run("Do it.")
        finally:
            place.on_terminal(None)
            await terminal.close()
        assert trajectory.outcome is not None
        return AgentReport(trajectory.outcome, trajectory)


async def screens_until(person: Any, shown: str) -> Answer:
    async with asyncio.timeout(20):
        while True:
            answer = Answer.model_validate_json(await person.next())
            if answer.screen is not None and shown in "\n".join(answer.screen.lines):
                return answer


async def test_a_terminal_is_seen_taken_typed_into_and_given_back(tasks: TaskSet, store: RunStore) -> None:
    agent = AtTerminal([LS, CLAIM, CLAIM])
    async with running(tasks, store, lambda: agent, seeds=(0,), concurrency=1) as live:
        control = live.control
        live.run.control.start_gate.open()
        await live.until(lambda: [each.held for each in control.state().trials] == [True])
        (trial,) = control.state().trials
        name = f"{trial.task}/0"
        assert (await control.screen(name)).lines[0] == "root@fake:/app# "
        async with (
            control.attach(name, take=False, drawn=True) as other,
            control.attach(name, take=True, drawn=True) as person,
        ):
            control.go_on(None)
            assert (await screens_until(other, "")).yours is False
            assert (await screens_until(person, "")).yours is True
            await other.type(b"nothing")
            with pytest.raises(UsageError, match=rf"^{name}: another client has taken its terminal"):
                async with control.attach(name, take=True, drawn=True):
                    raise AssertionError
            with pytest.raises(UsageError, match=rf"^{name}: another client has taken its terminal"):
                await control.type(name, "x")
            await person.type(b"echo by hand\r")
            await screens_until(other, "\nby hand\n")
            assert agent.model.requests == []
            assert trial.touched is False
        await live.until(lambda: control.state().ended >= 1)
        assert control.state().trials == () or control.state().trials[0].task != trial.task
    content = agent.model.requests[0].messages[-1].content
    assert content.endswith(
        f"{TYPED_HEADING}\necho by hand\n\n[The screen now:]\nroot@fake:/app# echo by hand\nby hand\nroot@fake:/app#"
    )
    assert agent.tmux.typed[:2] == ["echo by hand", "ls"]
    assert "by hand" not in agent.model.requests[1].messages[-1].content


async def test_bytes_follow_a_drawing_and_keys_reach_only_a_trial_that_is_held(tasks: TaskSet, store: RunStore) -> None:
    agent = AtTerminal([LS, CLAIM, CLAIM])
    async with running(tasks, store, lambda: agent, seeds=(0,), concurrency=1) as live:
        control = live.control
        live.run.control.start_gate.open()
        await live.until(lambda: [each.held for each in control.state().trials] == [True])
        name = control.state().trials[0].task
        control.pause(name, now=False)
        control.go_on(None)
        async with control.attach(name, take=False, drawn=False) as person:
            answer = Answer.model_validate_json(await person.next())
            assert answer.screen is not None
            assert (answer.screen.columns, answer.screen.rows) == (160, 40)
            assert b"\x1b[1;1Hroot@fake:/app# " in await person.next()
            assert "its model will be shown it" in await control.type(name, "echo by hand\n")
            async with asyncio.timeout(20):
                shown = b""
                while shown.count(b"by hand") < 2:
                    shown += await person.next()
                assert control.state().trials[0].touched
                control.go_on(name)
                while await person.next():
                    pass


async def test_typing_without_a_terminal_or_a_pause_is_refused(tasks: TaskSet, store: RunStore) -> None:
    async with running(tasks, store, Stuck, concurrency=4) as live:
        live.control.go_on(None)
        await live.until(lambda: [each.phase for each in live.control.state().trials] == ["agent"] * 4)
        with pytest.raises(UsageError, match=r"^alpha/0: its agent has no terminal now; the oracle never has one"):
            await live.control.screen("alpha/0")
        with pytest.raises(UsageError, match=r"^alpa/0: no such trial is running; did you mean alpha/0"):
            await live.control.type("alpa/0", "x")
        (trial, *_) = live.run.control.trials.values()
        async with contextlib.AsyncExitStack() as stack:
            terminal = trial.terminal = Terminal(FakeTmux().connect)
            await terminal.open()
            stack.push_async_callback(terminal.close)
            with pytest.raises(UsageError, match=r"/0: is at work; pause it \(tbench pause TRIAL\)"):
                await live.control.type(trial.plan.trial, "x")
            trial.step = 1
            with pytest.raises(UsageError, match=r"/0: its agent cannot be paused, so its terminal cannot be taken"):
                async with live.control.attach(trial.plan.trial, take=True, drawn=True):
                    raise AssertionError
            trial.terminal = None


async def test_a_request_to_an_ended_trial_names_its_outcome(tasks: TaskSet, store: RunStore) -> None:
    async with running(tasks, store, NopAgent, seeds=(0,), concurrency=1) as live:
        live.control.go_on(None)
        results = await live.results()
        for said, result in results.items():
            with pytest.raises(UsageError, match=rf"^{said}: has ended with reward {result.reward:g}$"):
                await live.control.screen(said)
