"""Connections from inside a sandbox, by the program of the tools (images/tools/gateway.c), compiled here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from harness.errors import TerminalLost, TerminalUnreachable
from harness.stream import ByteStream, LocalProcess
from tbench.gateway import connections
from tbench.gateway.connections import Connections


class Echo(asyncio.Protocol):
    """Sends everything back, and hangs up after `bye`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        if data.endswith(b"bye"):
            self.transport.close()


async def test_many_connections_at_once_each_get_their_own_bytes(program: str) -> None:
    async def talk(port: int, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        text = (f"{number} " * 60_000).encode()
        writer.write(text)
        assert await reader.readexactly(len(text)) == text
        writer.write(b"bye")
        assert await reader.read() == b"bye"
        writer.close()

    async with Connections(LocalProcess.connect, program, Echo).listen() as (port, _):
        async with asyncio.timeout(60):
            await asyncio.gather(*(talk(port, number) for number in range(100)))


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as soon as something listens."""
    try:
        return await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        await asyncio.sleep(0.02)
        return await connected(port)


async def test_a_program_that_was_killed_listens_again_on_its_port(program: str) -> None:
    started: list[LocalProcess] = []

    async def connect(argv: Sequence[str], environment: Mapping[str, str]) -> ByteStream:
        started.append(await LocalProcess.connect(argv, environment))
        return started[-1]

    async with Connections(connect, program, Echo).listen() as (port, _), asyncio.timeout(30):
        reader, writer = await connected(port)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await started[0].close()
        assert await reader.read() == b""
        writer.close()
        reader, writer = await connected(port)
        writer.write(b"bye")
        assert await reader.read() == b"bye"
        writer.close()
    assert len(started) == 2


async def test_a_client_that_does_not_read_stops_nobody_else(program: str) -> None:
    class Flood(Echo):
        def data_received(self, data: bytes) -> None:
            self.transport.write(data if data == b"bye" else b"x" * (24 << 20))
            if data == b"bye":
                self.transport.close()

    async with Connections(LocalProcess.connect, program, Flood).listen() as (port, _), asyncio.timeout(30):
        _, lazy = await asyncio.open_connection("127.0.0.1", port, limit=1)
        lazy.write(b"flood")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"bye")
        assert await reader.read() == b"bye"
        for each in (lazy, writer):
            each.close()


async def test_a_program_that_something_in_the_sandbox_ends_again_and_again_is_lost(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the agent's doing then, and no reason for another attempt."""
    monkeypatch.setattr(connections, "_MAX_STARTS", 3)
    monkeypatch.setattr(connections, "_PAUSE_SEC", 0.01)

    async def connect(argv: Sequence[str], environment: Mapping[str, str]) -> ByteStream:
        started = await LocalProcess.connect(argv, environment)
        asyncio.get_running_loop().call_later(0.05, lambda: ending.add(asyncio.create_task(started.close())))
        return started

    ending: set[asyncio.Task[None]] = set()
    with pytest.raises(TerminalLost):
        async with Connections(connect, program, Echo).listen() as (_, serving), asyncio.timeout(30):
            await serving


async def test_a_port_that_something_in_the_sandbox_has_taken_is_lost(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_UNREACHABLE_SEC", 0.5)
    monkeypatch.setattr(connections, "_PAUSE_SEC", 0.01)
    started: list[LocalProcess] = []

    async def connect(argv: Sequence[str], environment: Mapping[str, str]) -> ByteStream:
        started.append(await LocalProcess.connect([argv[0] if not started else "/bin/false", *argv[1:]], environment))
        return started[-1]

    with pytest.raises(TerminalLost):
        async with Connections(connect, program, Echo).listen() as (_, serving), asyncio.timeout(30):
            await started[0].close()
            await serving


async def test_a_program_that_does_not_start_is_said_to_be_out_of_reach() -> None:
    with pytest.raises(TerminalUnreachable, match="does not start"):
        async with Connections(LocalProcess.connect, "/bin/false", Echo).listen():
            pass


async def test_nothing_is_left_when_the_block_ends(program: str) -> None:
    processes: list[LocalProcess] = []

    async def connect(argv: Sequence[str], environment: Mapping[str, str]) -> ByteStream:
        processes.append(await LocalProcess.connect(argv, environment))
        return processes[-1]

    async with Connections(connect, program, Echo).listen() as (port, _):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
    writer.close()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", port)
    assert len(processes) == 1
