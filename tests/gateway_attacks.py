"""What a hostile agent may send to the endpoint: `gateway_attacks.py NAME PORT`, one attack each.

Prints what came back, in a line. KEY is the trial's own secret, which an agent knows.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

KEY, OTHERS = "own", "another-trials"
CHAT = "/v1/chat/completions"
HELLO = b'{"messages": [{"role": "user", "content": "Hello"}]}'
LARGE = 32_000_000
PATIENCE_SEC = 20.0
PORT = 0


def dial() -> socket.socket:
    return socket.create_connection(("127.0.0.1", PORT), timeout=PATIENCE_SEC)


def head(*more: str, path: str = CHAT, method: str = "POST", version: str = "1.1", key: str = KEY) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: x", f"Authorization: Bearer {key}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def length(body: bytes) -> str:
    return f"Content-Length: {len(body)}"


def all_of(one: socket.socket) -> bytes:
    """All that is sent until the end, or until nothing comes any more."""
    found = b""
    try:
        while more := one.recv(1 << 16):
            found += more
    except (TimeoutError, ConnectionError):
        pass
    return found


def statuses(data: bytes) -> str:
    return " ".join(each[2:5].decode() for each in data.split(b"HTTP/1.")[1:])


def send(data: bytes | Iterator[bytes]) -> str:
    """The statuses of the answers to these bytes; `closed` without any."""
    with dial() as one:
        try:
            for piece in [data] if isinstance(data, bytes) else data:
                one.sendall(piece)
        except (ConnectionError, TimeoutError):
            pass
        return statuses(all_of(one)) or "closed"


def ask(body: bytes, *more: str, **parts: str) -> str:
    return send(head("Connection: close", length(body), *more, **parts) + body)


def repeated(piece: bytes, size: int) -> Iterator[bytes]:
    block = piece * max(1, (1 << 20) // len(piece))
    for _ in range(size // len(block)):
        yield block


def after(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def hello() -> str:
    return ask(HELLO)


def keys() -> str:
    """Keys that are nearly right: another trial's, shortened, with characters that no header may have, several."""
    found = [ask(HELLO, key=key) for key in (OTHERS, KEY[:-1], KEY + " x", "\xff" * 50, "", "None")]
    found.append(ask(HELLO, f"Authorization: Bearer {KEY}", key=OTHERS))
    found.append(ask(HELLO, f"x-api-key: {OTHERS}"))
    return " ".join(found)


def paths() -> str:
    tricks = ["/v1/../v1/chat/completions/../../../etc/passwd", "/v1/%2e%2e/%2fetc%2fpasswd", "/v1/chat/completions%00"]
    tricks += [
        "//x/v1/models/..",
        "/%ff%fe%fd",
        "/v1/models" + "/a" * 4000,
        "*",
        "/v1;/chat/completions",
        "http://[::1",
    ]
    tricks += ["//[", "/v1/chat/completions?x=" + "a" * 7000, "/?" + "%" * 100, "\\..\\..\\etc"]
    return " ".join(ask(HELLO, path=path) for path in tricks)


def methods() -> str:
    names = ["GET", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "PRI", "X" * 5000]
    return " ".join(send(head("Connection: close", method=name)) for name in names)


def header_flood() -> str:
    return send(after(head()[:-2], repeated(b"X-A: " + b"a" * 4000 + b"\r\n", 200_000_000)))


def tiny_headers() -> str:
    return send(after(head()[:-2], repeated(b"a:b\r\n", 50_000_000)))


def endless_line() -> str:
    return send(after(b"POST /", repeated(b"a", 100_000_000)))


def slow_bodies() -> str:
    """More bodies than are read at once, of which a byte comes now and then; then all are given up."""
    held = [dial() for _ in range(40)]
    for one in held:
        one.sendall(head("Content-Length: 1000000"))
    for _ in range(20):
        for one in held:
            one.sendall(b" ")
        time.sleep(0.02)
    for one in held:
        one.close()
    return ask(HELLO)


def chunks_of_a_byte() -> str:
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in HELLO) + b"0\r\n\r\n"
    return send(head("Transfer-Encoding: chunked", "Connection: close") + body)


def chunk_extensions() -> str:
    return send(after(head("Transfer-Encoding: chunked") + b"5;", repeated(b"a", 100_000_000)))


def endless_trailers() -> str:
    start = head("Transfer-Encoding: chunked") + b"%x\r\n%s\r\n0\r\n" % (len(HELLO), HELLO)
    return send(after(start, repeated(b"X-A: b\r\n", 100_000_000)))


def broken_chunks() -> str:
    start = head("Transfer-Encoding: chunked")
    ends = [b"zz\r\n", b"-5\r\nabc\r\n", b"5\r\nabcdefgh\r\n", b"ffffffffffffffffff\r\nx", b"5\r\nab"]
    return " ".join(send_and_end(start + end) for end in ends)


def send_and_end(data: bytes) -> str:
    with dial() as one:
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)
        return statuses(all_of(one)) or "closed"


def packed_nonsense() -> str:
    found = []
    for kind in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "x"):
        found.append(ask(b"\x00\xff no such thing" * 50, f"Content-Encoding: {kind}"))
    packed = gzip.compress(HELLO)
    found.append(ask(packed[:-9], "Content-Encoding: gzip"))
    found.append(ask(packed, "Content-Encoding: gzip"))
    return " ".join(found)


def two_lengths() -> str:
    both = send(head("Transfer-Encoding: chunked", "Content-Length: 5", "Connection: close") + b"0\r\n\r\n")
    odd = [send(head(f"Content-Length: {each}")) for each in ("-1", "1e3", "9" * 30, "9" * 5000, "5, 6", "0x10")]
    return " ".join([both, *odd])


def old_http() -> str:
    found = [ask(HELLO, version=version) for version in ("1.0", "0.9", "2.0", "9.9")]
    return " ".join([*found, send(b"GET /\r\n\r\n"), send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")])


def pipelined() -> str:
    """A long row of requests in one go, of which no answer is read until all are sent."""
    with dial() as one:
        sender = threading.Thread(target=lambda: one.sendall((head(length(HELLO)) + HELLO) * 300))
        sender.start()
        time.sleep(1)
        found = b""
        while found.count(b"HTTP/1.1") < 300 and (more := one.recv(1 << 16)):
            found += more
        sender.join()
        return f"{found.count(b' 200 OK')} of 300"


def pipelined_unread() -> str:
    with dial() as one:
        one.settimeout(3)
        sent = 0
        try:
            for block in repeated(
                b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer own\r\n\r\n", 200_000_000
            ):
                one.sendall(block)
                sent += len(block)
        except (TimeoutError, ConnectionError):
            return "stopped"
        return f"took {sent}"


def upgrade() -> str:
    asked = head("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", length(HELLO)) + HELLO
    return send(after(asked, repeated(b"x", 200_000_000)))


def hang_up() -> str:
    """Hang up at each place of a request, with a reset."""
    whole = head(length(HELLO), "Connection: close") + HELLO
    for cut in range(1, len(whole) + 1, 3):
        with dial() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.sendall(whole[:cut])
    return ask(HELLO)


def nested() -> str:
    """Nesting in each place that is read, and in those that are passed on: a tool's schema, a call's arguments."""
    found = []
    for depth in (100, 900, 50_000):
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        tool = b'{"type": "function", "function": {"name": "f", "parameters": %s}}' % deep
        call = b'{"id": "a", "function": {"name": "f", "arguments": %s}}' % deep
        user = HELLO[14:-2]
        for body in (
            b'{"messages": [%s], "tools": [%s]}' % (user, tool),
            b'{"messages": [%s, {"role": "assistant", "tool_calls": [%s]}]}' % (user, call),
            b'{"messages": [%s], "metadata": %s}' % (user, deep),
            b'{"messages": [{"role": "user", "content": %s}]}' % deep,
        ):
            found.append(ask(body))
    return " ".join(found)


def many_values() -> str:
    """Millions of small values, which take far longer to read than a long text does."""
    inner = (b"[],", b"{},", b"1,", b'"",', b'"\\ud800",')
    bodies = [b'{"messages": [%s], "x": [%s0]}' % (HELLO[14:-2], each * (LARGE // len(each))) for each in inner]
    bodies.append(b'{"x": {%s}}' % b",".join(b'"%x":0' % number for number in range(LARGE // 12)))
    bodies.append(b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"\\ud800" * (LARGE // 6)))
    return " ".join(map(ask, bodies))


def many_messages() -> str:
    """As many messages as are allowed, all of one role, so that they are joined."""
    long = json.dumps([{"role": "user", "content": "x" * 1500}] * 19_999).encode()
    calls = json.dumps([{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}] * 19_999).encode()
    found = [ask(b'{"max_tokens": 5, "messages": %s}' % long, path="/v1/messages")]
    found.append(ask(b'{"input": %s}' % long, path="/v1/responses"))
    found.append(ask(b'{"input": [{"role": "user", "content": "x"}, %s]}' % calls[1:-1], path="/v1/responses"))
    return " ".join(found)


def numbers() -> str:
    found = []
    for number in (b"1e999", b"-1e999", b"9" * 4000, b"9" * 5000, b"0." + b"1" * 5000, b"1e-999"):
        tool = b'{"type": "function", "function": {"name": "f", "parameters": {"maximum": %s}}}' % number
        found.append(ask(b'{"messages": [%s], "max_tokens": %s}' % (HELLO[14:-2], number)))
        found.append(ask(b'{"messages": [%s], "tools": [%s]}' % (HELLO[14:-2], tool)))
    return " ".join(found)


def churn() -> str:
    """Hundreds of connections that come, send a byte, and go."""
    for _ in range(500):
        with dial() as one:
            one.sendall(b"P")
    return ask(HELLO)


def flood() -> str:
    """As many requests as possible, from all connections at once, with a wrong key."""
    ends = time.monotonic() + 5

    def run() -> None:
        with dial() as one:
            while time.monotonic() < ends:
                one.sendall(head(key=OTHERS, method="GET"))
                one.recv(1 << 16)

    threads = [threading.Thread(target=run) for _ in range(32)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return ask(HELLO)


def is_own_program(path: Path) -> bool:
    """Whether a process is the gateway's program; the test has started it as well as this."""
    with contextlib.suppress(OSError):
        name, _, rest = (path / "stat").read_text().rpartition(") ")
        return name.endswith("(gateway") and rest.split()[1] == str(os.getppid())
    return False


def forged_frames() -> str:
    """Frames that the program never sent, written to its output: numbers without end, of which none hangs up."""
    path = max(filter(is_own_program, Path("/proc").glob("[0-9]*")), key=lambda each: int(each.name))
    with (path / "fd" / "1").open("wb", buffering=0) as output:
        for number in range(1_000_000, 1_005_000):
            output.write(struct.pack(">II", number, 1) + b"P")
    return ask(HELLO)


ATTACKS: Sequence[Callable[[], str]] = (
    keys, paths, methods, header_flood, tiny_headers, endless_line, slow_bodies, chunks_of_a_byte, chunk_extensions,
    endless_trailers, broken_chunks, packed_nonsense, two_lengths, old_http, pipelined, pipelined_unread, upgrade,
    hang_up, nested, many_values, many_messages, numbers, churn, flood, forged_frames,
)  # fmt: skip

if __name__ == "__main__":
    PORT = int(sys.argv[2])
    print(globals()[sys.argv[1]]())
