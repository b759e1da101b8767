"""A process of its own that removes the containers of one that would not wait."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

from tbench.sandbox.docker.cleaning import is_kept
from tbench.sandbox.docker.engine import LABEL_OWNER, Engine, EngineError
from tbench.sandbox.docker.owner import owner

_LOOKS, _BETWEEN_LOOKS_SEC = 10, 0.5
"""The engine may still be creating containers for a process that is gone."""


def leave_removing_to_a_child() -> None:
    """Start it for the containers of this process, which may end at once."""
    subprocess.Popen(
        [sys.executable, "-m", "tbench.sandbox.docker.last_resort", owner()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


async def remove_containers_of(of: str, engine: Engine) -> None:
    """All containers with this owner label, looked for several times. Raises EngineError when it cannot be asked."""
    for _ in range(_LOOKS):
        found = await engine.call(engine.api.containers, all=True, filters={"label": f"{LABEL_OWNER}={of}"})
        await asyncio.gather(*(_remove(engine, each["Id"]) for each in found if not is_kept(each)))
        await asyncio.sleep(_BETWEEN_LOOKS_SEC)


async def _remove(engine: Engine, container_id: str) -> None:
    with contextlib.suppress(EngineError):  # it may be going already; else the next look finds it again
        await engine.call(engine.api.remove_container, container_id, force=True, v=True)


if __name__ == "__main__":
    asyncio.run(remove_containers_of(sys.argv[1], Engine.connect()))
