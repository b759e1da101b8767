"""Trials whose process was ended go on, in their containers or in new ones, and nothing is done twice."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cut_runs import CLAIMS, END_STATE, STEPS, TBENCH, CutRun, Model, verifier_script
from fault_server import FaultServer, Seen, answer, completion
from own_sshd import own_sshd
from step_tasks import THERE, step_task

from tbench import exit_codes
from tbench.agents.model_agent import UserAgent
from tbench.agents.packaged_agent import PackagedAgent
from tbench.agents.trial_agent import NopAgent, OracleAgent
from tbench.errors import REWOUND, TrialError
from tbench.results import ErrorInfo
from tbench.runs.going_on import INHERITED, after_lost_replay, anew_note, find_sandbox
from tbench.runs.trial_progress import Cut
from tbench.sandbox.backend import Sandbox
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.fake import FakeBackend
from tbench.sandbox.owner import LABEL_DIRECTORY, LABEL_HOLDS, LABEL_SERVICE
from tbench.sandbox.run_machine import RunMachine
from tbench.sandbox.underway import UnderWay
from tbench.storage.run_files import CHECKPOINTS_NAME, STEPS_NAME, trial_directory
from tbench.tasks.task import Task

pytestmark = pytest.mark.engine
SIDE = """
services:
  main: {depends_on: [side]}
  side:
    image: debian:bookworm-slim
    command:
      - perl
      - -MIO::Socket::INET
      - -e
      - |
        $$server = IO::Socket::INET->new(LocalPort => 7000, Listen => 5, ReuseAddr => 1) or die;
        while ($$client = $$server->accept) { print $$client "tangerine\\n"; close $$client }
"""
ASK_SIDE = '[ "$(cat </dev/tcp/side/7000)" = tangerine ] || exit 1\n'
UUID = "cat /proc/sys/kernel/random/uuid | tr -d a-f | tr 0-9 A-J; echo slow-2 >>/app/out"


@pytest.fixture
def cut(tmp_path: Path, make_task: Any, endpoint: FaultServer) -> Iterator[Any]:
    """Makes a run of one task, whose process is ended after the test."""
    made: list[CutRun] = []

    def make(
        *options: str, model: Model | None = None, sleep_sec: float = 0.2, compose: str = "", **parts: str
    ) -> CutRun:
        task = make_task(test=f"{ASK_SIDE if compose else ''}{verifier_script(sleep_sec)}", **parts)
        if compose:
            (task / "environment/docker-compose.yaml").write_text(compose)
        made.append(CutRun(tmp_path / "cut", task.parent, endpoint, model or Model(), "--seeds", "1", *options))
        return made[-1]

    yield make
    for each in made:
        if each.process is not None and each.process.poll() is None:
            each.process.kill()
        engine = Engine.connect(1)
        for container in engine.api.containers(all=True, filters={"label": f"{LABEL_DIRECTORY}={each.directory}"}):
            engine.api.remove_container(container["Id"], force=True)
        engine.close()


def asked(run: CutRun, number: int) -> Any:
    return lambda: run.model.requests >= number


def test_a_killed_trial_goes_on_where_it_was(cut: Any) -> None:
    run = cut()
    for number in (3, 8):
        run.start()
        run.end(asked(run, number))
    printed = run.finish()
    result = run.result()
    assert (result.reward, result.steps, result.attempt) == (1.0, STEPS + CLAIMS, 1), printed
    assert {each.how for each in result.went_on} == {"attached"}
    assert run.model.requests <= STEPS + CLAIMS + 2, "a reply that was on its way may be asked for again"
    assert not run.notes
    directory = trial_directory(run.directory, result.task, 0)
    assert not (directory / CHECKPOINTS_NAME).exists()
    assert [step.index for step in read(directory)] == [*range(1, STEPS + CLAIMS + 1)]


def read(directory: Path) -> Any:
    from tbench.storage.read_run import read_steps

    return read_steps(directory)


def test_a_lost_container_is_replaced_and_the_replies_are_followed_again(cut: Any, engine: Engine) -> None:
    run = cut()
    for number in (3, 7):
        run.start()
        run.end(asked(run, number))
    (note,) = run.notes
    engine.api.remove_container(note.sandbox, force=True)
    run.start()
    run.end(asked(run, 10))
    run.finish()
    assert "are replayed" in (run.directory / "run.log").read_text()
    result = run.result()
    assert (result.reward, result.steps, result.human_touched) == (1.0, STEPS + CLAIMS, False)
    seen = [(each.how, each.differs) for each in result.went_on]
    assert seen == [("attached", ""), ("replayed", ""), ("attached", "")], "also after a screen that only a cut shows"
    assert run.model.requests <= STEPS + CLAIMS + 3


def test_a_container_that_is_lost_while_its_run_lives_is_replaced_too(cut: Any, engine: Engine) -> None:
    run = cut("--retries", "0")
    process = run.start()
    for number in (4, 9):
        run.wait(asked(run, number))
        (note,) = run.notes
        engine.api.remove_container(note.sandbox, force=True)
    printed, _ = process.communicate(timeout=200)
    assert process.returncode == 0, printed
    *lost, last = run.results
    assert [(each.final, each.error and each.error.type) for each in lost] == [(False, "sandbox_lost")] * 2
    assert (last.reward, last.steps, last.attempt) == (1.0, STEPS + CLAIMS, 3), printed
    assert [each.how for each in last.went_on] == ["replayed", "replayed"]
    assert run.model.requests <= STEPS + CLAIMS + 2
    assert not run.notes and not [*run.directory.rglob(CHECKPOINTS_NAME)]


def test_a_run_that_ended_with_a_lost_container_goes_on_by_replay(cut: Any, engine: Engine) -> None:
    run = cut("--retry-never", "sandbox_lost")
    process = run.start()
    run.wait(asked(run, 6))
    (note,) = run.notes
    engine.api.remove_container(note.sandbox, force=True)
    printed, _ = process.communicate(timeout=200)
    assert [(each.final, each.error and each.error.type) for each in run.results] == [(True, "sandbox_lost")], printed
    printed = run.finish("--retry-errors")
    last = run.results[-1]
    assert (last.reward, last.steps, [each.how for each in last.went_on]) == (1.0, STEPS + CLAIMS, ["replayed"]), (
        printed
    )
    assert run.model.requests <= STEPS + CLAIMS + 1
    assert not run.notes


def test_a_planned_stop_during_a_replay_keeps_what_is_replayed(cut: Any, engine: Engine) -> None:
    run = cut()
    run.start()
    run.end(asked(run, 9))
    (note,) = run.notes
    engine.api.remove_container(note.sandbox, force=True)
    run.start()
    assert run.end(partial(is_replaying, run, 2), signal.SIGTERM) == exit_codes.STOPPED
    assert run.notes == [note]
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_DIRECTORY}={run.directory}"}) == []
    run.finish()
    result = run.result()
    assert (result.reward, result.steps, [each.how for each in result.went_on]) == (1.0, STEPS + CLAIMS, ["replayed"])
    assert run.model.requests <= STEPS + CLAIMS + 1


@pytest.mark.parametrize("is_killed", [False, True], ids=["in one process", "with a kill"])
def test_a_replay_that_loses_its_container_is_repeated_and_asks_nothing_again(
    cut: Any, engine: Engine, is_killed: bool
) -> None:
    run = cut("--retries", "0", model=Model(step_two="sleep 1.5; echo slow-2 >>/app/out\n"))
    process, labelled = run.start(), {"label": f"{LABEL_DIRECTORY}={run.directory}"}
    run.wait(asked(run, 8))
    for attempt in (2, 3):
        (container,) = engine.api.containers(filters=labelled)
        engine.api.remove_container(container["Id"], force=True)
        run.wait(partial(is_replaying, run, attempt))
    if is_killed:
        run.end(lambda: True)
        run.finish()
    else:
        printed, _ = process.communicate(timeout=200)
        assert process.returncode == 0, printed
    last = run.results[-1]
    assert (last.reward, last.steps) == (1.0, STEPS + CLAIMS), (run.directory / "run.log").read_text()
    assert [(each.how, each.differs) for each in last.went_on] == [("replayed", "")]
    assert last.attempt == (4 if is_killed else 3)
    assert run.model.requests <= STEPS + CLAIMS + 1, "the one that was on its way when the first container was lost"
    assert not run.notes and not [*run.directory.rglob(CHECKPOINTS_NAME)]
    assert engine.api.containers(all=True, filters=labelled) == []


@pytest.mark.parametrize("place", ["", "Docker on another-host"])
async def test_a_container_that_is_not_found_here_is_said_to_be_gone_or_elsewhere(make_task: Any, place: str) -> None:
    class Elsewhere(FakeBackend):
        async def reopen(self, *_: object) -> Sandbox:
            raise TrialError("sandbox_lost", "no such container")

        async def from_snapshot(self, *_: object) -> Sandbox:
            raise AssertionError

    backend = Elsewhere()
    found = await find_sandbox(Task.read(make_task()), Cut(a_note(place=place), 0.0), RunMachine("", backend))
    if place:
        assert found == f"its container is with {place}, and not with {backend.name} on {socket.gethostname()}"
    else:
        assert found == "its container is gone (no such container)"


def a_note(**more: Any) -> UnderWay:
    known = {"trial": "t", "task": "t", "seed": 0, "attempt": 1, "sandbox": "c", "entered_at": 0.0, "keep_sec": 60.0}
    return UnderWay(**known, started_at=datetime.now(UTC), **more)


def is_replaying(run: CutRun, attempt: int) -> bool:
    """Whether an attempt that replays has followed a reply."""
    return any(run.directory.glob(f"trials/**/attempt-{attempt}/{STEPS_NAME}"))


@pytest.mark.slow
def test_a_trial_whose_replays_all_lose_their_container_starts_again(cut: Any, engine: Engine) -> None:
    run = cut(model=Model(step_two="sleep 1.5; echo slow-2 >>/app/out\n"))
    process = run.start()
    run.wait(asked(run, 8))
    for attempt in (2, 3, 4, 5, 6):
        (container,) = engine.api.containers(filters={"label": f"{LABEL_DIRECTORY}={run.directory}"})
        engine.api.remove_container(container["Id"], force=True)
        run.wait(partial(is_replaying, run, attempt))
    printed, _ = process.communicate(timeout=200)
    last = run.results[-1]
    assert (last.reward, last.attempt, last.went_on) == (1.0, 6, ()), printed
    assert run.model.requests >= STEPS + CLAIMS + 7, "it began anew"


def test_a_replay_is_repeated_unless_that_is_in_vain() -> None:
    cut: Cut | None = Cut(a_note(), 0.0)
    for _ in range(3):
        assert cut is not None
        cut = after_lost_replay(cut, ErrorInfo.of(TrialError("sandbox_failed", "no room")))
    assert cut is not None and cut.lost == "no room"
    assert after_lost_replay(cut, ErrorInfo.of(TrialError("sandbox_failed", ""))) is None
    for error in (REWOUND, "aborted"):
        assert after_lost_replay(Cut(a_note(), 0.0), ErrorInfo.of(TrialError(error, ""))) is None


class Counting(Model):
    """A model that counts its prompts, so that its context is full at the same moment each time."""

    def counts(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        prompt = sum(len(str(message["content"])) for message in messages) // 4
        return {"usage": {"prompt_tokens": prompt, "completion_tokens": 30, "total_tokens": prompt + 30}}


@pytest.mark.slow
def test_a_compacted_history_is_compacted_again_in_a_new_container(cut: Any, engine: Engine) -> None:
    run = cut("--context-tokens", "1900", "--on-overflow", "drop-oldest-outputs", model=Counting())
    run.start()
    found = run.directory.glob
    run.end(lambda: any("drop-oldest-outputs" in each.read_text() for each in found(f"trials/**/{CHECKPOINTS_NAME}")))
    (note,) = run.notes
    engine.api.remove_container(note.sandbox, force=True)
    run.finish()
    result = next(each for each in run.results if each.final)
    assert (result.reward, result.steps) == (1.0, STEPS + CLAIMS)
    assert [(each.how, each.differs) for each in result.went_on] == [("replayed", "")]
    assert run.model.requests <= STEPS + CLAIMS + 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exact", "replay", "anew"])
def test_where_a_replay_differs_the_trial_goes_on_as_told(cut: Any, engine: Engine, mode: str) -> None:
    run = cut("--go-on", mode, model=Model(step_two=f"{UUID}\n"))
    run.start()
    run.end(asked(run, 5))
    (note,) = run.notes
    engine.api.remove_container(note.sandbox, force=True)
    printed = run.finish()
    result = next(each for each in run.results if each.final)
    assert result.reward == 1.0, printed
    if mode == "replay":
        assert [(each.differs.partition(":")[0], each.counts) for each in result.went_on] == [("step 2", False)]
        assert "does not count" in printed
    else:
        assert result.went_on == ()
        assert run.model.requests >= STEPS + CLAIMS + 4, "it began anew"


def test_a_cut_verifier_runs_again_without_the_agent(cut: Any) -> None:
    run = cut(sleep_sec=1)
    run.start()
    run.end(lambda: run.is_verifying)
    before = run.model.requests
    run.finish()
    result = run.result()
    assert (result.reward, run.model.requests) == (1.0, before)
    assert [each.how for each in result.went_on] == ["verifier"]
    assert result.steps == STEPS + CLAIMS


SEPARATE = """artifacts = ["/app/out"]
[environment]
memory_mb = 256
[verifier]
environment_mode = "separate"
"""


@pytest.mark.slow
@pytest.mark.parametrize("has_agents_container", [True, False], ids=["while collecting", "after it"])
def test_a_cut_separate_verifier_judges_the_same_artifacts_again(
    cut: Any, engine: Engine, has_agents_container: bool
) -> None:
    run = cut(sleep_sec=3, toml=SEPARATE)
    run.start()
    run.end(lambda: any(note.phase == "verifier" and bool(note.sandbox) == has_agents_container for note in run.notes))
    before = run.model.requests
    run.start()
    running = {"label": f"{LABEL_DIRECTORY}={run.directory}"}
    run.end(lambda: any(note.went_on and not note.sandbox for note in run.notes))
    printed = run.finish()
    result = run.result()
    assert (result.reward, result.attempt, run.model.requests) == (1.0, 1, before), printed
    assert (result.integrity.verify, [each.how for each in result.went_on]) == ("separate", ["verifier", "verifier"])
    assert result.steps == STEPS + CLAIMS
    assert engine.api.containers(all=True, filters=running) == []


def test_a_planned_stop_keeps_the_container_paused(cut: Any, engine: Engine) -> None:
    run = cut()
    run.start()
    assert run.end(asked(run, 4), signal.SIGTERM) == exit_codes.STOPPED
    (note,) = run.notes
    assert engine.api.inspect_container(note.sandbox)["State"]["Paused"]
    run.finish()
    assert (run.result().reward, run.result().attempt) == (1.0, 1)
    assert run.model.requests <= STEPS + CLAIMS + 1


@pytest.mark.slow
def test_a_run_that_stops_at_its_time_goes_on(cut: Any) -> None:
    run = cut("--for", "25s")
    process = run.start()
    run.wait(asked(run, 3))
    run.model.answers.clear()
    printed, _ = process.communicate(timeout=100)
    assert process.returncode == exit_codes.STOPPED, printed
    assert "stopped by --for 25s; 1 running trial kept" in printed
    run.model.answers.set()
    run.finish("--for", "1h")
    assert (run.result().reward, run.result().attempt) == (1.0, 1)
    assert run.model.requests <= STEPS + CLAIMS + 1


@pytest.mark.slow
def test_one_trial_is_stopped_and_the_others_end(cut: Any, engine: Engine) -> None:
    # Its verifier takes as long as `tbench stop` on a busy machine.
    run = cut("--seeds", "2", "--concurrency", "2", "--cpu-overcommit", "4", sleep_sec=8)
    process = run.start()
    run.wait(lambda: run.model.requests >= 8 and len(run.notes) == 2)
    printed = subprocess.run([TBENCH, "stop", f"{run.directory}/small-task/0"], capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    ended, _ = process.communicate(timeout=100)
    assert process.returncode == exit_codes.STOPPED, ended
    assert [(each.seed, each.reward) for each in run.results] == [(1, 1.0)]
    (note,) = run.notes
    assert engine.api.inspect_container(note.sandbox)["State"]["Paused"]
    run.finish()
    assert {each.seed: (each.reward, each.attempt) for each in run.results} == {0: (1.0, 1), 1: (1.0, 1)}


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_services_go_on_with_their_trial(cut: Any, engine: Engine, number: int) -> None:
    run = cut(compose=SIDE)
    run.start()
    run.end(asked(run, 5), number)
    labelled = {"label": f"{LABEL_DIRECTORY}={run.directory}"}
    found = engine.api.containers(all=True, filters=labelled)
    states = [each["State"] for each in found if LABEL_SERVICE in each["Labels"] and LABEL_HOLDS not in each["Labels"]]
    assert states == ["paused" if number == signal.SIGTERM else "running"] * 2
    run.finish()
    assert (run.result().reward, run.result().attempt) == (1.0, 1)
    assert engine.api.containers(all=True, filters=labelled) == []
    assert engine.api.networks(filters=labelled) == []


class StepModel(Model):
    """A model that works on each step of a task: it appends three lines, makes the step's file, and claims."""

    def __call__(self, seen: Seen) -> bytes:
        messages = seen.json["messages"]
        found = [re.search(r"Make /app/(\w+)\.", str(each["content"])) for each in messages]
        at, name = [(at, each[1]) for at, each in enumerate(found) if each][-1]
        self.requests_of[name] += 1
        step = sum(each["role"] == "assistant" for each in messages[at:]) + 1
        keys = f"echo {name}-{step} >>/app/out\n" if step < 4 else f"touch /app/{name}\n"
        commands = [{"keystrokes": keys, "duration": 20.0}] if step <= 4 else []
        return answer(200, completion(json.dumps(
            {"analysis": "", "plan": "", "commands": commands, "task_complete": step > 4}
        )))  # fmt: skip


@pytest.mark.slow
def test_a_task_of_several_steps_goes_on_in_the_step_that_was_cut(
    tmp_path: Path, make_task: Any, endpoint: FaultServer, cut: Any
) -> None:
    names = ["one", "two", "three"]
    files = {f"steps/{name}/tests/test.sh": f"sleep 2\ncp /app/out {END_STATE}\n{THERE.format(name)}" for name in names}
    task = step_task(make_task, *names, files=files, three="inherit_prior_session = true")
    model = StepModel()
    run = CutRun(tmp_path / "cut", task.parent, endpoint, model, "--seeds", "1")
    for happens in (
        lambda: model.requests_of["one"] >= 2,
        lambda: run.is_verifying,
        lambda: model.requests_of["two"] >= 2,
        lambda: model.requests_of["three"] >= 3,
    ):
        run.start()
        run.end(happens)
    run.finish()
    result = run.result()
    assert (result.reward, result.attempt) == (1.0, 1), (run.directory / "run.log").read_text()
    assert [(each.name, each.reward, each.steps) for each in result.task_steps] == [(name, 1.0, 6) for name in names]
    assert [each.how for each in result.went_on] == ["attached", "verifier", "attached", "attached"]
    assert all(6 <= model.requests_of[name] <= 7 for name in names)
    written = [f"{name}-{number}" for name in names for number in (1, 2, 3)]
    (end_state,) = run.directory.glob("trials/**/steps/three/**/end-state")
    assert end_state.read_text().split() == written


def enter(sandbox: str, *command: str) -> subprocess.Popen[bytes]:
    """Run a command in a container, at a terminal of its own."""
    entering = f"docker exec -it -e TERM=xterm -e LC_ALL=C.UTF-8 {sandbox} {shlex.join(command)}"
    return subprocess.Popen(["script", "-qc", entering, "/dev/null"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


TMUX = ("/opt/tbench/bin/tmux", "-S", "/opt/tbench/run/tmux")


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("docker") and shutil.which("script")), reason="takes docker and script")
@pytest.mark.parametrize("attaches", [True, False], ids=["to its terminal", "beside it"])
def test_a_container_that_a_person_entered_goes_on_without_counting(cut: Any, engine: Engine, attaches: bool) -> None:
    run = cut()
    run.start()
    run.end(asked(run, 4))
    (note,) = run.notes
    visitor = enter(note.sandbox, *TMUX, "attach", "-t", "main") if attaches else enter(note.sandbox, "sleep", "60")
    running = engine.api.inspect_container
    ends_at = time.monotonic() + 30
    while not running(note.sandbox)["ExecIDs"] and time.monotonic() < ends_at:
        time.sleep(0.1)
    if attaches:
        time.sleep(1)
        visitor.kill()
    run.start()
    run.end(asked(run, 7))
    visitor.kill()
    visitor.communicate()
    printed = run.finish()
    assert run.result().human_touched, printed
    said = [line for line in (run.directory / "run.log").read_text().splitlines() if "does not count" in line]
    assert said and "small-task/0" in said[0] and "--retry-errors aborted" in said[0]


@pytest.mark.slow
def test_a_trial_goes_on_on_its_machine_and_on_another_one_by_replay(cut: Any) -> None:
    with own_sshd() as sshd:
        first = sshd.address()
        run = cut("--engine", first)
        run.environment = {"PATH": f"{sshd.path}:{os.environ['PATH']}"}
        for number in (4, 7):
            run.start()
            run.end(asked(run, number))
        (note,) = run.notes
        assert ([each.how for each in note.went_on], note.machine) == (["attached"], first)
        run.finish("--engine", "unix:///var/run/docker.sock")
    said = [line for line in (run.directory / "run.log").read_text().splitlines() if "are replayed" in line]
    assert len(said) == 1 and first in said[0]
    result = run.result()
    assert (result.reward, result.steps) == (1.0, STEPS + CLAIMS)
    assert [each.how for each in result.went_on] == ["attached", "replayed"]


@pytest.mark.slow
def test_an_interrupted_trial_leaves_nothing(cut: Any) -> None:
    run = cut()
    run.start()
    assert run.end(asked(run, 4), signal.SIGINT) == exit_codes.INTERRUPTED
    assert not run.notes


@pytest.mark.slow
def test_only_one_process_goes_on(cut: Any) -> None:
    run = cut()
    run.start()
    run.end(asked(run, 4))
    before, first = run.model.requests, run.start()
    run.wait(asked(run, before + 1))
    first.send_signal(signal.SIGSTOP)  # however slow the machine is
    second = run.start()
    printed, _ = second.communicate(timeout=60)
    assert second.returncode == exit_codes.USAGE, printed
    assert "still going on" in printed
    first.send_signal(signal.SIGCONT)
    printed, _ = first.communicate(timeout=120)
    assert first.returncode == 0, printed
    assert run.result().reward == 1.0


def test_torn_last_lines_are_left_out(cut: Any) -> None:
    run = cut()
    run.start()
    run.end(asked(run, 5))
    (note,) = run.notes
    for name in (STEPS_NAME, CHECKPOINTS_NAME):
        with (trial_directory(run.directory, note.task, note.seed) / name).open("a") as file:
            file.write('{"index": 9, "rep')
    run.finish()
    assert (run.result().reward, run.result().attempt) == (1.0, 1)


@pytest.mark.slow
def test_a_trial_goes_on_without_the_fields_that_an_earlier_version_lacks(cut: Any) -> None:
    run = cut()
    run.start()
    run.end(asked(run, 5))
    (note,) = run.notes
    for name, lacks in ((STEPS_NAME, ("warnings", "exit_code")), (CHECKPOINTS_NAME, ("reviewed", "interventions"))):
        rewrite(trial_directory(run.directory, note.task, note.seed) / name, lacks)
    run.finish()
    assert (run.result().reward, run.result().attempt) == (1.0, 1)


def rewrite(file: Path, lacks: Sequence[str], **more: Any) -> None:
    """Write the lines of a file again, without some fields and with others."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    left = [{name: value for name, value in line.items() if name not in lacks} | more for line in lines]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in left))


@pytest.mark.slow
def test_a_trial_that_another_version_recorded_in_other_words_starts_again_and_says_why(cut: Any) -> None:
    run = cut()
    run.start()
    run.end(asked(run, 5))
    (note,) = run.notes
    rewrite(trial_directory(run.directory, note.task, note.seed) / CHECKPOINTS_NAME, ("steps",), followed=3)
    run.finish()
    assert (run.result().reward, run.result().attempt) == (1.0, 2)
    assert "small-task/0 starts again: its checkpoints cannot be read" in (run.directory / "run.log").read_text()


@pytest.mark.slow
def test_a_task_that_changed_is_refused_and_goes_on_when_it_is_restored(cut: Any) -> None:
    run = cut()
    run.start()
    run.end(asked(run, 4))
    script = run.directory.parent / "tasks/small-task/tests/test.sh"
    before = script.read_text()
    script.write_text(f"{before}# later\n")
    process = run.start()
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == exit_codes.USAGE
    assert "small-task" in printed
    script.write_text(before)
    run.finish()
    assert (run.result().reward, run.result().attempt) == (1.0, 1)


@pytest.mark.slow
def test_without_a_record_or_with_keep_cut_zero_a_trial_begins_anew(cut: Any) -> None:
    run = cut("--keep-cut", "0")
    run.start()
    run.end(asked(run, 4))
    assert not run.notes
    run.finish()
    result = run.result()
    assert (result.reward, result.attempt, result.went_on) == (1.0, 2, ())


def test_what_would_begin_anew_after_a_planned_stop_is_said_before_the_run(make_task: Any) -> None:
    task = Task.read(make_task())
    assert NopAgent.why_anew in anew_note([task], NopAgent())
    assert "all trials" in anew_note([task], NopAgent())

    class Asking(NopAgent):
        why_anew = ""

    assert anew_note([task], Asking()) == ""


def test_what_begins_anew_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/reliability.md").read_text()
    agents = (NopAgent.why_anew, OracleAgent.why_anew, UserAgent.why_anew, PackagedAgent.why_replayed)
    for reason in (*agents, INHERITED):
        assert reason in page
