"""Prepares a service's container between creation and start: volumes, files, additional networks."""

from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tbench.compose.project import Project, Service
from tbench.errors import TrialError
from tbench.sandbox.docker.compose.options import ServiceOptions
from tbench.sandbox.docker.create import container_errors, copying_container, engine_errors
from tbench.sandbox.docker.engine import Engine

_COPY_SEC = 600.0
_IN_MEMORY = 16 << 20


async def prepare(engine: Engine, container: str, options: ServiceOptions) -> None:
    """Connect a created container to its additional networks and copy its files. Raises EngineError, TrialError."""
    if options.network_mode is None:
        for endpoint in options.endpoints[1:]:
            await engine.call(
                engine.api.connect_container_to_network,
                container,
                endpoint.network,
                aliases=list(endpoint.aliases),
                ipv4_address=endpoint.address,
            )
    for target, source in options.files:
        await copy_to_container(engine, container, target, source)


async def copy_to_container(engine: Engine, container: str, target: str, source: Path | None) -> None:
    """Copy a file or folder of the task into a container; None makes a world-writable folder. Raises TrialError."""
    with engine_errors(f"copying {source} into a container"), tempfile.SpooledTemporaryFile(_IN_MEMORY) as packed:
        try:
            await asyncio.to_thread(_pack, packed, target, source)
            packed.seek(0)
            # Not repeatable, since part of the stream may have been read.
            await engine.call(engine.api.put_archive, container, "/", packed, deadline_sec=_COPY_SEC, again=False)
        except OSError as error:
            raise TrialError("sandbox_failed", f"{source} cannot be read: {error.strerror or error}") from error


def _pack(stream: IO[bytes], target: str, source: Path | None) -> None:
    with tarfile.open(fileobj=stream, mode="w") as archive:
        if source is None:
            member = tarfile.TarInfo(target.lstrip("/"))
            member.type, member.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(member, io.BytesIO())
            return
        archive.add(source.resolve(), target.lstrip("/"), filter=_as_root)


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


# Files of the task are copied, never bound: a trial cannot change its task, and the engine may be on another machine.


def choose_volumes(project: Project, folder: Path) -> dict[str, str]:
    """Choose names for the volumes of a project and for copied folders of the task, by kind and source.

    Single files need no volume, since they are copied into each container.
    """
    wanted = {f"volume:{name}": volume.external or "" for name, volume in project.volumes.items()}
    copies = (mount for service in project.services.values() for mount in service.mounts if mount.kind == "copy")
    wanted |= {f"copy:{mount.source}": "" for mount in copies if not (folder / mount.source).is_file()}
    return {key: name or f"tbench-{uuid.uuid4().hex[:16]}" for key, name in wanted.items()}


async def create_volume(engine: Engine, name: str, labels: Mapping[str, str]) -> None:
    """Make a volume. Raises TrialError."""
    with container_errors("making a volume for"):
        await engine.call(engine.api.create_volume, name, labels=dict(labels), again=True)


async def fill_volume(engine: Engine, volume: str, folder: Path | None, labels: Mapping[str, str]) -> None:
    """Copy a folder of the task into a volume; None makes it world-writable. Raises TrialError."""
    with container_errors("filling a volume for"):
        async with copying_container(engine, labels, binds=[f"{volume}:/volume"]) as container:
            await copy_to_container(engine, container, "/volume", folder)


def single_files(service: Service, volumes: Mapping[str, str], folder: Path) -> tuple[tuple[str, Path], ...]:
    """Return pairs of a path in the container and the task's single file to copy there."""
    copies = (mount for mount in service.mounts if mount.kind == "copy" and f"copy:{mount.source}" not in volumes)
    return tuple((mount.target, folder / mount.source) for mount in copies)
