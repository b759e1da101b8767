"""Trials without an engine beside the same trials on Docker, and beside bare lives of containers of runc."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import statistics
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from figures import Figures
from lives import AT_ONCE, CYCLES, LIVES
from small_task import Place

from tbench.agents.trial_agent import OracleAgent
from tbench.config.settings import SandboxConfig
from tbench.sandbox.backend import TOOLS, Backend, SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.oci.accounts import User
from tbench.sandbox.oci.backend import OciBackend
from tbench.sandbox.oci.images import Images
from tbench.sandbox.oci.spec import container_spec, process_spec
from tbench.sandbox.oci.store import Store
from tbench.sandbox.recipe import ContainerLimits, SandboxRecipe
from tbench.tasks.environment import agent_environment

ROUNDS = 3
_START = """mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/merged" &&
exec runc --root "$3" run --detach --bundle "$2" "${2##*/}"
"""


@dataclasses.dataclass(frozen=True)
class Floor:
    """Bare containers of runc, with the limits, mounts and system calls of a trial, and no network."""

    store: Store
    recipe: SandboxRecipe
    layer: Path

    @classmethod
    async def prepare(cls, place: Place, store: Store) -> Floor:
        """Get the images, as a first run does."""
        settings = SandboxSettings("bench")
        async with open_backend(OciBackend(store, settings), print) as backend:
            await backend.prepare(agent_environment(place.task))
        images = Images(store, settings)
        image, tools = await images.get(agent_environment(place.task)), await images.tools()
        recipe = SandboxRecipe(
            image=image, limits=ContainerLimits(1, 512, 4096), tools_volume=f"{images.layers(tools.id)[0]}{TOOLS}",
            run="bench", trial="", has_internet=False, environment={},
        )  # fmt: skip
        return cls(store, recipe, images.layers(image.id)[0])

    def cycle(self) -> float:
        """Mount, start, two execs, removal: seconds."""
        started = time.perf_counter()
        directory = self.store.containers / f"bench-{uuid.uuid4().hex[:12]}"
        for folder in ("upper", "work", "merged"):
            (directory / folder).mkdir(parents=True)
        for name in ("hosts", "hostname", "resolv.conf"):
            (directory / name).touch()
        process = process_spec(self.recipe, [f"{TOOLS}/bin/init"], User(0, 0), "/", {})
        spec = container_spec(self.store, self.recipe, directory, process, limits=True, network="")
        (directory / "config.json").write_text(json.dumps(spec))
        runtime = str(self.store.root / "runtime")
        start = ["unshare", "--mount", "sh", "-c", _START, "sh", str(self.layer), str(directory), runtime]
        try:
            _call(start)
            for _ in range(2):
                _call(["runc", "--root", runtime, "exec", directory.name, "true"])
        finally:
            delete = ["runc", "--root", runtime, "delete", "--force", directory.name]
            try:
                _call(delete)
            except subprocess.CalledProcessError:  # a busy machine's cgroup is not empty at once
                _call(delete)
            shutil.rmtree(directory)
        return time.perf_counter() - started

    def lives_per_sec(self) -> float:
        started = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(self.cycle) for _ in range(LIVES)]:
                done.result()
        return LIVES / (time.perf_counter() - started)


def _call(argv: list[str]) -> None:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(argv, check=True, **quiet)


async def beside_docker(place: Place, figures: Figures, scratch: Path) -> None:
    """Oracle trials on both in turn, one at a time and eight at once, between bare lives."""
    store = Store.at("oci:")
    floor = await Floor.prepare(place, store)

    def without_engine(settings: SandboxSettings) -> Backend:
        return OciBackend(store, settings)

    async def trial_sec(there: Place) -> float:
        _, outcome = await there.run_trials(OracleAgent, 2, 1, "oracle")
        assert all(result.reward == 1.0 for result in outcome.results), outcome.results
        return max(outcome.results, key=lambda result: result.started_at).timings.wall_sec

    async def trials_per_sec(there: Place) -> float:
        elapsed, outcome = await there.run_trials(OracleAgent, LIVES, AT_ONCE, "oracle")
        assert all(result.reward == 1.0 for result in outcome.results), outcome.results
        return LIVES / elapsed

    oci = dataclasses.replace(place, make_backend=without_engine)
    alone = SandboxSettings("bench", SandboxConfig(network="none"))
    single = [(floor.cycle(), await trial_sec(oci), await trial_sec(place)) for _ in range(CYCLES)]
    lives, trials = [], []
    for _ in range(ROUNDS):
        bare = floor.lives_per_sec()
        mine = await lives_per_sec(OciBackend(store, alone), place)
        lives.append((bare, mine, await lives_per_sec(DockerBackend(place.engine, alone), place)))
        trials.append((await trials_per_sec(oci), await trials_per_sec(place)))
    bare_sec, oci_sec, docker_sec = map(statistics.median, zip(*single, strict=True))
    figures.add("oci_trial_sec", oci_sec, "s", bare_sec)
    figures.add("docker_trial_sec", docker_sec, "s", bare_sec)
    over = statistics.median(mine / docker for _, mine, docker in single)
    figures.add("oci_trial_over_docker", over, "ratio", 0.5)
    bare_rate, oci_rate, docker_rate = map(statistics.median, zip(*lives, strict=True))
    figures.add("oci_lives_per_sec_n8", oci_rate, "1/s", bare_rate)
    figures.add("docker_lives_per_sec_n8", docker_rate, "1/s", bare_rate)
    figures.add("oci_lives_over_docker_n8", statistics.median(mine / docker for _, mine, docker in lives), "ratio", 2.5)
    figures.add("oci_lives_over_bare_n8", statistics.median(mine / bare for bare, mine, _ in lives), "ratio", 0.75)
    oci_trials, docker_trials = map(statistics.median, zip(*trials, strict=True))
    figures.add("oci_trials_per_sec_n8", oci_trials, "1/s", docker_trials)


async def lives_per_sec(backend: Backend, place: Place) -> float:
    """Lives of containers per second through a backend, eight at once: start, two commands, removal; no network."""
    environment, turns = agent_environment(place.task), asyncio.Semaphore(AT_ONCE)

    async def live() -> None:
        async with turns:
            box = await backend.sandbox(environment, "bench")
            for _ in range(2):
                await box.shell("true", timeout_sec=120)
            await box.remove()

    async with open_backend(backend):
        await backend.prepare(environment)
        started = time.perf_counter()
        await asyncio.gather(*(live() for _ in range(LIVES)))
        return LIVES / (time.perf_counter() - started)
