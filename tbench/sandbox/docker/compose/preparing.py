"""What is done to a service's container between its creation and its start: further networks, and files."""

from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from tbench.errors import TrialError
from tbench.sandbox.docker.compose.options import ServiceOptions
from tbench.sandbox.docker.create import engine_errors
from tbench.sandbox.docker.engine import Engine

_COPY_SEC = 600.0
_IN_MEMORY = 16 << 20


async def prepare(engine: Engine, container: str, options: ServiceOptions) -> None:
    """Put a created container on its further networks, and its files into it. Raises EngineError, TrialError."""
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
        await put(engine, container, target, source)


async def put(engine: Engine, container: str, target: str, source: Path | None) -> None:
    """Put a file or a folder of the task at a path of a container; None is a folder for all. Raises TrialError."""
    with engine_errors(f"copying {source} into a container"), tempfile.SpooledTemporaryFile(_IN_MEMORY) as packed:
        try:
            await asyncio.to_thread(_pack, packed, target, source)
            packed.seek(0)
            # Not again by itself: what has been read of it is gone.
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
