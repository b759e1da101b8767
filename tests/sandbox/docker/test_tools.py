"""The tools volume: what is said where it cannot be built, and that one that is not whole is filled again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tbench.errors import UsageError
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.tools import ensure_tools, repair_tools
from tbench.sandbox.own_images import tools_volume_name
from tbench.sandbox.owner import LABEL_SHARED

pytestmark = pytest.mark.engine
BASE = "FROM debian:bookworm-slim\n"


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("RUN echo the compiler says no >&2; exit 3\n", "returned a non-zero code: 3; last lines: .*compiler says no"),
        # It builds, and its tmux does not start.
        ("RUN mkdir -p /opt/tbench/bin && ln -s /bin/false /opt/tbench/bin/tmux\n", "tmux in the volume ended with 1"),
    ],
)
async def test_a_recipe_that_fails_shows_the_last_words_and_leaves_no_volume(
    engine: Engine, tmp_path: Path, recipe: str, said: str
) -> None:
    (tmp_path / "Dockerfile").write_text(BASE + recipe)
    name = tools_volume_name(tmp_path)
    try:
        with pytest.raises(UsageError, match=f"building the tools volume from {tmp_path} failed: .*{said}"):
            await ensure_tools(engine, print, tmp_path)
        assert volumes(engine, name) == []
    finally:
        remove_image(engine, name)


@pytest.fixture
def own(engine: Engine, tools_volume: str, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The name of a volume of the test's own with the real tools, and their recipe."""
    (tmp_path / "Dockerfile").write_text(f"FROM tbench/tools:{tools_volume.rpartition('-')[2]}\n# {uuid.uuid4()}\n")
    name = tools_volume_name(tmp_path)
    engine.api.tag(f"tbench/tools:{tools_volume.rpartition('-')[2]}", "tbench/tools", name.rpartition("-")[2])
    yield name, tmp_path
    for volume in volumes(engine, name):
        engine.api.remove_volume(volume)
    remove_image(engine, name)


DAMAGE = {
    "empty": "rm -r /v/*",
    "filled by something else": "rm -r /v/*; mkdir /v/bin; cp /bin/ls /v/bin/tmux; touch /v/share",
    "cut off": "truncate -s 5000 /v/bin/busybox",
    "one byte is another": "printf x | dd of=/v/bin/tmux bs=1 seek=200000 conv=notrunc",
    "not executable": "chmod 644 /v/bin/init",
    "a directory in place of a file": "rm /v/bin/limit; mkdir -p /v/bin/limit/x",
}


@pytest.mark.parametrize(
    "damages",
    [
        pytest.param(["empty", "cut off", "a directory in place of a file"], id="some"),
        pytest.param([*DAMAGE], id="all", marks=pytest.mark.slow),
    ],
)
async def test_a_volume_that_is_not_whole_is_filled_again_under_whoever_uses_it(
    engine: Engine, own: tuple[str, Path], damages: list[str]
) -> None:
    name, recipe = own
    assert await ensure_tools(engine, print, recipe) == name
    binds = [f"{name}:/opt/tbench:ro", f"{name}:/v"]  # by the second, this container does the damage as well
    host_config = engine.api.create_host_config(binds=binds, network_mode="none")
    user = engine.api.create_container("debian:bookworm-slim", ["sleep", "600"], host_config=host_config)["Id"]

    def ends_well(*command: str) -> bool:
        running = engine.api.exec_create(user, list(command))["Id"]
        engine.api.exec_start(running)
        return bool(engine.api.exec_inspect(running)["ExitCode"] == 0)

    try:
        engine.api.start(user)
        for damage in damages:
            assert ends_well("sh", "-c", DAMAGE[damage]), damage
            # Two runs that begin at the same time, and a third one later.
            first, second = await asyncio.gather(*(repair_tools(engine, print, recipe) for _ in range(2)))
            assert first.was_filled or second.was_filled, damage
            assert not (await repair_tools(engine, print, recipe)).was_filled, damage
            assert ends_well("/opt/tbench/bin/busybox", "ls", "/opt/tbench/bin/limit"), damage
    finally:
        engine.api.remove_container(user, force=True)


async def test_a_whole_volume_needs_no_image_and_a_damaged_one_has_it_built(
    engine: Engine, own: tuple[str, Path]
) -> None:
    name, recipe = own
    await ensure_tools(engine, print, recipe)
    remove_image(engine, name)
    said: list[str] = []
    tools = await repair_tools(engine, said.append, recipe)
    assert (tools.was_filled, said, "memory" in tools.limits) == (False, [], True)
    in_volume(engine, name, DAMAGE["one byte is another"])
    assert (await repair_tools(engine, said.append, recipe)).was_filled
    assert said


def in_volume(engine: Engine, name: str, script: str) -> None:
    """Run a script that finds the volume at /v."""
    host_config = engine.api.create_host_config(binds=[f"{name}:/v"], network_mode="none")
    made = engine.api.create_container("debian:bookworm-slim", ["sh", "-c", script], host_config=host_config)["Id"]
    try:
        engine.api.start(made)
        assert engine.api.wait(made)["StatusCode"] == 0
    finally:
        engine.api.remove_container(made, force=True)


def volumes(engine: Engine, name: str) -> list[str]:
    found = engine.api.volumes(filters={"label": LABEL_SHARED})["Volumes"] or []
    return [volume["Name"] for volume in found if volume["Name"].startswith(name)]


def remove_image(engine: Engine, name: str) -> None:
    tag = f"tbench/tools:{name.rpartition('-')[2]}"
    if engine.api.images(tag):
        engine.api.remove_image(tag)
