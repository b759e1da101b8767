"""What the trials of a run need of an engine: made ready, and let go of at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tbench.runs.admission import Admission
from tbench.runs.host import HostWatch
from tbench.runs.plan import RunConfig
from tbench.runs.trial import SandboxMaker
from tbench.sandbox.docker.backend import EngineSandboxes
from tbench.sandbox.docker.cleaning import reap
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images
from tbench.sandbox.docker.memory_watch import MemoryWatch
from tbench.sandbox.docker.tools import ensure_tools


@dataclass(frozen=True)
class Place:
    """Where trials run."""

    make_sandbox: SandboxMaker
    admission: Admission
    host: HostWatch | None = None
    """None where the machine's load cannot be seen."""
    image_ids: Mapping[str, str] = field(default_factory=dict)
    """Of the tasks whose images were used, as they come to be."""


@contextlib.asynccontextmanager
async def place_on(
    engine: Engine, config: RunConfig, image_logs: Path | None, say: Callable[[str], None]
) -> AsyncIterator[Place]:
    """Tools, network and sandboxes for one run; what dead runs left is removed first. Raises UsageError."""
    memory_watch = MemoryWatch(engine, config.run)
    try:
        tools_volume, _, reaped = await asyncio.gather(ensure_tools(engine, say), engine.ensure_network(), reap(engine))
        for line in reaped:
            say(line)
        sandboxes = EngineSandboxes(
            engine,
            Images(engine, build=config.build, log_dir=image_logs, say=say),
            tools_volume,
            config.run,
            network=config.network,
            block_host=config.block_host,
            no_new_privileges=config.no_new_privileges,
            base_url=config.base_url,
            memory_watch=memory_watch,
        )
        admission = Admission(
            engine.info.cpus * config.cpu_overcommit, engine.info.memory_mb, max_load=config.max_load, say=say
        )
        yield Place(sandboxes, admission, HostWatch() if engine.shares_kernel else None, sandboxes.image_ids)
    finally:
        memory_watch.close()
