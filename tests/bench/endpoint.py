"""A chat endpoint in a process of its own: every reply is the same, after a fixed latency, with a count of tokens that
grows with the request.

    with Endpoint(reply, latency_sec=1.0) as base_url: ...

As little as HTTP allows, so that the figures are the runner's and not the server's.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

MODEL = "fixed-reply"
_TOKENS, _BYTES_PER_TOKEN = b"      1000", 4
"""What stands for the tokens of a request: as many characters for every number, so that no length changes."""


class Endpoint:
    """The server's process, as a context manager; gives its base URL."""

    def __init__(self, reply: str, latency_sec: float, seats: int = 1 << 20) -> None:
        """`seats`: requests that it works on at once; the others queue, as at vLLM."""
        self._argv = [sys.executable, str(Path(__file__)), reply, str(latency_sec), str(seats)]

    def __enter__(self) -> str:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def bodies(reply: str) -> tuple[bytes, bytes]:
    """Of the list of models, and of a completion."""
    card = {"id": MODEL, "object": "model", "created": 0, "owned_by": "bench", "max_model_len": 1 << 20}
    message = {"role": "assistant", "content": reply}
    completion = {
        "id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050},
    }  # fmt: skip
    listing, said = json.dumps({"object": "list", "data": [card]}).encode(), json.dumps(completion).encode()
    return listing, said.replace(b'"prompt_tokens": 1000', b'"prompt_tokens":' + _TOKENS)


def response(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def serve(reply: str, latency_sec: float, seats: int) -> None:
    free = asyncio.Semaphore(seats)
    listing, completion = map(response, bodies(reply))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"get"):
                    writer.write(listing)
                else:
                    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                    await reader.readexactly(length)
                    async with free:
                        await asyncio.sleep(latency_sec)
                    tokens = b"%*d" % (len(_TOKENS), length // _BYTES_PER_TOKEN)
                    writer.write(completion.replace(_TOKENS, tokens))
                await writer.drain()
                if b"connection: close" in head:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()[:2]
    print(f"http://{host}:{port}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
