"""The task that both runners get, on an image that holds all that either of them would install."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.small_task import make_task

from tbench.sandbox.build_context import build_tag
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

DOCKERFILE = """FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends tmux asciinema procps && rm -rf /var/lib/apt/lists/*
WORKDIR /app
"""


async def prepare_task(engine: Engine, directory: Path) -> Path:
    """Write the task and build its image once: it is named as a published one, so neither runner builds anything.

    Raises TrialError where the image cannot be built.
    """
    task = make_task(directory / "beside-harbor", memory_mb=256)
    (task.path / "environment/Dockerfile").write_text(DOCKERFILE)
    task = Task.read(task.path)
    await Images(engine, say=print).get(agent_environment(task))
    toml = task.path / "task.toml"
    name = f'schema_version = "1.4"\n[task]\nname = "bench/{task.name}"\n'
    image = f'[environment]\ndocker_image = "{build_tag(agent_environment(task))}"\n'
    toml.write_text(name + toml.read_text().replace("[environment]\n", image))
    return task.path


def fresh(directory: Path) -> Path:
    """An empty directory in the place of whatever was there."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory
