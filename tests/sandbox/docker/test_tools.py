"""The tools volume: what is said where it cannot be built, and that nothing half-made stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbench.errors import UsageError
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.labels import LABEL_SHARED
from tbench.sandbox.docker.tools import ensure_tools, tools_volume_name

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


async def test_a_volume_that_was_never_filled_is_filled(engine: Engine, tmp_path: Path) -> None:
    """A process killed in between leaves it empty."""
    (tmp_path / "Dockerfile").write_text(f"{BASE}RUN mkdir -p /opt/tbench/bin && cp /bin/true /opt/tbench/bin/tmux\n")
    name = tools_volume_name(tmp_path)
    engine.api.create_volume(name, labels={LABEL_SHARED: "tools"})
    try:
        assert await ensure_tools(engine, print, tmp_path) == name
        host_config = engine.api.create_host_config(binds=[f"{name}:/v:ro"], network_mode="none")
        looking = engine.api.create_container("debian:bookworm-slim", ["/v/bin/tmux"], host_config=host_config)["Id"]
        try:
            engine.api.start(looking)
            assert engine.api.wait(looking)["StatusCode"] == 0
        finally:
            engine.api.remove_container(looking, force=True)
        said: list[str] = []
        assert (await ensure_tools(engine, said.append, tmp_path), said) == (name, [])
    finally:
        for volume in volumes(engine, name):
            engine.api.remove_volume(volume)
        remove_image(engine, name)


def volumes(engine: Engine, name: str) -> list[str]:
    found = engine.api.volumes(filters={"label": LABEL_SHARED})["Volumes"] or []
    return [volume["Name"] for volume in found if volume["Name"].startswith(name)]


def remove_image(engine: Engine, name: str) -> None:
    tag = f"tbench/tools:{name.rpartition('-')[2]}"
    if engine.api.images(tag):
        engine.api.remove_image(tag)
