"""Output of a process arrives whole and in order, and is not read while the receiver is busy."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lost_cancellations import moments_lost

from tbench.sandbox.docker.commands import ExecStream

STDOUT, STDERR = 1, 2


def framed(data: bytes, kind: int = STDOUT) -> bytes:
    return struct.pack(">BxxxL", kind, len(data)) + data


@asynccontextmanager
async def stream_and_engine() -> AsyncIterator[tuple[ExecStream, asyncio.StreamWriter]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    _, engine = await asyncio.open_connection(sock=far)
    stream = await ExecStream("exec", near).attach()
    try:
        yield stream, engine
    finally:
        await stream.close()
        engine.close()
        with contextlib.suppress(OSError):
            await engine.wait_closed()


@given(pieces=st.lists(st.binary(max_size=50), max_size=6), cut=st.integers(1, 40), read_first=st.booleans())
@settings(max_examples=50)
async def test_frames_that_are_cut_anywhere_are_passed_on_in_order(
    pieces: list[bytes], cut: int, read_first: bool
) -> None:
    sent, taken = b"".join(map(framed, [b"begun", *pieces])), bytearray()

    def take(data: bytes) -> float:
        taken.extend(data)
        return 0.0

    async with stream_and_engine() as (stream, engine):
        engine.write(sent[:13])
        if read_first:
            taken += await stream.read()
        passing = asyncio.create_task(stream.pass_on(take))
        for start in range(13, len(sent), cut):
            engine.write(sent[start : start + cut])
            await asyncio.sleep(0)
        engine.close()
        await passing
    assert bytes(taken) == b"".join([b"begun", *pieces])


async def test_nothing_is_passed_on_in_a_pause_and_all_of_it_afterwards() -> None:
    taken: list[tuple[float, bytes]] = []
    begun = asyncio.Event()
    clock = asyncio.get_running_loop().time

    def take(data: bytes) -> float:
        taken.append((clock(), data))
        begun.set()
        return 0.2 if len(taken) == 1 else 0.0

    async with stream_and_engine() as (stream, engine):
        passing = asyncio.create_task(stream.pass_on(take))
        engine.write(framed(b"first"))
        await begun.wait()
        engine.write(framed(b"second"))
        engine.close()
        await passing
    (first_at, first), (second_at, second) = taken
    assert (first, second) == (b"first", b"second")
    assert second_at - first_at >= 0.19


async def test_words_on_stderr_say_why_a_stream_has_ended() -> None:
    async with stream_and_engine() as (stream, engine):
        engine.write(framed(b"out") + framed(b"no such program\n", STDERR))
        engine.close()
        with pytest.raises(ConnectionResetError, match="no such program"):
            await stream.pass_on(lambda _: 0.0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_who_fails_to_take_something_is_told_so() -> None:
    def take(data: bytes) -> float:
        raise ValueError(data)

    async with stream_and_engine() as (stream, engine):
        passing = asyncio.create_task(stream.pass_on(take))
        await asyncio.sleep(0)
        engine.write(framed(b"out"))
        with pytest.raises(ValueError, match="out"):
            await passing


async def test_a_stream_whose_attaching_is_cancelled_is_closed() -> None:
    near, far = socket.socketpair()
    raw: Any = near.makefile("rwb", buffering=0)  # as the SDK gives it: a response holds the socket open, too
    raw._response = SimpleNamespace(raw=SimpleNamespace(_fp=SimpleNamespace(fp=None)), close=raw.close)
    with far:
        attaching = asyncio.create_task(ExecStream("exec", raw).attach())
        await asyncio.sleep(0)
        attaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attaching
        far.settimeout(10)
        assert far.recv(1) == b""


async def test_no_cancellation_is_lost_while_a_process_that_reads_nothing_is_fed() -> None:
    async def feed() -> None:
        near, far = socket.socketpair()
        with far:
            stream = await ExecStream("exec", near).attach()
            async with stream.feed(io.BytesIO(bytes(8_000_000))):
                far.shutdown(socket.SHUT_RDWR)
            assert near.fileno() == -1

    assert await moments_lost(feed) == []
