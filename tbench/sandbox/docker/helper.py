"""A short-lived container of our own beside a trial's: does in its namespaces what nothing inside it may do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from tbench.sandbox.backend import BUSYBOX, TOOLS
from tbench.sandbox.docker.engine import Engine, EngineError

_WAIT_SEC = 60.0


async def run_helper(
    engine: Engine,
    image_id: str,
    tools_volume: str,
    script: str,
    *,
    labels: Mapping[str, str],
    **host_config: Any,
) -> str:
    """Run `script` with the tools volume's shell as root in a container with `host_config`; what it printed.

    Nothing of the image is run; it is only what a container must have. Raises EngineError, also where the script fails.
    """
    arguments: dict[str, Any] = {
        "image": image_id,
        "entrypoint": [BUSYBOX, "sh", "-c", script],
        "command": [],
        "user": "0",
        "labels": dict(labels),
        "host_config": engine.api.create_host_config(binds=[f"{tools_volume}:{TOOLS}:ro"], **host_config),
    }

    def once() -> str:
        api = engine.api
        created = api.create_container(**arguments)["Id"]
        try:
            api.start(created)
            code = api.wait(created, timeout=int(_WAIT_SEC))["StatusCode"]
            said: str = api.logs(created).decode("utf-8", "replace").strip()
        finally:
            with contextlib.suppress(Exception):
                api.remove_container(created, force=True, v=True)
        if code != 0:
            raise EngineError(f"a helper ended with {code}: {said[-200:]}")
        return said

    # Shielded: its thread cannot be stopped, and what it works on must not be removed under it.
    return await asyncio.shield(asyncio.ensure_future(engine.call(once, deadline_sec=2 * _WAIT_SEC)))
