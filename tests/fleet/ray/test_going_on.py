"""Trials over a Ray cluster go on although the run, or the node under them, is killed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from cut_runs import CLAIMS, STEPS, CutRun, Model, verifier_script
from fault_server import FaultServer
from ray_cluster import ray_nodes, require_ray

from tbench import exit_codes
from tbench.sandbox.docker.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_trial_goes_on_by_replay_on_another_node(
    tmp_path: Path, make_task: Any, endpoint: FaultServer, engine: Engine, tools_volume: str, number: int
) -> None:
    require_ray()
    task = make_task(test=verifier_script())
    with ray_nodes("one") as nodes:
        run = CutRun(tmp_path / "cut", task.parent, endpoint, Model(), "--seeds", "1", "--ray", nodes.address)
        run.start()
        ended = run.end(lambda: run.model.requests >= 5, number)
        assert ended == (exit_codes.STOPPED if number == signal.SIGTERM else -signal.SIGKILL)
        (note,) = run.notes
        assert note.machine == "one"
    with ray_nodes("two") as nodes:
        printed = run.finish("--ray", nodes.address)
    result = run.result()
    assert (result.reward, result.steps, result.machine) == (1.0, STEPS + CLAIMS, "two"), printed
    assert [(each.how, each.differs) for each in result.went_on] == [("replayed", "")]
    assert run.model.requests <= STEPS + CLAIMS + 1


def test_a_trial_is_not_attached_to_a_container_that_is_about_to_be_removed(
    tmp_path: Path, make_task: Any, endpoint: FaultServer, engine: Engine, tools_volume: str
) -> None:
    require_ray()
    task = make_task(test=verifier_script())
    with ray_nodes("one") as nodes:
        run = CutRun(tmp_path / "cut", task.parent, endpoint, Model(), "--seeds", "1", "--ray", nodes.address)
        for least in (4, 8):
            run.start()
            run.end(lambda least=least: run.model.requests >= least)
        printed = run.finish()
    result = run.result()
    assert (result.reward, result.steps) == (1.0, STEPS + CLAIMS), printed
    assert [each.how for each in result.went_on] == ["replayed", "replayed"]
    assert run.model.requests <= STEPS + CLAIMS + 2


def test_a_trial_goes_on_elsewhere_when_its_node_is_killed_while_its_run_lives(
    tmp_path: Path, make_task: Any, endpoint: FaultServer, engine: Engine, tools_volume: str
) -> None:
    require_ray()
    task = make_task(test=verifier_script())
    with ray_nodes("one") as nodes:
        words = ("--seeds", "1", "--retries", "0", "--ray", nodes.address)
        run = CutRun(tmp_path / "cut", task.parent, endpoint, Model(), *words)
        process = run.start()
        run.wait(lambda: run.model.requests >= 4)
        nodes.add("two")
        nodes.kill("one")
        printed, _ = process.communicate(timeout=200)
    assert process.returncode == 0, printed
    lost, last = run.results
    assert (lost.machine, lost.final, lost.error and lost.error.type) == ("one", False, "engine_unreachable")
    assert (last.reward, last.steps, last.machine) == (1.0, STEPS + CLAIMS, "two"), printed
    assert [(each.how, each.differs) for each in last.went_on] == [("replayed", "")]
    assert run.model.requests <= STEPS + CLAIMS + 1
    assert not run.notes
