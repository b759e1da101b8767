"""bodies: answers out of bounds lead to an error on every path, with bounded memory."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_server import FaultServer, answer, completion

from harness.endpoint.bodies import RawAnswer

MB = 1 << 20
MAX_MB = 200
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ASKING = """
import asyncio, resource, sys
from harness.endpoint.chat import ChatModel
from harness.endpoint.retry import RetryPolicy
from harness.errors import EndpointError
from harness.model import Sampling
from harness.trajectory import Message
from tbench.doctor.endpoint import probe_features

url, path = sys.argv[1:]
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
async def main():
    once = RetryPolicy(total_sec=0)
    async with ChatModel(url, "m", Sampling(), api_key=None, request_timeout_sec=20, retry=once) as chat:
        hello = [Message(role="user", content="hello")]
        ways = {
            "chat": lambda: chat.query(hello, seed=1, max_tokens=9),
            "completions": lambda: chat.complete({"prompt": "x"}),
            "models": lambda: chat.connect(budget_sec=0),
            "tokenize": lambda: chat.count_tokens({"prompt": "x"}),
            "metrics": chat.metrics,
            "doctor": lambda: probe_features(url, "m", None),
        }
        before = peak()
        try:
            print("got", str(await ways[path]())[:300])
        except EndpointError as error:
            print(f"{type(error).__name__}: {error}")
        print(peak() - before)
asyncio.run(main())
"""
Send = Callable[[socket.socket], None]


def endless(head: bytes, piece: bytes, times: int) -> Send:
    def play(connection: socket.socket) -> None:
        connection.sendall(head)
        for _ in range(times):
            connection.sendall(piece)

    return play


def packed(encoding: str, wbits: int, megabytes: int = 2000, status: bytes = b"200 OK") -> Send:
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    zeros = bytes(MB)
    body = b"".join(packer.compress(zeros) for _ in range(megabytes)) + packer.flush()
    head = b"HTTP/1.1 " + status + f"\r\ncontent-encoding: {encoding}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    return endless(head, body, 1)


def whole(body: bytes) -> Send:
    return endless(HEAD + f"content-length: {len(body)}\r\n\r\n".encode(), body, 1)


BOMBS: dict[str, Callable[[], Send]] = {
    "2 GB": lambda: endless(HEAD + b"content-length: 2147483648\r\n\r\n", bytes(MB), 2048),
    "2 GB in chunks": lambda: endless(
        HEAD + b"transfer-encoding: chunked\r\n\r\n", b"100000\r\n" + bytes(MB) + b"\r\n", 2048
    ),
    "2 GB of an error": lambda: endless(b"HTTP/1.1 500 No\r\ncontent-length: 2147483648\r\n\r\n", b"x" * MB, 2048),
    "2 GB of a redirect": lambda: endless(
        b"HTTP/1.1 302 Found\r\nlocation: /v1/x\r\ncontent-length: 2147483648\r\n\r\n", bytes(MB), 2048
    ),
    "gzip": lambda: packed("gzip", 31),
    "deflate": lambda: packed("deflate", 15),
    "deflate without a header": lambda: packed("deflate", -15),
    "gzip of an error": lambda: packed("gzip", 31, status=b"400 Bad Request"),
    "brotli": lambda: endless(HEAD + b"content-encoding: br\r\ncontent-length: 9\r\n\r\n", b"x" * 9, 1),
    "gzip in gzip": lambda: endless(HEAD + b"content-encoding: gzip, gzip\r\ncontent-length: 9\r\n\r\n", b"x" * 9, 1),
    "deep": lambda: whole(b"[" * 200_000 + b"]" * 200_000),
    "deep objects": lambda: whole(b'{"a":' * 200_000 + b"1" + b"}" * 200_000),
    "deeper than what reads it": lambda: whole(b"[" * 700 + b"]" * 700),
    "wide": lambda: whole(b"[" + b"{}," * (10 * MB) + b"{}]"),
    "wide and of small objects": lambda: whole(b"[" + b'{"":0},' * (560 * 1024) + b"{}]"),
    "headers without end": lambda: endless(HEAD, b"x-a: " + b"b" * 4000 + b"\r\n", 100_000),
    "a header without end": lambda: endless(HEAD + b"x-a: ", b"b" * MB, 2048),
    "a status line without end": lambda: endless(b"HTTP/1.1 200 ", b"b" * MB, 2048),
    "a chunk of senseless length": lambda: endless(HEAD + b"transfer-encoding: chunked\r\n\r\n", b"zz\r\n{}\r\n", 1),
}


def ask(endpoint: FaultServer, path: str) -> tuple[str, int]:
    """Send the request in a separate process; return its output and memory growth in megabytes."""
    argv = [sys.executable, "-c", ASKING, endpoint.base_url, path]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr[-2000:]
    said, grown = done.stdout.rsplit("\n", 2)[:2]
    return said, int(grown)


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_an_answer_out_of_bounds_is_an_error_in_words(endpoint: FaultServer, bomb: str) -> None:
    endpoint.will_play(BOMBS[bomb]())
    said, grown = ask(endpoint, "chat")
    assert said.startswith(("EndpointUnavailable: http", "RequestRefused: http")) and "\n" not in said
    assert grown < MAX_MB


@pytest.mark.slow
@pytest.mark.parametrize("path", ["completions", "models", "tokenize", "metrics", "doctor"])
@pytest.mark.parametrize("bomb", ["2 GB", "gzip", "deep"])
def test_every_path_is_bounded(endpoint: FaultServer, bomb: str, path: str) -> None:
    endpoint.will_play(BOMBS[bomb]())
    said, grown = ask(endpoint, path)
    assert said.startswith(("EndpointUnavailable", "got"))
    assert grown < MAX_MB


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("identity", bytes),
    ],
)
async def test_a_packed_reply_is_read(endpoint: FaultServer, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    from harness.endpoint.chat import ChatModel
    from harness.model import Sampling

    text = "né\U0001f600 " * 300_000  # unpacked in several pieces, and large
    body = pack(json.dumps(completion(text), ensure_ascii=False).encode())
    endpoint.will_answer(200, body, {"content-encoding": encoding})
    async with ChatModel(endpoint.base_url, "m", Sampling(), api_key=None) as chat:
        assert (await chat.complete({"prompt": "x"})).content == text
        assert endpoint.seen[0].headers["accept-encoding"] == "gzip, deflate"


def test_of_a_page_its_title_and_headings_are_reported() -> None:
    nginx = b"<html>\r\n<head><title>504 Gateway Time-out</title></head>\r\n<body><center><h1>504 Gateway Time-out</h1>"
    assert RawAnswer(504, nginx, "text/html").words == "504 Gateway Time-out"
    cloudflare = (
        b"<!DOCTYPE html><!--[if lt IE 7]> x <![endif]--><title>h | 524: A timeout occurred</title><h2>Host</h2>"
    )
    assert RawAnswer(524, cloudflare, "text/plain").words == "h | 524: A timeout occurred; Host"
    bare = b"<html><style>p {}</style><p>No &amp; upstream<script>x()"
    assert RawAnswer(502, bare).words == "No & upstream"
    assert RawAnswer(200, b"<think>hm</think>", "text/plain").words == "<think>hm</think>"


def test_an_answer_of_a_gateway_has_no_markup_in_its_words(endpoint: FaultServer) -> None:
    endpoint.will_send(
        answer(
            400, b"<html><head><title>400 Request Header Too Large</title></head></html>", {"content-type": "text/html"}
        )
    )
    said, _ = ask(endpoint, "chat")
    assert "400 Request Header Too Large" in said and "<" not in said
