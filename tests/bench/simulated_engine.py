"""Container engines that have no containers, each behind a socket: they say what they are, and have terminals.

As a program: `simulated_engine.py SOCKET...`. A connection that begins with `TERMINAL` is one to a tmux that is not
there; all others are asked as a Docker engine is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the fakes that the tests share

from fake_tmux import FakeTmux
from simulated import answers

LINE_BYTES = 1 << 20


def told(path: str, socket: str) -> Any:
    """What such an engine says to a request."""
    if path.endswith("/info"):
        facts = {"Driver": "simulated", "CgroupVersion": "2", "Architecture": "x86_64", "KernelVersion": "0"}
        return {"ID": socket, "Name": socket, "NCPU": 128, "MemTotal": 1 << 40, **facts}
    if path.endswith("/version"):
        return {"Version": "28.0", "ApiVersion": "1.41", "MinAPIVersion": "1.24"}
    if "/volumes" in path:
        return {"Volumes": []}
    return [] if "?" in path else "OK"


async def answer(head: bytes, socket: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head:
        path = head.split()[1].decode()
        while (await reader.readline()).strip():
            pass
        body = json.dumps(told(path, socket)).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        await writer.drain()
        head = await reader.readline()


async def terminal(argv: list[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    stream = await FakeTmux(answers()).connect(argv, {})

    async def outward() -> None:
        while data := await stream.read():
            writer.write(data)
            await writer.drain()

    printing = asyncio.create_task(outward())
    try:
        while data := await reader.read(1 << 16):
            await stream.write(data)
    finally:
        printing.cancel()
        await stream.close()


async def main(sockets: list[str]) -> None:
    async def serve(socket: str) -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, IndexError):
                head = await reader.readline()
                if head.startswith(b"TERMINAL "):
                    await terminal(json.loads(head.removeprefix(b"TERMINAL ")), reader, writer)
                else:
                    await answer(head, socket, reader, writer)
            writer.close()

        await asyncio.start_unix_server(handle, socket, limit=LINE_BYTES)

    for socket in sockets:
        await serve(socket)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
