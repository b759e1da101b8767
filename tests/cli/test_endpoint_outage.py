"""Endpoint outages during a run: a real process, real containers, an endpoint that is stopped and restarted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
from fault_server import FaultServer

from tbench.cli.run import exit_with_outcomes
from tbench.demo.server import DemoEndpoint
from tbench.runs.run import RunOutcome
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.tasks.sources import BUNDLED, read_tasks

TBENCH = str(Path(sys.executable).with_name("tbench"))
TASKS = ("tidy-notes", "lab-permissions")
AWAY_SEC = 60.0
Begin = Callable[..., "Started"]


class Started:
    """A running `tbench run`."""

    def __init__(self, directory: Path, log: Path, arguments: list[str]) -> None:
        self.directory = directory
        self._log = log
        environment = {**os.environ, "COLUMNS": "100"}
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [TBENCH, "run", BUNDLED, "-o", str(directory), *arguments], stdout=file, stderr=file, env=environment
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, words: str, times: int = 1) -> None:
        ends_at = time.monotonic() + 120
        while self.said.count(words) < times:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < ends_at, self.said
            time.sleep(0.05)

    def end(self) -> int:
        return self.process.wait(timeout=180)

    @property
    def results(self) -> list[Any]:
        return [json.loads(line) for line in (self.directory / "results.jsonl").read_text().splitlines()]

    @property
    def presences(self) -> list[str]:
        """Return the states of the endpoint in the journal."""
        events = [json.loads(line) for line in (self.directory / "journal.jsonl").read_text().splitlines()]
        return [event["presence"] for event in events if event["kind"] == "endpoint_presence"]

    @property
    def config(self) -> Any:
        return json.loads((self.directory / "run.json").read_text())


@pytest.fixture
def begin(engine: Engine, tools_volume: str, tmp_path: Path) -> Iterator[Begin]:
    """Start runs; assert at the end that none of their containers are left."""
    begun: list[Started] = []

    def start(*arguments: str) -> Started:
        directory = tmp_path / f"outage-{uuid.uuid4().hex[:8]}"
        begun.append(Started(directory, tmp_path / f"{directory.name}.log", list(arguments)))
        return begun[-1]

    yield start
    for run in begun:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(60)
        assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={run.directory.name}"}) == []


@pytest.fixture
def demo() -> Iterator[DemoEndpoint]:
    """Endpoint that can be stopped and restarted on the same port."""
    instructions = {task.name: task.instruction for task in read_tasks(BUNDLED).tasks}
    with DemoEndpoint(instructions) as first:
        port = urlsplit(first.base_url).port
    assert port is not None
    with DemoEndpoint(instructions, port=port, latency_sec=2.0) as endpoint:
        yield endpoint


def options(base_url: str, *more: str) -> list[str]:
    return [*(word for task in TASKS for word in ("-t", task)), "--base-url", base_url, *more]


@pytest.mark.slow
@pytest.mark.engine
def test_a_restart_of_the_endpoint_under_four_trials_costs_none_of_them(begin: Begin, demo: DemoEndpoint) -> None:
    """Outage of a minute, with a retry budget of ten seconds per request."""
    run = begin(*options(demo.base_url, "-k", "3", "-n", "4", "--cpu-overcommit", "4", "--retry-budget", "10", "-v"))
    run.wait_for(": step 2", times=4)
    demo.stop()
    run.wait_for("endpoint away: ")
    time.sleep(AWAY_SEC)
    agents = run.said.count(": agent\n")
    demo.start()
    run.wait_for("endpoint back after ")
    assert run.end() == 0, run.said
    assert "coverage 6/6" in run.said
    assert agents <= 4, run.said  # no trial was started meanwhile
    assert run.said.count("endpoint away: ") == 1
    assert run.presences == ["away", "back"]
    assert [result["error"] for result in run.results] == [None] * 6
    timings = [result["timings"] for result in run.results]
    waited = [times for times in timings if times["waited_sec"] > AWAY_SEC]
    assert len(waited) == agents
    assert all(times["agent_sec"] - times["waited_sec"] < AWAY_SEC for times in timings)
    assert run.config["status"] == "finished"


@pytest.mark.slow
@pytest.mark.engine
def test_an_outage_that_is_too_long_stops_the_run_with_one_clear_line(begin: Begin, demo: DemoEndpoint) -> None:
    run = begin(*options(demo.base_url, "-k", "9", "-n", "2", "--max-outage", "5"))
    run.wait_for("reward", times=1)
    url = demo.base_url
    demo.stop()
    assert run.end() == 4, run.said
    (line,) = [line for line in run.said.splitlines() if line.startswith("tbench: ")]
    assert line.startswith(f"tbench: stopped: {url}: the endpoint was down for ")
    assert "longer than --max-outage (cannot connect: Connection refused)" in line
    assert line.endswith(f"; resume with: tbench resume {run.directory}")
    assert run.config["status"] == "stopped"
    assert run.config["stopped"] in line
    errors = [result["error"]["type"] for result in run.results if result["error"]]
    assert set(errors) == {"endpoint_unavailable"}
    assert len(errors) < len(run.results) < 18


@pytest.mark.slow
@pytest.mark.engine
def test_a_run_that_never_gets_an_answer_stops_with_one_clear_line(begin: Begin, endpoint: FaultServer) -> None:
    endpoint.always_list({"id": "tiny"})
    endpoint.will_answer(404, {"error": {"message": "The model `tiny` does not exist."}})
    run = begin(*options(endpoint.base_url, "-k", "9", "-n", "1"))
    assert run.end() == 4, run.said
    (line,) = [line for line in run.said.splitlines() if line.startswith("tbench: ")]
    assert f"stopped: {endpoint.base_url}: the first 3 trials ended with endpoint errors" in line
    assert "The model `tiny` does not exist." in line
    assert len(run.results) == 3
    assert run.config["status"] == "stopped"


AWAY = RunOutcome([], interrupted=False, stopped="the endpoint was away")
FINISHED = RunOutcome([], interrupted=False)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [([AWAY], 4), ([replace(AWAY, interrupted=True)], 130), ([FINISHED, AWAY], 4), ([AWAY, None, FINISHED], 2)],
)
def test_a_run_that_stopped_by_itself_ends_with_4_unless_worse_happened(
    outcomes: list[RunOutcome | None], code: int
) -> None:
    with pytest.raises(click.exceptions.Exit) as caught:
        exit_with_outcomes(outcomes, min_coverage=0)
    assert caught.value.exit_code == code
    exit_with_outcomes([FINISHED, FINISHED], min_coverage=0)
