"""The volumes of one trial's services, and the task's files that they find at a path.

Files are copied, never bound: a trial cannot change its task, and an engine elsewhere has them, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from tbench.compose.project import Project, Service
from tbench.sandbox.docker.compose.preparing import put
from tbench.sandbox.docker.create import container_errors, create
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.nothing import ensure_nothing
from tbench.sandbox.docker.removing import force_remove


def volumes_wanted(project: Project, folder: Path) -> dict[str, str]:
    """New names on the engine for the volumes of a project and for folders of the task, by kind and source.

    A single file needs none: it is put into each container.
    """
    wanted = {f"volume:{name}": volume.external or "" for name, volume in project.volumes.items()}
    copies = (mount for service in project.services.values() for mount in service.mounts if mount.kind == "copy")
    wanted |= {f"copy:{mount.source}": "" for mount in copies if (folder / mount.source).is_dir()}
    return {key: name or f"tbench-{uuid.uuid4().hex[:16]}" for key, name in wanted.items()}


async def create_volume(engine: Engine, name: str, labels: Mapping[str, str]) -> None:
    """Make a volume. Raises TrialError."""
    with container_errors("making a volume for"):
        await engine.call(engine.api.create_volume, name, labels=dict(labels), again=True)


async def fill(engine: Engine, volume: str, folder: Path | None, labels: Mapping[str, str]) -> None:
    """Copy a folder of the task into a volume; without one, let every user write in it. Raises TrialError."""
    with container_errors("filling a volume for"):
        nothing = await ensure_nothing(engine)
    # It is never started: the engine mounts its volumes for the copying.
    holder = {
        "image": nothing,
        "command": ["none"],
        "labels": dict(labels),
        "host_config": engine.api.create_host_config(binds=[f"{volume}:/volume"], network_mode="none"),
    }
    container = await create(engine, holder)
    try:
        await put(engine, container, "/volume", folder)
    finally:
        await force_remove(engine, container)


def single_files(service: Service, volumes: Mapping[str, str], folder: Path) -> tuple[tuple[str, Path], ...]:
    """Paths in a container, and the single files of the task that are put there."""
    copies = (mount for mount in service.mounts if mount.kind == "copy" and f"copy:{mount.source}" not in volumes)
    return tuple((mount.target, folder / mount.source) for mount in copies)
