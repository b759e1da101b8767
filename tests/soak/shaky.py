"""An unreliable way to an endpoint: a TCP proxy that harms some connections, and is away now and then.

It has every connection closed behind its first answer, so what befalls a connection befalls one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import struct
from collections import Counter

_BUSY = b'{"error":{"message":"The engine is currently busy","type":"Service Unavailable","param":null,"code":503}}'
_DEAD = b'{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}'
_ABORTED = (
    b'{"id":"x","object":"chat.completion","created":0,"model":"scripted-demo","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"half a"},"finish_reason":"abort"}],"usage":null}'
)
CANNED = {
    "500": (500, _DEAD, ""),
    "503": (503, _BUSY, ""),
    "429": (429, b"{}", "retry-after: 1\r\n"),
    "garbage": (200, b"<html>not what you asked for", ""),
    "abort": (200, _ABORTED, ""),
    "no choices": (200, b'{"object":"chat.completion","choices":[]}', ""),
}
OTHERS = ("reset", "disconnect", "hang", "cut")
HANG_SEC = 4.0
_CONNECTION = re.compile(rb"^connection:.*\r\n", re.IGNORECASE | re.MULTILINE)


class ShakyEndpoint:
    """`async with` it: listens in front of `host:port`; a share `harm` of the connections fails in one of ten ways."""

    def __init__(self, host: str, port: int, chance: random.Random, harm: float) -> None:
        self.injected: Counter[str] = Counter()
        self.arrived = asyncio.Semaphore(0)
        """Released once for each request."""
        self._behind = (host, port)
        self._chance = chance
        self._harm = harm
        self._server: asyncio.Server | None = None
        self._port = 0
        self._handlers: set[asyncio.Task[None]] = set()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> ShakyEndpoint:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._deafen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, backlog=256)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _deafen(self) -> None:
        assert self._server is not None
        self._server.close()
        for handler in list(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._server.wait_closed()

    async def be_away(self, seconds: float) -> None:
        """Connections under way are cut, new ones refused: a server that restarts."""
        self.injected["outage"] += 1
        await self._deafen()
        await asyncio.sleep(seconds)
        await self._listen()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self._one(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            self._handlers.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int((head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0").strip())
        # In place of the client's own word, which would come first and count.
        closing = _CONNECTION.sub(b"", head)[:-2] + b"connection: close\r\n\r\n"
        request = closing + await reader.readexactly(length)
        self.arrived.release()
        if head.startswith(b"POST") and self._chance.random() < self._harm:
            fault = self._chance.choice([*CANNED, *OTHERS])
            self.injected[fault] += 1
            await self._harm_it(fault, writer)
            return
        await self._pass_on(request, writer)

    async def _pass_on(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        answer, onward = await asyncio.open_connection(*self._behind)
        try:
            onward.write(request)
            while data := await answer.read(1 << 16):
                writer.write(data)
                await writer.drain()
        finally:
            onward.transport.abort()
        writer.write_eof()

    async def _harm_it(self, fault: str, writer: asyncio.StreamWriter) -> None:
        if fault in CANNED:
            status, body, header = CANNED[fault]
            writer.write(f"HTTP/1.1 {status} X\r\n{header}content-length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            writer.write_eof()
            await asyncio.sleep(0.05)
        elif fault == "hang":
            await asyncio.sleep(HANG_SEC)
        elif fault == "cut":
            writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{"choices": [{"mess')
            await writer.drain()
        elif fault == "reset":
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
