"""Runs over a Ray cluster on this machine, whose nodes, actors, head and driver are killed: with real containers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from own_engine import own_engine
from ray_cluster import RayNodes, actors, ray_nodes, require_ray
from results_on_disk import finals_in, results_in

from tbench.results import TrialResult
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.own_images import recipe_hash
from tbench.sandbox.owner import LABEL_RUN
from tbench.storage.run_files import RUN
from tbench.tasks.sources import images_dir

pytestmark = [pytest.mark.engine, pytest.mark.slow]
MakeTask = Any
TBENCH = str(Path(sys.executable).with_name("tbench"))
BOUND_SEC = 180.0
IMAGES = ["debian:bookworm-slim", f"tbench/tools:{recipe_hash(images_dir() / 'tools')}"]


class ClusterRun:
    """A `tbench run` over a cluster, as a process of its own, and what it writes."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.directory = directory
        self._engine = engine
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str, **variables: str) -> None:
        """Start it, with these environment variables besides."""
        self._process = subprocess.Popen(
            [TBENCH, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **variables},
        )

    def finish(self) -> tuple[int, str]:
        assert self._process is not None
        output, _ = self._process.communicate(timeout=BOUND_SEC)
        return self._process.returncode, output

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    @property
    def containers(self) -> list[str]:
        labelled = {"label": f"{LABEL_RUN}={self.directory.name}"}
        return [each["Id"] for each in self._engine.api.containers(all=True, filters=labelled)]

    @property
    def results(self) -> list[TrialResult]:
        return results_in(self.directory)

    @property
    def finals(self) -> dict[tuple[str, int], TrialResult]:
        return finals_in(self.directory)

    @property
    def machines(self) -> list[str]:
        described = json.loads((self.directory / RUN.manifest).read_text())["engine"]["machines"]
        return [each["name"] for each in described]


@pytest.fixture
def run(engine: Engine, tools_volume: str, tmp_path: Path) -> Iterator[ClusterRun]:
    require_ray()
    made = ClusterRun(engine, tmp_path / f"cluster-{uuid.uuid4().hex[:8]}")
    yield made
    made.end()
    eventually(lambda: not made.containers, "the end of all containers")


def eventually(holds: Callable[[], Any], what: str) -> None:
    ends_at = time.monotonic() + BOUND_SEC
    while not holds():
        assert time.monotonic() < ends_at, f"in vain waited for {what}"
        time.sleep(0.05)


def arguments(source: Path, nodes: RayNodes, run: ClusterRun, *more: str) -> tuple[str, ...]:
    how = ("--agent", "oracle", "-n", "8", "--cpu-overcommit", "3", "--verify", "shared")
    return "run", str(source), *how, "--ray", nodes.address, "-o", str(run.directory), *more


def slow_task(make_task: MakeTask, sec: float) -> Path:
    path: Path = make_task("slow", solve=f"sleep {sec}; touch /app/done\n")
    return path.parent


def test_trials_are_on_all_nodes_that_have_an_engine_and_on_no_other(run: ClusterRun, make_task: MakeTask) -> None:
    source = slow_task(make_task, 2)
    with ray_nodes("one", "two") as nodes:
        nodes.add("plain", resources={})
        nodes.add("broken", DOCKER_HOST="unix:///nowhere/docker.sock")
        run.start(*arguments(source, nodes, run, "-k", "8"))
        code, output = run.finish()
    assert (code, len(run.finals)) == (0, 8), output
    assert Counter(result.machine for result in run.finals.values()).keys() == {"one", "two"}, output
    assert all(result.reward == 1 for result in run.finals.values())
    assert sorted(run.machines) == ["one", "two"]
    told = [line for line in output.splitlines() if "broken" in line]
    assert len(told) == 1 and "no container engine answers at unix:///nowhere/docker.sock" in told[0], output
    assert "plain" not in output


def test_trials_of_a_node_that_is_killed_are_done_once_more_elsewhere(run: ClusterRun, make_task: MakeTask) -> None:
    source = slow_task(make_task, 6)
    with ray_nodes("one", "two") as nodes:
        run.start(*arguments(source, nodes, run, "-k", "8", "--retries", "0"))
        eventually(lambda: len(run.containers) >= 5, "containers on both nodes")
        nodes.kill("two")
        code, output = run.finish()
    assert (code, len(run.finals)) == (0, 8), output
    assert all(result.reward == 1 for result in run.finals.values())
    lost = [result for result in run.results if not result.final]
    assert lost, output
    assert {(result.machine, result.error and result.error.type) for result in lost} == {("two", "engine_unreachable")}
    for result in lost:
        again = run.finals[result.task, result.seed]
        assert (again.attempt, again.machine) == (2, "one")
    assert re.search(r"two: is lost: .*; \d+ trials? on it to be continued elsewhere", output), output


def test_an_actor_that_is_killed_costs_no_verdict_and_its_node_joins_again(
    run: ClusterRun, make_task: MakeTask
) -> None:
    source = slow_task(make_task, 6)
    with ray_nodes("one", "two") as nodes:
        run.start(*arguments(source, nodes, run, "-k", "16"))
        eventually(lambda: len(run.containers) >= 4 and len(actors()) >= 2, "containers on both nodes")
        os.kill(actors()[0], signal.SIGKILL)
        code, output = run.finish()
    assert (code, len(run.finals)) == (0, 16), output
    assert all(result.reward == 1 for result in run.finals.values())
    assert "is lost" in output and "has joined" in output, output


def test_a_node_that_comes_late_has_trials_too(run: ClusterRun, make_task: MakeTask) -> None:
    source = slow_task(make_task, 4)
    with ray_nodes() as nodes:
        # Ray has no cpus on either, so each would have all of the engine that they share.
        nodes.add("one", cpus=0)
        run.start(*arguments(source, nodes, run, "-k", "16"))
        eventually(lambda: run.containers, "a container")
        nodes.add("late", cpus=0)
        code, output = run.finish()
    assert (code, len(run.finals)) == (0, 16), output
    assert Counter(result.machine for result in run.finals.values()).keys() == {"one", "late"}
    assert "late: has joined" in output


@pytest.mark.parametrize("whole", [False, True], ids=["the driver", "all of its processes"])
def test_nothing_is_left_on_any_node_when_the_driver_is_killed(
    run: ClusterRun, make_task: MakeTask, whole: bool
) -> None:
    source = slow_task(make_task, 60)
    with ray_nodes("one", "two") as nodes:
        run.start(*arguments(source, nodes, run, "-k", "6"))
        eventually(lambda: len(run.containers) >= 4, "containers on both nodes")
        tunnels = tunnels_to(nodes.address)
        run.signal(signal.SIGKILL)
        for pid in tunnels if whole else ():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not run.containers, "the end of all containers")
        eventually(lambda: not tunnels_to(nodes.address), "the end of the process connected to Ray")


def test_what_was_finished_stays_finished_when_the_head_is_killed_and_the_rest_is_done_later(
    run: ClusterRun, make_task: MakeTask
) -> None:
    make_task("quick")
    source = slow_task(make_task, 70)
    with ray_nodes("one", "two") as nodes:
        run.start(*arguments(source, nodes, run, "-k", "2"))
        eventually(lambda: len(run.finals) == 2 and run.containers, "two verdicts, and trials under way")
        nodes.kill_head()
        code, output = run.finish()
        assert code != 0 and "Traceback" not in output
        assert re.search(r"the head of the cluster at \S+ is gone", output), output
        assert {key for key, each in run.finals.items() if each.reward is not None} == {("quick", 0), ("quick", 1)}
        assert not any(result.reward == 0 for result in run.results)
        eventually(lambda: not run.containers, "the end of all containers")
    with ray_nodes("three") as others:
        run.start("resume", str(run.directory), "--ray", others.address)
        code, output = run.finish()
    assert (code, len(run.finals)) == (0, 4), output
    assert {result.machine for result in run.finals.values() if result.task == "slow"} == {"three"}


def test_a_second_run_waits_for_nodes_that_another_one_has(run: ClusterRun, make_task: MakeTask) -> None:
    source = slow_task(make_task, 45)
    with ray_nodes("one") as nodes:
        run.start(*arguments(source, nodes, run, "-k", "1"))
        eventually(lambda: run.containers, "a container")
        other = run.directory.with_name("other")
        ended = subprocess.run(
            [TBENCH, "run", str(source), "--agent", "oracle", "--ray", nodes.address, "-o", str(other)],
            capture_output=True,
            text=True,
            timeout=BOUND_SEC,
        )
        assert ended.returncode == 2 and "one: its resource `engine` is taken" in ended.stderr
        code, output = run.finish()
    assert code == 0, output


def test_each_node_has_the_engine_that_its_own_docker_host_names(
    run: ClusterRun, make_task: MakeTask, engine: Engine
) -> None:
    source = slow_task(make_task, 3)
    with own_engine(images=IMAGES) as (own, other), ray_nodes("one") as nodes:
        nodes.add("two", DOCKER_HOST=own.host)
        run.start(*arguments(source, nodes, run, "-k", "8"))
        code, output = run.finish()
        assert not other.api.containers(all=True)
    assert (code, len(run.finals)) == (0, 8), output
    assert Counter(result.machine for result in run.finals.values()).keys() == {"one", "two"}, output


@pytest.mark.parametrize("token", ["b" * 40, ""], ids=["another", "none"])
def test_a_wrong_token_is_one_line_and_nothing_is_started(run: ClusterRun, make_task: MakeTask, token: str) -> None:
    source = slow_task(make_task, 1)
    with ray_nodes("one", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 40) as nodes:
        run.start(*arguments(source, nodes, run), RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token, HOME="/nowhere")
        code, output = run.finish()
        assert (code, output.count("\n")) == (2, 1) and "the cluster refuses the token" in output, output
        assert not run.directory.exists() and not tunnels_to(nodes.address)
        run.start(*arguments(source, nodes, run), RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 40)
        assert run.finish()[0] == 0


def test_a_token_that_lies_in_its_file_is_taken_though_no_one_has_asked_for_one(
    run: ClusterRun, make_task: MakeTask, tmp_path: Path
) -> None:
    source = slow_task(make_task, 1)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("c" * 40)
    with ray_nodes("one", RAY_AUTH_MODE="token", HOME=str(tmp_path)) as nodes:
        run.start(*arguments(source, nodes, run), HOME=str(tmp_path))
        code, output = run.finish()
    assert (code, len(run.finals)) == (0, 1), output


IN_RAY = """
import asyncio, json, sys
import ray
import tbench
from tbench.config.settings import RunConfig

@ray.remote(num_cpus=0)
def job(task):
    async def trials():
        config = {"agent": {"name": "oracle"}, "sandbox": {"ray": "auto"}, "schedule": {"concurrency": 4}}
        async with tbench.Runner(RunConfig.model_validate(config)) as runner:
            done = await asyncio.gather(*(runner.trial(task, seed=seed) for seed in range(4)))
            return [(each.reward, each.result.machine) for each in done]
    return asyncio.run(trials())

ray.init(address=sys.argv[1], log_to_driver=False)
print(json.dumps(ray.get(job.remote(sys.argv[2]))))
"""


def test_trials_in_a_program_of_rays_own_are_on_the_nodes_of_its_cluster(
    engine: Engine, tools_volume: str, make_task: MakeTask, tmp_path: Path
) -> None:
    source = slow_task(make_task, 1)
    (tmp_path / ".ray").mkdir()
    # A token of another cluster: with `auto` Ray itself would take it.
    (tmp_path / ".ray" / "auth_token").write_text("c" * 40)
    with ray_nodes("one", "two", HOME=str(tmp_path)) as nodes:
        ended = subprocess.run(
            [sys.executable, "-c", IN_RAY, nodes.address, str(source / "slow")],
            capture_output=True,
            text=True,
            timeout=BOUND_SEC,
            env={**os.environ, "HOME": str(tmp_path)},
        )
    assert ended.returncode == 0, ended.stderr
    done = json.loads(ended.stdout.splitlines()[-1])
    assert [reward for reward, _ in done] == [1.0] * 4
    assert {machine for _, machine in done} == {"one", "two"}


def test_a_cluster_none_of_whose_nodes_can_be_used_is_one_line_that_names_them(
    run: ClusterRun, make_task: MakeTask
) -> None:
    source = slow_task(make_task, 1)
    with ray_nodes() as nodes:
        run.start(*arguments(source, nodes, run))
        code, output = run.finish()
        assert (code, output.count("\n")) == (2, 1) and "no node of the cluster has the resource" in output, output
        nodes.add("broken", DOCKER_HOST="unix:///nowhere/docker.sock")
        run.start(*arguments(source, nodes, run))
        code, output = run.finish()
    assert (code, output.count("\n")) == (2, 1) and "broken: is not used: no container engine answers" in output


def test_a_cluster_of_this_machine_alone_is_there_for_the_run_only(
    run: ClusterRun, make_task: MakeTask, tmp_path: Path
) -> None:
    source = slow_task(make_task, 1)
    # Ray leaves a token in the home directory.
    words = ("--agent", "oracle", "--ray", "local", "-o", str(run.directory))
    run.start("run", str(source), *words, HOME=str(tmp_path))
    code, output = run.finish()
    assert (code, len(run.finals)) == (0, 1), output
    eventually(lambda: not tunnels_to("local"), "the end of the process connected to Ray")


def test_ctrl_c_ends_a_run_in_order_and_its_actors_with_it(run: ClusterRun, make_task: MakeTask) -> None:
    source = slow_task(make_task, 60)
    with ray_nodes("one", "two") as nodes:
        run.start(*arguments(source, nodes, run, "-k", "4"))
        eventually(lambda: len(run.containers) >= 4, "containers on both nodes")
        run.signal(signal.SIGINT)
        code, output = run.finish()
        assert code == 130 and not run.containers, output
        eventually(lambda: not actors(), "the end of the actors")


def test_a_run_over_a_cluster_is_looked_at_and_spoken_to_as_any_other(run: ClusterRun, engine: Engine) -> None:
    """A model's trial, held at a step: its terminal is seen, what is set is obeyed, and then it ends with its score."""
    server = subprocess.Popen(
        [TBENCH, "demo-endpoint", "--port", "0", "--latency", "0.3"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = next(word for word in server.stdout.readline().split() if word.startswith("http")).rstrip(":")
        with ray_nodes("one") as nodes:
            words = ("--base-url", url, "--task", "web-log-digest", "--ray", nodes.address)
            run.start("run", *words, "-o", str(run.directory))
            steps = run.directory / "trials" / "web-log-digest" / "seed-0" / "steps.jsonl"
            eventually(lambda: steps.exists() and steps.read_text().count("\n"), "a step")
            trial = f"{run.directory}/web-log-digest/0"
            tbench("pause", trial)
            eventually(lambda: held(run.directory), "that the trial is held")
            assert json.loads(tbench("attach", trial, "--json"))["columns"] == 160
            assert tbench("attach", trial, "--once").strip()
            tbench("continue", trial)
            code, output = run.finish()
    finally:
        server.terminate()
        server.communicate()
    assert code == 0, output
    (result,) = run.finals.values()
    assert (result.machine, result.reward is not None) == ("one", True)


def test_what_was_kept_on_nodes_is_judged_again_where_it_is(
    run: ClusterRun, make_task: MakeTask, engine: Engine
) -> None:
    source = slow_task(make_task, 1)
    kept: list[str] = []
    try:
        with ray_nodes("one", "two") as nodes:
            run.start(*arguments(source, nodes, run, "-k", "4", "--keep", "all"))
            code, output = run.finish()
            kept = run.containers
            assert (code, len(kept)) == (0, 4), output
            assert {result.machine for result in run.finals.values()} == {"one", "two"}
            said = tbench("regrade", str(run.directory))
            assert said.count("1 -> 1") == 4, said
            nodes.kill("two")
            nodes.add("three")
            ended = subprocess.run([TBENCH, "regrade", str(run.directory)], capture_output=True, text=True, timeout=60)
            assert ended.returncode == 2 and "two: no node of the cluster" in ended.stderr, ended.stderr
    finally:
        for container in kept:
            engine.api.remove_container(container, force=True)


def tbench(*words: str) -> str:
    done = subprocess.run([TBENCH, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def held(directory: Path) -> bool:
    (run,) = json.loads(tbench("ps", str(directory), "--json"))["runs"]
    return all(trial["held"] for trial in run["trials"])


def tunnels_to(address: str) -> list[int]:
    """Processes that speak to the cluster for a run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0") if path.exists() else []
        if b"tbench.fleet.ray.tunnel" in words and address.encode() in words:
            found.append(int(path.parent.name))
    return found
