"""A trial of two services beside the bare lives of its two containers and its network."""

from __future__ import annotations

import shutil
import statistics
import time
import uuid
from dataclasses import replace
from pathlib import Path

from figures import Figures
from lives import CYCLES, bare_cycle
from small_task import Place

from tbench.agents.trial_agent import NopAgent, OracleAgent
from tbench.tasks.task import Task

_COMPOSE = """services:
  main: {depends_on: [side]}
  side: {image: "debian:bookworm-slim", command: sleep 600, mem_limit: 512m}
"""


def bare_network(place: Place) -> float:
    """Make and remove a network with addresses of its own: seconds."""
    api = place.engine.api
    started = time.perf_counter()
    ipam = {"Driver": "default", "Config": [{"Subnet": "10.213.255.240/28"}]}
    name = f"tbench-bench-{uuid.uuid4().hex[:8]}"
    network = api.create_network(name, driver="bridge", ipam=ipam)["Id"]
    api.remove_network(network)
    return time.perf_counter() - started


async def two_services(place: Place, figures: Figures, scratch: Path) -> None:
    """Trials of an idle agent and of the oracle, one at a time, between cycles of what they are made of."""
    path = scratch / "two-services"
    shutil.copytree(place.task.path, path)
    (path / "environment" / "docker-compose.yaml").write_text(_COMPOSE)
    composed = replace(place, task=Task.read(path))
    floors, idle, oracle = [], [], []
    await composed.run_trials(NopAgent, 1, 1, "nop")  # the image
    for _ in range(CYCLES):
        floors.append(bare_cycle(place) + bare_cycle(place) + bare_network(place))
        elapsed, outcome = await composed.run_trials(NopAgent, 1, 1, "nop")
        assert outcome.results[0].reward == 0.0, outcome.results
        idle.append(elapsed)
        elapsed, outcome = await composed.run_trials(OracleAgent, 1, 1, "oracle")
        assert outcome.results[0].reward == 1.0, outcome.results
        oracle.append(elapsed)
    floor_sec, idle_sec = statistics.median(floors), statistics.median(idle)
    figures.add("compose_failing_trial_sec", idle_sec, "s", floor_sec)
    figures.add("compose_failing_trial_over_bare_cycles", idle_sec / floor_sec, "ratio", 1.0)
    figures.add("compose_oracle_trial_sec", statistics.median(oracle), "s", floor_sec)
