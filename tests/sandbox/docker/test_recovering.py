"""A backend that gets ready again after its engine was down: what was on it goes, and images are looked for again."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tbench.errors import TrialError
from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.create import ensure_scratch_image
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_OWNER, LABEL_RUN
from tbench.tasks.environment import agent_environment

pytestmark = pytest.mark.engine


async def containers(engine: Engine, run: str) -> set[str]:
    found = await engine.call(engine.api.containers, all=True, filters={"label": f"{LABEL_RUN}={run}"})
    return {container["Id"] for container in found}


async def test_its_own_containers_go_but_those_that_were_kept_and_an_image_that_is_gone_is_had_again(
    engine: Engine, tools_volume: str, run_name: str, fresh: Any
) -> None:
    environment, other_run = agent_environment(fresh()), f"{run_name}-{uuid.uuid4().hex[:4]}"
    async with (
        open_backend(DockerBackend(engine, SandboxSettings(run_name))) as backend,
        open_backend(DockerBackend(engine, SandboxSettings(other_run))) as other,
    ):
        left, kept = [await backend.sandbox(environment, f"t.s{seed}") for seed in range(2)]
        others = await other.sandbox(environment, "t.s0")
        kept_id = await kept.keep()
        try:
            assert await backend.recover() == 1
            with pytest.raises(TrialError) as lost:
                await left.shell("true", timeout_sec=30)
            assert lost.value.type == "sandbox_lost"
            assert await containers(engine, run_name) == {kept_id}
            assert (await others.shell("true", timeout_sec=30)).exit_code == 0
        finally:
            for made in (left, kept, others):
                await made.remove()
        await engine.call(engine.api.remove_image, backend.image_ids[environment.name], force=True)
        assert await backend.recover() == 0
        again = await backend.sandbox(environment, "t.s0")
        assert (await again.shell("true", timeout_sec=30)).exit_code == 0
        await again.remove()
        assert backend.image_origins[environment.name].how == "built"


async def test_a_kept_container_with_the_tools_of_another_version_is_refused_in_one_line(
    engine: Engine, tools_volume: str, run_name: str, fresh: Any
) -> None:
    labels = {LABEL_RUN: run_name, LABEL_OWNER: engine.owner}
    other = engine.api.create_container(await ensure_scratch_image(engine), "none", labels=labels)["Id"]
    try:
        async with open_backend(DockerBackend(engine, SandboxSettings(run_name))) as backend:
            with pytest.raises(
                TrialError, match=f"{other[:12]} was made by another version of tbench; use that version"
            ):
                await backend.reopen(agent_environment(fresh()), "t.s0", other)
    finally:
        engine.api.remove_container(other, force=True)
