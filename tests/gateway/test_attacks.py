"""Attacks of an agent on the endpoint, each by a program of its own: what it gets, and that it harms only itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gateway_attacks
import pytest

from harness.stream import LocalProcess
from harness.trajectory import Message, Reply, Usage
from tbench.gateway.connections import Connections
from tbench.gateway.server import Gateway

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
ANSWERS = {
    "keys": "401( 401)+",
    "paths": "((400|404) )+200 404 400",
    "methods": "(404 )+400 400",
    "header_flood": "400",
    "tiny_headers": "400",
    "endless_line": "400",
    "chunk_extensions": "closed",
    "endless_trailers": "closed|400",
    "broken_chunks": "((400|closed) ?)+",
    "packed_nonsense": "(400 )+200 200",
    "two_lengths": "400( 400)+",
    "old_http": "200 closed closed 400 closed 400",
    "pipelined": "300 of 300",
    "pipelined_unread": "stopped",
    "upgrade": "200 400",
    "nested": "((200|400) ?)+",
    "many_values": "400( 400)+",
    "many_messages": "200 200 200",
    "numbers": "((200|400) ?)+",
    "forged_frames": "closed",
}
"""What an attack gets, as a pattern; all others get what they want at last."""
LONG = {"many_values", "many_messages", "churn", "flood", "chunk_extensions", "pipelined", "header_flood"}


def in_use() -> tuple[int, int]:
    """Return the number of open files of this process, and its bytes in memory."""
    files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return files, int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


class Endpoint:
    """The endpoint of one trial, and what it costs this process."""

    def __init__(self) -> None:
        self.asked, self.is_asked = 0, asyncio.Event()
        self.gateway = Gateway(self._ask, secret=gateway_attacks.KEY, model="tiny", max_tokens=100, context_tokens=4096)
        self.port = 0
        self.longest_sec = 0.0
        """Longest computation of the event loop in which no other trial had its turn."""
        self.most_files = self.most_bytes = 0

    async def _ask(self, messages: Sequence[Message], max_tokens: int, tools: Sequence[Mapping[str, Any]]) -> Reply:
        self.asked += 1
        self.is_asked.set()
        await asyncio.sleep(0.001)
        return Reply(content="Hi", usage=Usage(prompt_tokens=5, completion_tokens=1))

    async def watch(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.01)
            now = time.thread_time()
            self.longest_sec, before = max(self.longest_sec, now - before), now
            files, resident = in_use()
            self.most_files, self.most_bytes = max(self.most_files, files), max(self.most_bytes, resident)


@asynccontextmanager
async def listening(program: str) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    watch = asyncio.create_task(endpoint.watch())
    try:
        async with Connections(LocalProcess.connect, program, endpoint.gateway.serve).listen() as (port, serving):
            endpoint.port = port
            await asyncio.sleep(0.05)
            yield endpoint
            assert not serving.done()
    finally:
        await endpoint.gateway.close()
        watch.cancel()


async def attack(name: str, port: int) -> asyncio.subprocess.Process:
    argv = [sys.executable, gateway_attacks.__file__, name, str(port)]
    return await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each.__name__, marks=[pytest.mark.slow] if each.__name__ in LONG else [])
        for each in gateway_attacks.ATTACKS
    ],
)
async def test_an_attack_gets_a_refusal_and_costs_other_trials_little(name: str, program: str) -> None:
    async with listening(program) as other, listening(program) as own:
        files, before = own.most_files, own.most_bytes
        attacking = await attack(name, own.port)
        output, _ = await asyncio.wait_for(attacking.communicate(), 300)
        assert attacking.returncode == 0
        assert re.fullmatch(ANSWERS.get(name, "200"), output.decode().strip()), output
        # The endpoint of another trial, in the same process, has noticed nothing.
        honest, _ = await (await attack("hello", other.port)).communicate()
        assert honest == b"200\n"
        if name != "forged_frames":  # which leaves its own trial no connection
            honest, _ = await (await attack("hello", own.port)).communicate()
            assert honest == b"200\n"
        assert (own.gateway.failure, other.gateway.failure, other.asked) == (None, None, 1)
        assert own.longest_sec < 1.0
        assert own.most_files - files < 300
        assert own.most_bytes - before < 600 << 20


async def test_the_end_of_a_trial_ends_a_flood_of_requests(program: str) -> None:
    async with listening(program) as endpoint:
        attacking = [await attack(name, endpoint.port) for name in ("flood", "slow_bodies", "pipelined")]
        await asyncio.wait_for(endpoint.is_asked.wait(), 60)
    asked = endpoint.asked
    await asyncio.sleep(0.5)
    assert endpoint.asked == asked
    for each in attacking:
        with contextlib.suppress(ProcessLookupError):
            each.kill()
        await each.communicate()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", endpoint.port)
