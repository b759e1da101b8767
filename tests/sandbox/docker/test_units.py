"""Cpus by number, GPUs and limited disks: what the engine is asked for, and what containers have of it."""

from __future__ import annotations

import dataclasses
import os
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from run_plans import sandboxes_of

from tbench.errors import TrialError
from tbench.sandbox.backend import Sandbox, SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.container import Container, ContainerLimits, Recipe
from tbench.sandbox.docker.create import (
    HelperFailed,
    container_error,
    container_errors,
    create_arguments,
    engine_errors,
    lacks_quota,
    with_origin,
)
from tbench.sandbox.docker.engine import Engine, EngineError, EngineUnreachable, _has_gpus, _may_limit_disk
from tbench.sandbox.image import Image
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

pytestmark = pytest.mark.engine
IMAGE = Image("sha256:0", "x", "", "/", has_locale=True)
PLAIN = Recipe(IMAGE, ContainerLimits(1, 64, 8), "tools", run="r", trial="t", has_internet=False, environment={})
TOML = "[environment]\nmemory_mb = 256\ncpus = {cpus}\nallow_internet = false\n{more}"


def asked(engine: Engine, **options: Any) -> Any:
    return create_arguments(engine, dataclasses.replace(PLAIN, **options))["host_config"]


def test_a_plain_task_asks_for_none_of_it(engine: Engine) -> None:
    plain = asked(engine)
    assert not {"DeviceRequests", "StorageOpt", "CpusetCpus", "LogConfig"} & {key for key in plain if plain[key]}


def test_gpus_are_asked_for_by_count_or_by_number(engine: Engine) -> None:
    (request,) = asked(engine, gpus=2)["DeviceRequests"]
    assert (request["Driver"], request["Count"], request["Capabilities"]) == ("nvidia", 2, [["gpu"]])
    (request,) = asked(engine, gpus=2, gpu_ids=(0, 3))["DeviceRequests"]
    assert (request["DeviceIDs"], request["Count"]) == (["0", "3"], 0)


def test_a_disk_is_limited_in_megabytes_and_cpus_are_named(engine: Engine) -> None:
    limited = asked(engine, storage_mb=512.0, cpuset=(1, 3))
    assert (limited["StorageOpt"], limited["CpusetCpus"]) == ({"size": "512m"}, "1,3")


@pytest.mark.parametrize(
    ("info", "can"),
    [
        ({"Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]]}, False),
        ({"Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "xfs"], ["Supports d_type", "true"]]}, True),
        ({"Driver": "btrfs", "DriverStatus": None}, True),
        ({}, False),
    ],
)
def test_whether_a_disk_may_be_limited_is_reported_by_the_driver(info: dict[str, Any], can: bool) -> None:
    assert _may_limit_disk(info) == can


def test_gpus_need_nvidias_runtime_or_its_devices() -> None:
    assert _has_gpus({"Runtimes": {"runc": {}, "nvidia": {}}})
    assert _has_gpus({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]})
    assert not _has_gpus({"Runtimes": {"runc": {}}})


@pytest.mark.parametrize(
    "block", [engine_errors, container_errors, partial(with_origin, "start", True, kind="sandbox_failed")]
)
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EngineError("the engine did not answer start within 120 s"), "engine_unreachable"),
        (EngineUnreachable("nobody answers", sent=True), "engine_unreachable"),
        (EngineError("no such network", 404), "sandbox_failed"),
        (EngineError("boom", 500), "sandbox_failed"),
        (HelperFailed("a helper ended with 1: "), "sandbox_failed"),
    ],
)
def test_an_engine_that_answers_differs_from_one_that_does_not(block: Any, error: EngineError, kind: str) -> None:
    lost = "sandbox_lost" if error.status == 404 and isinstance(block, partial) else kind
    with pytest.raises(TrialError) as caught, block(doing="starting"):
        raise error
    assert caught.value.type == lost and str(error) in str(caught.value)


def test_what_the_machine_lacks_is_distinguished_from_an_engine_in_trouble() -> None:
    lacking = EngineError('could not select device driver "nvidia" with capabilities: [[gpu]]', 500)
    assert container_error(lacking, "starting").type == "task_unsupported"
    quota = "--storage-opt is supported only for overlay over xfs with 'pquota' mount option"
    assert lacks_quota(container_error(EngineError(quota, 500), "creating"))
    assert not lacks_quota(container_error(EngineError("no such image", 404), "creating"))


async def test_an_engine_that_cannot_limit_a_disk_is_asked_once_and_trials_go_on(
    engine: Engine, tools_volume: str, make_task: Any
) -> None:
    said: list[str] = []
    hopeful = Engine(engine.api, engine.executor, dataclasses.replace(engine.info, may_limit_disk=True), outage_sec=5)
    async with open_backend(DockerBackend(hopeful, SandboxSettings("tests")), said.append) as backend:
        task = Task.read(make_task(toml=TOML.format(cpus=1, more="storage_mb = 64\n")))
        for _ in range(2):
            await (await backend.sandbox(agent_environment(task), "t")).remove()
    if not engine.info.may_limit_disk:
        assert len([line for line in said if line.startswith("storage_mb is only watched: ")]) == 1


async def test_a_trial_has_cpus_of_its_own_which_nproc_tells(engine: Engine, tools_volume: str, make_task: Any) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2 or not engine.shares_kernel:
        pytest.skip("takes two cpus")
    settings = sandboxes_of(f"test-{uuid.uuid4().hex[:12]}", pin_cpus=True)
    async with open_backend(DockerBackend(engine, settings)) as backend:
        one, all_of_them = (
            Task.read(make_task(name, toml=TOML.format(cpus=count, more="")))
            for name, count in (("one", 1), ("all", 4 * len(cpus)))
        )

        async def started(task: Task) -> Container:
            return await backend.sandbox(agent_environment(task), "t")

        first, second = await started(one), await started(one)
        try:
            assert await nproc(first) == await nproc(second) == 1
            assert first.lease.cpus != second.lease.cpus
            held = first.lease.cpus
            await first.remove()
            first = await started(one)
            assert first.lease.cpus == held
            copy = await first.make_fresh()
            assert await nproc(copy) == 1
            await copy.remove()
            large = await started(all_of_them)
            assert await nproc(large) == len(large.lease.cpus) >= 2
            await large.remove()
        finally:
            await first.remove()
            await second.remove()


async def nproc(sandbox: Sandbox) -> int:
    return int((await sandbox.shell("nproc", timeout_sec=20)).output)


async def test_a_gpu_that_is_not_there_is_an_error_of_the_task(
    engine: Engine, tools_volume: str, make_task: Any
) -> None:
    if engine.info.has_gpus:
        pytest.skip("this machine has GPUs")
    path: Path = make_task(toml=TOML.format(cpus=1, more="gpus = 1\n"))
    async with open_backend(DockerBackend(engine, SandboxSettings("tests"))) as backend:
        with pytest.raises(TrialError, match="could not select device driver") as caught:
            await backend.sandbox(agent_environment(Task.read(path)), "t")
    assert (caught.value.type, caught.value.kind.retryable) == ("task_unsupported", False)
