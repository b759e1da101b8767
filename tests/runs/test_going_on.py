"""Trials whose process was ended go on, in their containers or in new ones, and nothing is done twice."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cut_runs import CLAIMS, STEPS, TBENCH, CutRun, Model, verifier_script, wanted
from fault_server import FaultServer

from tbench import exit_codes
from tbench.agents.model_agent import UserAgent
from tbench.agents.trial_agent import NopAgent, OracleAgent
from tbench.runs.going_on import SEVERAL_STEPS
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_DIRECTORY, LABEL_HOLDS, LABEL_SERVICE
from tbench.storage.run_files import CHECKPOINTS_NAME, STEPS_NAME, trial_directory

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

    def make(*options: str, model: Model | None = None, sleep_sec: float = 0.2, compose: str = "") -> CutRun:
        task = make_task(test=f"{ASK_SIDE if compose else ''}{verifier_script(sleep_sec)}")
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
    run.start()
    run.end(asked(run, 7))
    (note,) = run.notes
    engine.api.remove_container(note.sandbox, force=True)
    assert "followed again" in run.finish()
    result = run.result()
    assert (result.reward, result.steps, result.human_touched) == (1.0, STEPS + CLAIMS, False)
    assert [(each.how, each.differs) for each in result.went_on] == [("replayed", "")]
    assert run.model.requests <= STEPS + CLAIMS + 1


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


def test_a_planned_stop_keeps_the_container_paused(cut: Any, engine: Engine) -> None:
    run = cut()
    run.start()
    assert run.end(asked(run, 4), signal.SIGTERM) == exit_codes.STOPPED
    (note,) = run.notes
    assert engine.api.inspect_container(note.sandbox)["State"]["Paused"]
    run.finish()
    assert (run.result().reward, run.result().attempt) == (1.0, 1)
    assert run.model.requests <= STEPS + CLAIMS + 1


def test_one_trial_is_stopped_and_the_others_end(cut: Any, engine: Engine) -> None:
    run = cut("--seeds", "2", "--concurrency", "2", "--cpu-overcommit", "4")
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
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


def test_an_interrupted_trial_leaves_nothing(cut: Any) -> None:
    run = cut()
    run.start()
    assert run.end(asked(run, 4), signal.SIGINT) == exit_codes.INTERRUPTED
    assert not run.notes


def test_only_one_process_goes_on(cut: Any) -> None:
    run = cut()
    run.start()
    run.end(asked(run, 4))
    run.model.answers.clear()
    started = run.model.requests
    first = run.start()
    while run.model.requests == started:
        time.sleep(0.05)
    second = run.start()
    printed, _ = second.communicate(timeout=60)
    assert second.returncode == exit_codes.USAGE
    assert "still going on" in printed
    run.model.answers.set()
    first.communicate(timeout=120)
    assert first.returncode == 0
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


def test_without_a_record_or_with_keep_cut_zero_a_trial_begins_anew(cut: Any) -> None:
    run = cut("--keep-cut", "0")
    run.start()
    run.end(asked(run, 4))
    assert not run.notes
    run.finish()
    result = run.result()
    assert (result.reward, result.attempt, result.went_on) == (1.0, 2, ())


def test_what_begins_anew_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/reliability.md").read_text()
    for reason in (NopAgent.why_anew, OracleAgent.why_anew, UserAgent.why_anew, SEVERAL_STEPS):
        assert reason in page


class Kills:
    """Kills a run at random moments of its trials, until it has ended."""

    def __init__(self, run: CutRun, at: random.Random) -> None:
        self.run, self._at = run, at
        self.number = 0
        self.of_task: Counter[str] = Counter()
        """How often each task's trial was cut while its model was asked."""
        self.moments: Counter[str] = Counter()

    def until(self, most: int) -> None:
        while self.number < most:
            self.run.start()
            name, happens = self._at.choice(self._moments())
            if self.run.end(self._or_late(happens)) == 0:
                return
            self.number += 1
            self.moments[name] += 1
            self.of_task.update(note.task for note in self.run.notes if note.phase == "agent")

    def _moments(self) -> list[tuple[str, Callable[[], bool]]]:
        asked, pending, verdicts = self.run.model.requests, self._pending(), len(self.run.results_on_disk)
        began = time.monotonic()
        any_sec = self._at.uniform(0.2, 5)
        return [
            ("a request", self._soon(lambda: self.run.model.requests > asked, 0.05)),
            ("a reply written", self._soon(lambda: self._pending() - pending != set(), 0.0)),
            ("in mid-typing", self._soon(lambda: self._pending() - pending != set(), 0.06)),
            ("a command or wait", self._soon(lambda: self.run.model.requests > asked + 3, 1.5)),
            ("the verifier", self._soon(lambda: self.run.is_verifying, 1.5)),
            ("teardown", self._soon(lambda: len(self.run.results_on_disk) > verdicts, 0.2)),
            ("any", lambda: time.monotonic() - began > any_sec),
        ]

    def _pending(self) -> set[tuple[str, int]]:
        """Trials of which a reply is written, each with its step."""
        return self.run.replies_on_disk

    def _soon(self, happens: Callable[[], bool], most_sec: float) -> Callable[[], bool]:
        ends_at, wait_sec = [0.0], self._at.uniform(0, most_sec)

        def has_happened() -> bool:
            if not ends_at[0] and happens():
                ends_at[0] = time.monotonic() + wait_sec
            return bool(ends_at[0]) and time.monotonic() >= ends_at[0]

        return has_happened

    def _or_late(self, happens: Callable[[], bool]) -> Callable[[], bool]:
        late = time.monotonic() + 8
        return lambda: happens() or time.monotonic() > late


@pytest.mark.slow
def test_sixty_kills_at_random_moments_lose_nothing(tmp_path: Path, make_task: Any, endpoint: FaultServer) -> None:
    names = [f"cut-task-{number}" for number in range(8)]
    for name in names:
        task = make_task(name, instruction=f"This is {name}.\n", test=verifier_script(1.5))
    at, killed, moments = random.Random(45), 0, Counter[str]()
    while killed < 60:
        options = ["--seeds", "1", "--concurrency", "8", "--cpu-overcommit", "8"]
        run = CutRun(tmp_path / f"cut-{killed}", task.parent, endpoint, Model(), *options)
        kills = Kills(run, at)
        kills.until(60 - killed)
        run.finish()
        killed += kills.number
        moments += kills.moments
        assert {each.task: each.reward for each in run.results if each.final} == dict.fromkeys(names, 1.0)
        for name in names:
            asked = run.model.requests_of[name]
            assert STEPS + CLAIMS <= asked <= STEPS + CLAIMS + kills.of_task[name], f"{name}: {kills.of_task[name]}"
            (end_state,) = run.directory.glob(f"trials/{name}/seed-0/**/end-state")
            assert end_state.read_text() == wanted()
        anew = [line for line in (run.directory / "run.log").read_text().splitlines() if "begins anew" in line]
        assert all("the model had not been asked yet" in line for line in anew), anew
        assert not run.notes
    print(killed, "kills:", dict(moments))
