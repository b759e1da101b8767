"""Streams over an exchange of messages: what goes in at one side comes out at the other, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbench.fleet.ray.channel import WINDOW_BYTES, Channel, Message

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
BOUND_SEC = 20.0


class Pair:
    """A socket `near`, and what a server at the other end of the messages does with each connection to it."""

    def __init__(self, directory: Path) -> None:
        self.near, self.far = directory / "near", directory / "far"
        self.channel = Channel()
        self.remote = Channel(self._connect)
        self.sent: list[Message] = []
        """What the server's side has sent."""

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self.far)

    async def _move(self, source: Channel, target: Channel, seen: list[Message]) -> None:
        while True:
            batch = await source.batch()
            seen += batch
            target.take(batch)

    @contextlib.asynccontextmanager
    async def running(self, handle: Handle | None) -> AsyncIterator[Pair]:
        servers = [await asyncio.start_unix_server(self.channel.forward, self.near)]
        if handle is not None:
            servers.append(await asyncio.start_unix_server(handle, self.far))
        moving = [
            asyncio.create_task(self._move(self.channel, self.remote, [])),
            asyncio.create_task(self._move(self.remote, self.channel, self.sent)),
        ]
        try:
            async with asyncio.timeout(BOUND_SEC):
                yield self
        finally:
            for server in servers:
                server.close()
            for channel in (self.channel, self.remote):
                channel.close()
            for task in moving:
                task.cancel()
            await asyncio.gather(*moving, return_exceptions=True)
            await asyncio.sleep(0.05)  # what was cancelled ends

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self.near)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


@settings(max_examples=20)
@given(pieces=st.lists(st.binary(min_size=1, max_size=3 * 65536), max_size=12))
async def test_bytes_come_back_as_they_were_sent(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    async with Pair(tmp_path_factory.mktemp("pair")).running(echo) as pair:
        reader, writer = await pair.open()

        async def send() -> None:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        assert await reader.read() == b"".join(pieces)
        await sending
        writer.close()


async def test_streams_beside_each_other_do_not_mix(pair: Pair) -> None:
    async def one(number: int) -> None:
        reader, writer = await pair.open()
        for turn in range(20):
            text = f"{number} {turn}\n".encode()
            writer.write(text)
            assert await reader.readline() == text
        writer.close()

    async with pair.running(echo):
        await asyncio.gather(*map(one, range(50)))


async def test_the_end_of_what_is_sent_leaves_the_way_back_open(pair: Pair) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d" % len(await reader.read()))
        writer.close()

    async with pair.running(count):
        reader, writer = await pair.open()
        writer.write(b"x" * 1000)
        writer.write_eof()
        assert await reader.read() == b"1000"
        writer.close()


async def test_where_no_one_listens_a_connection_ends_at_once(pair: Pair) -> None:
    async with pair.running(None):
        reader, writer = await pair.open()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_a_client_that_does_not_read_holds_the_server_up_instead_of_filling_the_memory(pair: Pair) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            for _ in range(1000):
                writer.write(bytes(65536))
                await writer.drain()
        writer.close()

    async with pair.running(flood):
        _, writer = await pair.open()
        before = -1
        while before != (now := sum(len(data) for _, kind, data in pair.sent if kind == "data")):
            before = now
            await asyncio.sleep(0.2)
        assert 0 < now < 4 * WINDOW_BYTES  # beside the window, what the two sockets hold
        writer.transport.abort()
        writer.close()


async def test_a_client_that_goes_away_ends_the_connection_at_the_other_side(pair: Pair) -> None:
    ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await reader.read()
        ended.set()
        writer.close()

    async with pair.running(wait):
        reader, writer = await pair.open()
        assert await reader.read(5) == b"hello"
        writer.transport.abort()
        writer.close()
        await ended.wait()


async def test_a_channel_that_closes_ends_its_connections_and_takes_no_other(pair: Pair) -> None:
    async with pair.running(echo):
        reader, writer = await pair.open()
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        pair.channel.close()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        again, another = await pair.open()
        with contextlib.suppress(ConnectionResetError):
            assert await again.read() == b""
        for each in (writer, another):
            each.close()
