"""Runs a script in a small container that is removed at once, and gives back what it prints."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

from tbench.sandbox.backend import TOOLS
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.labels import LABEL_OWNER, LABEL_RUN
from tbench.sandbox.docker.owner import owner
from tbench.sandbox.docker.tools import base_images

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
    """Run `script` with the base image's sh, and remove the container in any case. Raises EngineError.

    `tools` is the volume to mount where the tools belong. The container has the labels of a run, by which it is found
    and removed even where this process was killed.
    """
    api = engine.api
    if tools is not None:
        host_config |= {"binds": [f"{tools}:{TOOLS}:ro"], "tmpfs": {f"{TOOLS}/run": "mode=1777,size=16m"}}
    creation = asyncio.ensure_future(
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
        created = await asyncio.shield(creation)
    except asyncio.CancelledError:
        # The engine goes on creating: wait for its answer, or the container would be nobody's.
        await _remove(engine, (await creation)["Id"])
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
