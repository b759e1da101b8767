"""Startup of an image's container on a real engine: entry points and the image's own healthcheck."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from run_plans import sandboxes_of

from tbench.errors import TrialError
from tbench.sandbox.backend import Sandbox, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN, NETWORK
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

pytestmark = pytest.mark.engine
TOML = "[environment]\nmemory_mb = 256\nallow_internet = {internet}\nenv = {{ COLOUR = 'teal' }}\n"
TELLS = """#!/bin/sh
echo hello from the start
echo "$(id -un) $(pwd) $COLOUR $*" >/tmp/told
(sleep 1; touch /tmp/ready) &
exec "$@"
"""
SERVES = """FROM debian:bookworm-slim
RUN useradd -m worker
WORKDIR /work
COPY start.sh /usr/local/bin/start.sh
USER worker
HEALTHCHECK --interval=30s CMD test -e /tmp/ready
ENTRYPOINT ["start.sh"]
CMD ["never"]
"""

Start = Callable[..., Coroutine[Any, Any, Container]]
RUN = f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def start(engine: Engine, tools_volume: str, make_task: Any) -> AsyncIterator[Start]:
    """Starts containers of images with an entry point; removes them at the end."""
    started: list[Sandbox] = []
    settings = sandboxes_of(RUN, block_host=True)
    async with open_backend(DockerBackend(engine, settings)) as backend:

        async def one(dockerfile: str, script: str = TELLS, internet: bool = False) -> Container:
            path: Path = make_task(dockerfile=dockerfile, toml=TOML.format(internet=str(internet).lower()))
            (path / "environment" / "start.sh").write_text(script)
            (path / "environment" / "start.sh").chmod(0o755)
            container = await backend.sandbox(agent_environment(Task.read(path)), "t.s0.x")
            started.append(container)
            return container

        yield one
        for sandbox in started:
            await sandbox.remove()


async def told(sandbox: Sandbox, script: str = "cat /tmp/told") -> str:
    return (await sandbox.shell(script, timeout_sec=20)).output.decode().strip()


async def test_an_entry_point_runs_as_the_image_says_and_the_trial_waits_until_it_is_healthy(start: Start) -> None:
    container = await start(SERVES)
    assert await told(container, "test -e /tmp/ready && echo healthy") == "healthy"
    assert await told(container) == "worker /work teal sh -c sleep infinity"
    assert await container.logs() == {"entrypoint.log": b"hello from the start\n"}
    assert (await told(container, "cut -d '' -f 1 /proc/1/cmdline")).startswith("/opt/tbench/bin/init")
    await container.shell("kill -9 -1", timeout_sec=20, user="root")
    assert await told(container, "pgrep sleep || echo alone") == "alone"
    fresh = await container.make_fresh()
    try:
        assert await told(fresh) == "worker /work teal sh -c sleep infinity"
    finally:
        await fresh.remove()
    assert await told(await container.original()) == ""


async def test_an_entry_point_that_cannot_be_started_is_reported_and_the_container_stays(start: Start) -> None:
    container = await start('FROM debian:bookworm-slim\nENTRYPOINT ["/none"]\n')
    said = b""
    while not said:
        said = (await container.logs()).get("entrypoint.log", b"")
    assert said == b"the entry point /none cannot be started: No such file or directory\n"
    assert await told(container, "echo here") == "here"


async def test_an_entry_point_begins_when_the_host_is_closed_to_it(
    start: Start, engine: Engine, host_port: int
) -> None:
    network = await engine.call(engine.api.inspect_network, NETWORK)
    gateway = network["IPAM"]["Config"][0]["Gateway"]
    connects = f"timeout 5 bash -c ': >/dev/tcp/{gateway}/{host_port}'"
    asks = f"#!/bin/bash\n{connects} && echo reached || echo closed\nexec sleep infinity\n"
    dockerfile = 'FROM debian:bookworm-slim\nCOPY start.sh /start.sh\nENTRYPOINT ["/start.sh"]\n'
    container = await start(dockerfile, asks, internet=True)
    async with asyncio.timeout(60):
        said = set[bytes]()
        # In any order: what bash says of a refused connection comes by another stream.
        while not said & {b"reached", b"closed"}:
            said = set((await container.logs()).get("entrypoint.log", b"").split(b"\n"))
            await asyncio.sleep(0.05)
    assert b"closed" in said


async def test_an_image_that_never_gets_healthy_is_an_error_and_leaves_nothing(start: Start, engine: Engine) -> None:
    check = "HEALTHCHECK --interval=1s --timeout=1s --retries=1 CMD echo not yet; false"
    with pytest.raises(TrialError, match="'echo not yet; false' failed 1 times: not yet") as caught:
        await start(f"FROM debian:bookworm-slim\n{check}\n")
    assert caught.value.type == "healthcheck_failed"
    assert await engine.call(engine.api.containers, all=True, filters={"label": f"{LABEL_RUN}={RUN}"}) == []
