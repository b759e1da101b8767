"""Runs that are killed at random moments, also with their containers or their engine, lose nothing."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cut_runs import CLAIMS, STEPS, CutRun, Kills, Model, verifier_script, wanted
from docker.errors import NotFound
from fault_server import FaultServer
from own_engine import own_engine

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.own_images import recipe_hash
from tbench.tasks.sources import images_dir

pytestmark = [pytest.mark.engine, pytest.mark.slow]
NAMES = [f"cut-task-{number}" for number in range(8)]
needs_root = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("dockerd") is None, reason="takes root and dockerd")


@pytest.fixture
def tasks(make_task: Any) -> Path:
    for name in NAMES:
        task: Path = make_task(name, instruction=f"This is {name}.\n", test=verifier_script(1.5))
    return task.parent


def all_at_once(directory: Path, tasks: Path, endpoint: FaultServer) -> CutRun:
    options = ["--seeds", "1", "--concurrency", "8", "--cpu-overcommit", "8"]
    return CutRun(directory, tasks, endpoint, Model(), *options)


def check(run: CutRun, cuts: Counter[str]) -> None:
    """All trials have ended as without a cut, no more than a request was lost with each, and none began anew."""
    assert {each.task: each.reward for each in run.results if each.final} == dict.fromkeys(NAMES, 1.0)
    for name in NAMES:
        asked = run.model.requests_of[name]
        assert STEPS + CLAIMS <= asked <= STEPS + CLAIMS + cuts[name], f"{name}: cut {cuts[name]} times"
    for result in run.results:
        if result.final:
            *_, end_state = sorted(run.directory.glob(f"trials/{result.task}/seed-0/**/end-state"))
            assert end_state.read_text() == wanted()
    lines = (run.directory / "run.log").read_text().splitlines()
    anew = [line for line in lines if "starts again" in line and "the model had not been asked yet" not in line]
    assert not anew
    assert not run.notes


def kill_often(most: int, seed: int, start: Callable[[int], CutRun], after_each: Callable[[CutRun], None]) -> str:
    """Kill runs at random moments, `most` times in all, check what each came to, and return all their logs."""
    at, killed, moments, logs = random.Random(seed), 0, Counter[str](), ""
    while killed < most:
        run = start(killed)
        kills = Kills(run, at, partial(after_each, run))
        kills.until(most - killed)
        run.finish()
        killed += kills.number
        moments += kills.moments
        check(run, kills.of_task)
        logs += (run.directory / "run.log").read_text()
    print(killed, "kills:", dict(moments), logs.count("are replayed"), "replays")
    return logs


def test_sixty_kills_at_random_moments_lose_nothing(tmp_path: Path, tasks: Path, endpoint: FaultServer) -> None:
    kill_often(60, 45, lambda number: all_at_once(tmp_path / f"cut-{number}", tasks, endpoint), lambda _: None)


def test_kills_that_take_a_container_with_them_lose_nothing(
    tmp_path: Path, tasks: Path, endpoint: FaultServer, engine: Engine
) -> None:
    at = random.Random(46)

    def remove_one(run: CutRun) -> None:
        if left := [note.sandbox for note in run.notes if note.sandbox and note.phase == "agent"]:
            with contextlib.suppress(NotFound):  # its replay had not begun when it was killed
                engine.api.remove_container(at.choice(left), force=True)

    logs = kill_often(20, 46, lambda number: all_at_once(tmp_path / f"cut-{number}", tasks, endpoint), remove_one)
    assert "are replayed" in logs


@pytest.fixture(params=[(), ("--live-restore",)], ids=["containers-end", "containers-live"])
def own_host(request: pytest.FixtureRequest, engine: Engine, tools_volume: str) -> Iterator[Any]:
    """An engine of the test's own."""
    images = ["debian:bookworm-slim", f"tbench/tools:{recipe_hash(images_dir() / 'tools')}"]
    with own_engine(*request.param, images=images, size_mb=8000) as (own, _):
        yield own


@needs_root
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_kills_that_take_the_engine_with_them_lose_nothing(
    tmp_path: Path, tasks: Path, endpoint: FaultServer, own_host: Any
) -> None:
    run, at = all_at_once(tmp_path / "cut", tasks, endpoint), random.Random(47)
    run.environment = {"DOCKER_HOST": own_host.host}

    def restart() -> None:
        own_host.stop(signal.SIGKILL)
        own_host.start()

    kills = Kills(run, at, restart)
    kills.until(5)
    run.finish()
    check(run, kills.of_task)


@pytest.mark.parametrize(
    ("steps", "step_sec", "cut_every_sec"), [(40, 3, 15.0), (110, 5, 30.0)], ids=["two-minutes", "ten-minutes"]
)
def test_a_run_that_is_cut_again_and_again_asks_for_little_twice(
    tmp_path: Path, make_task: Any, endpoint: FaultServer, steps: int, step_sec: int, cut_every_sec: float
) -> None:

    class Slow(Model):
        steps_and_keys = steps, f"sleep {step_sec}; echo slow >>/app/out\n"

    task = make_task(test=f"[ $(wc -l </app/out) = {steps} ] && echo 1 >/logs/verifier/reward.txt\n")
    run, cuts = CutRun(tmp_path / "cut", task.parent, endpoint, Slow(), "--seeds", "1", "--steps", "none"), 0
    while True:
        run.begin()
        ends_at = time.monotonic() + cut_every_sec
        if run.end(lambda ends_at=ends_at: time.monotonic() > ends_at) != -signal.SIGKILL:
            break
        cuts += 1
    print(cuts, "cuts,", run.model.requests, "requests")
    assert cuts >= 5
    assert (run.result().attempt, run.result().steps, run.result().reward) == (1, steps + CLAIMS, 1.0)
    assert run.model.requests <= steps + CLAIMS + cuts


@needs_root
def test_a_disk_that_was_full_at_the_cut_costs_no_verdict(
    tmp_path: Path, make_task: Any, endpoint: FaultServer
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tbench-test", disk], check=True)
    try:
        task = make_task(test=verifier_script())
        run = CutRun(disk / "cut", task.parent, endpoint, Model(), "--seeds", "1")
        run.start()
        run.wait(lambda: run.model.requests >= 4)
        with (disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError):
            while True:
                filler.write(bytes(4096))
        run.end(lambda: run.model.requests >= 8)
        before = run.model.requests
        (disk / "filler").unlink()
        run.finish()
        last = next(each for each in run.results if each.final)
        replayed = last.went_on[-1]
        assert (last.reward, replayed.how, replayed.differs) == (1.0, "replayed", "")
        known = replayed.at_step - 1
        assert known >= 2 and run.model.requests <= before + STEPS + CLAIMS - known + 1
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
