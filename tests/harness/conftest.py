"""Fixtures of the harness tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest_asyncio
from terminals import BASH, PROGRAMS, Open, opened, started, write_task

from harness.terminal import Terminal
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.engine import Engine


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def box(engine: Engine, tools_volume: str, tmp_path_factory: Any) -> AsyncIterator[Container]:
    """A container with bash."""
    async with started(engine, tools_volume, write_task(tmp_path_factory.mktemp("box") / "terminal-box", BASH)) as box:
        yield box


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def equipped(engine: Engine, tools_volume: str, tmp_path_factory: Any) -> AsyncIterator[Container]:
    """A container with many programs, shells and users, and with a server for ssh."""
    task = write_task(tmp_path_factory.mktemp("programs") / "terminal-programs", PROGRAMS)
    async with started(engine, tools_volume, task) as box:
        # sudo complains where it knows its host by no name.
        await box.shell('echo "127.0.0.1 $HOSTNAME" >> /etc/hosts; /usr/sbin/sshd', timeout_sec=20)
        yield box


@pytest_asyncio.fixture(loop_scope="module")
async def open_terminal(box: Container) -> AsyncIterator[Open]:
    """Opens terminals in the shared container."""
    async with AsyncExitStack() as stack:

        async def open_one(**options: Any) -> Terminal:
            return await stack.enter_async_context(opened(box, **options))

        yield open_one


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def desk(equipped: Container) -> AsyncIterator[Terminal]:
    """One terminal in that container for all tests of a module; each test leaves it at its prompt."""
    async with opened(equipped) as terminal:
        yield terminal


@pytest_asyncio.fixture(loop_scope="module")
async def terminal(open_terminal: Open) -> Terminal:
    return await open_terminal()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(box: Container) -> AsyncIterator[Terminal]:
    """One terminal for the tests that leave it as they found it."""
    async with opened(box) as terminal:
        yield terminal
