"""A small internet beyond the host: a network namespace with name servers, web servers with and without TLS, and a log.

`python tests/internet.py DIRECTORY` serves there; `internet()` makes the namespace and starts that in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NEAR, HERE, THERE = "198.18.78.1", "198.18.78.6", "198.18.78.7"
"""The host's end, and the two addresses of the servers; HERE is that of the name server, too."""
NAMES = {
    "allowed.example": HERE,
    "other.example": THERE,
    "www.wild.example": HERE,
    "a.b.wild.example": HERE,
    "wild.example": HERE,
    "router.example": "192.0.0.1",
    "loopback.example": "127.0.0.1",
    "metadata.example": "169.254.169.254",
}
"""All names that there are, with their addresses."""
HTTP_PORTS, TLS_PORTS, DATAGRAM_PORTS = (80, 8080), (443, 8443), (443, 9999)


@dataclass(frozen=True)
class Internet:
    """The simulated internet as seen by a test."""

    directory: Path
    name_server: str = HERE

    def heard(self, kind: str) -> list[Any]:
        """Requests received so far: `names` asked for, `requests` over HTTP, `hellos` of TLS, `datagrams`."""
        lines = (self.directory / "log.jsonl").read_text().splitlines()
        return [told for each, told in map(json.loads, lines) if each == kind]


@contextlib.contextmanager
def internet(directory: Path) -> Iterator[Internet]:
    """An internet for as long as the block lasts. Skips where none can be made."""
    if os.geteuid() != 0 or any(shutil.which(name) is None for name in ("ip", "openssl", "nsenter")):
        pytest.skip("making a network beyond the host takes root, iproute2, openssl and nsenter")
    name = "tb" + uuid.uuid4().hex[:8]
    inside = f"ip netns exec {name}"
    (directory / "log.jsonl").touch()
    with (Path(tempfile.gettempdir()) / "tbench-internet.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the addresses can be used once on a machine
        _remove_left()
        yield from _made(name, inside, directory)


def _remove_left() -> None:
    """Remove the networks of tests that were killed: packets to these addresses would go there."""
    shown = subprocess.run(["ip", "-o", "addr", "show", "to", NEAR], check=True, capture_output=True, text=True).stdout
    for line in shown.splitlines():
        subprocess.run(["ip", "link", "del", line.split()[1].partition("@")[0]], capture_output=True)


def _made(name: str, inside: str, directory: Path) -> Iterator[Internet]:
    server = None
    try:
        for command in (
            "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=allowed.example "
            f"-keyout {directory}/key.pem -out {directory}/certificate.pem",
            f"ip netns add {name}",
            f"ip link add {name} type veth peer name eth0 netns {name}",
            f"ip addr add {NEAR}/24 dev {name}",
            f"ip link set {name} up",
            *(f"{inside} ip addr add {address}/24 dev eth0" for address in (HERE, THERE)),
            f"{inside} ip link set eth0 up",
            f"{inside} ip link set lo up",
            f"{inside} ip route add default via {NEAR}",
        ):
            subprocess.run(command.split(), check=True, capture_output=True)
        server = subprocess.Popen([*inside.split(), sys.executable, __file__, str(directory)])
        _wait_for(directory / "ready", server)
        yield Internet(directory)
    finally:
        if server is not None:
            server.kill()
            server.wait()
        subprocess.run(["ip", "link", "del", name], capture_output=True)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _wait_for(path: Path, server: subprocess.Popen[bytes]) -> None:
    ends_at = time.monotonic() + 60
    while not path.exists():
        if server.poll() is not None or time.monotonic() > ends_at:
            pytest.fail("the internet of the test does not start")
        threading.Event().wait(0.02)


class _Servers:
    def __init__(self, directory: Path) -> None:
        self._log = (directory / "log.jsonl").open("a")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(directory / "certificate.pem", directory / "key.pem")
        self._context.sni_callback = lambda _socket, name, _context: self.told("hellos", name)

    def told(self, kind: str, what: Any) -> None:
        print(json.dumps([kind, what]), file=self._log, flush=True)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: _NameServer(self), local_addr=(HERE, 53))
        await asyncio.start_server(self._name_stream, HERE, 53)
        for address in (HERE, THERE):
            for port in DATAGRAM_PORTS:
                await loop.create_datagram_endpoint(lambda: _Datagrams(self), local_addr=(address, port))
            for port in HTTP_PORTS:
                await asyncio.start_server(self._web, address, port)
            for port in TLS_PORTS:
                await asyncio.start_server(self._web, address, port, ssl=self._context)

    def answer(self, query: bytes) -> bytes:
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        name = ".".join(labels).lower()
        kind = struct.unpack(">H", query[at + 1 : at + 3])[0]
        self.told("names", [name, kind])
        address = NAMES.get(name)
        found = bytes(map(int, address.split("."))) if address and kind == 1 else b""
        head = struct.pack(
            ">HHHHHH", *struct.unpack(">H", query[:2]), 0x8180 | (0 if address else 3), 1, bool(found), 0, 0
        )
        record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + found if found else b""
        return head + query[12 : at + 5] + record

    async def _name_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                (length,) = struct.unpack(">H", await reader.readexactly(2))
                answer = self.answer(await reader.readexactly(length))
                writer.write(struct.pack(">H", len(answer)) + answer)
        writer.close()

    async def _web(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:  # kept alive unless a request says otherwise
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                sent = (await reader.readexactly(int(headers.get("content-length", 0)))).decode("latin-1")
                address, port = writer.get_extra_info("sockname")[:2]
                self.told("requests", [headers.get("host"), f"{address}:{port}", head.partition(" HTTP")[0], sent])
                if "/slow" in head:
                    await asyncio.sleep(60)
                body = f"{headers.get('host')} at {address}:{port}\n".encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                await writer.drain()
                if headers.get("connection") == "close":
                    break
        writer.close()


class _NameServer(asyncio.DatagramProtocol):
    def __init__(self, servers: _Servers) -> None:
        self._servers = servers

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._transport.sendto(self._servers.answer(data), addr)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, servers: _Servers) -> None:
        self._servers = servers

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._servers.told("datagrams", data.decode("latin-1"))
        self._transport.sendto(b"heard", addr)


async def _serve(directory: Path) -> None:
    await _Servers(directory).start()
    (directory / "ready").touch()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
