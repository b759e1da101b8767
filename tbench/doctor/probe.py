"""A small container for a moment: what it prints, and nothing of it left."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

from tbench.sandbox.docker.engine import LABEL_OWNER, LABEL_RUN, Engine, EngineError
from tbench.sandbox.docker.owner import owner
from tbench.sandbox.docker.tools import MOUNT, base_images

_REMOVE_SEC = 20.0


@dataclass(frozen=True)
class ProbeOutput:
    """How the container ended, and what it printed."""

    exit_code: int
    text: str


def probe_image() -> str:
    return base_images()[0][0]


async def run_probe(
    engine: Engine, script: str, *, limit_sec: float = 10.0, tools: str | None = None, **host_config: Any
) -> ProbeOutput:
    """Run `script` with the base image's sh. Raises EngineError; removes the container in any case.

    `tools` is the volume to mount where the tools belong. It has the labels of a run, so that even a kill leaves
    nothing for long.
    """
    api = engine.api
    if tools is not None:
        host_config |= {"binds": [f"{tools}:{MOUNT}:ro"], "tmpfs": {f"{MOUNT}/run": "mode=1777,size=16m"}}
    creating = asyncio.ensure_future(
        engine.call(
            api.create_container,
            probe_image(),
            entrypoint=["sh", "-c"],
            command=[script],
            labels={LABEL_RUN: f"doctor-{os.getpid()}", LABEL_OWNER: owner()},
            host_config=api.create_host_config(**({"network_mode": "none"} | host_config)),
        )
    )
    try:
        created = await asyncio.shield(creating)
    except asyncio.CancelledError:
        # The engine goes on creating: wait for its answer, or the container would be nobody's.
        await _remove(engine, (await creating)["Id"])
        raise
    try:
        await engine.call(api.start, created["Id"], deadline_sec=limit_sec)
        ended = await engine.call(api.wait, created["Id"], deadline_sec=limit_sec)
        text: bytes = await engine.call(api.logs, created["Id"], deadline_sec=5.0)
        return ProbeOutput(ended["StatusCode"], text.decode("utf-8", "replace").strip())
    finally:
        await asyncio.shield(_remove(engine, created["Id"]))


async def _remove(engine: Engine, container: str) -> None:
    try:
        await engine.call(engine.api.remove_container, container, force=True, v=True, deadline_sec=_REMOVE_SEC)
    except EngineError as error:
        if error.status not in (404, 409):
            raise
