"""An HTTP server that plays a list of canned behaviours, one per request: to see a client through bad days.

Raw sockets, so that it can do what no framework would. Use it through the `endpoint` fixture of tests/conftest.py.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RECORDED = Path(__file__).parents[1] / "../shared/data/vllm-wire"
REASONS = {200: "OK", 400: "Bad Request", 503: "Service Unavailable"}

Play = Callable[[socket.socket], None]


class Seen(NamedTuple):
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class FaultServer:
    """Behaviours are queued with the `will_…` methods; once they are used up, the last one repeats.

    `always_list` answers every `GET /models` apart from the queue, `answer_all` and `freeze` are about everything.
    `go_away` and `come_back` close and open the port.
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.listed: list[Seen] = []
        """Answers of `always_list`."""
        self.first_request = threading.Event()
        self._plays: list[Play] = []
        self._listing: Play | None = None
        self._all: Play | None = None
        self._choice: Callable[[Seen], bytes | None] | None = None
        # Keeps the port while nobody listens there: otherwise another test's server could get it, and the requests.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self._address = self._reserved.getsockname()
        self._listener = socket.create_server(self._address, backlog=64)
        self._ending = threading.Event()
        self.keeps = False
        """Whether a connection goes on after an answer; else it ends, and the answer says so."""
        self.tls: ssl.SSLContext | None = None
        """TLS context of connections."""
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._choosing = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def connections(self) -> int:
        """How many there were so far."""
        return len(self._connections)

    @property
    def base_url(self) -> str:
        host, port = self._address
        return f"http{'s' if self.tls else ''}://{host}:{port}/v1"

    # What to do with the next request that has no behaviour yet.

    def will_answer(self, status: int = 200, body: Any = None, headers: dict[str, str] | None = None) -> None:
        """`body`: bytes as they are, anything else as JSON."""
        self.will_send(answer(status, body, headers))

    def will_reply(self, content: str | None = "hello", **changes: Any) -> None:
        """A chat completion. `changes`: finish_reason, usage, and anything else for the message."""
        self.will_answer(200, completion(content, **changes))

    def will_complete(self, text: str, finish_reason: str = "stop") -> None:
        """A completion of /v1/completions."""
        self.will_answer(200, text_completion(text, finish_reason))

    def will_list(self, *cards: dict[str, Any]) -> None:
        self.will_answer(200, {"object": "list", "data": list(cards)})

    def will_replay(self, name: str) -> None:
        """A recorded answer of vLLM, from the file of that name."""
        response = json.loads((RECORDED / f"{name}.json").read_text())["response"]
        self.will_answer(response["status"], response["json"])

    def will_send(self, raw: bytes, then_wait: bool = False) -> None:
        """These very bytes, then end of stream; or, with `then_wait`, nothing more for ever."""

        def play(connection: socket.socket) -> None:
            connection.sendall(raw)
            if then_wait:
                self._ending.wait()

        self._plays.append(play)

    def will_play(self, play: Play) -> None:
        """Action of `play` on the connection."""
        self._plays.append(play)

    def will_trickle(self, raw: bytes, every_sec: float) -> None:
        """These bytes, then a space now and then for ever."""

        def play(connection: socket.socket) -> None:
            connection.sendall(raw)
            while not self._ending.wait(every_sec):
                connection.sendall(b" ")

        self._plays.append(play)

    def will_drip(self, raw: bytes, pieces: int, every_sec: float) -> None:
        """These bytes to their end, in so many pieces with a pause before each."""
        size = -(-len(raw) // pieces)

        def play(connection: socket.socket) -> None:
            for start in range(0, len(raw), size):
                self._ending.wait(every_sec)
                connection.sendall(raw[start : start + size])

        self._plays.append(play)

    def will_hang(self) -> None:
        """No answer, connection open: a vLLM on SIGTERM."""
        self._plays.append(lambda connection: bool(self._ending.wait()) and None)

    def will_disconnect(self) -> None:
        """End of stream without a byte: an idle connection closed by the server."""
        self._plays.append(lambda connection: None)

    def will_hang_up(self) -> None:
        """End of stream without a byte, also where connections are kept."""
        self._plays.append(lambda connection: connection.shutdown(socket.SHUT_RDWR))

    def will_reset(self) -> None:
        """A TCP reset."""
        linger = struct.pack("ii", 1, 0)
        self._plays.append(lambda c: c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger))

    # What holds at once, whatever is queued.

    def always_list(self, *cards: dict[str, Any]) -> None:
        """Every `GET /models` is answered with these, and not kept in `seen`."""
        raw = answer(200, {"object": "list", "data": list(cards)})
        self._listing = lambda connection: connection.sendall(raw)

    def answer_by(self, choose: Callable[[Seen], bytes | None]) -> None:
        """Choose the answer to a request; None never answers. `seen` keeps all requests."""
        self._choice = choose

    def answer_all(self, status: int, body: Any = None) -> None:
        """Everything, `GET /models` included, until `behave`."""
        raw = answer(status, body)
        self._all = lambda connection: connection.sendall(raw)

    def freeze(self) -> None:
        """Connections are taken and nothing is ever answered, until `behave` for those that come after it."""
        self._all = lambda connection: bool(self._ending.wait()) and None

    def behave(self) -> None:
        self._all = None

    def go_away(self, *, hang_up: bool = True) -> None:
        """New connections are refused. Open ones end, or stay open without an answer."""
        self._stop_listening()
        if hang_up:
            self._hang_up()

    def come_back(self) -> None:
        """Listen again, on the same port."""
        self._listener = socket.create_server(self._address, backlog=64)
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    # Machinery

    def close(self) -> None:
        """May be called again."""
        self._ending.set()
        self._stop_listening()
        self._hang_up()
        for thread in self._threads:
            thread.join()
        self._reserved.close()

    def _stop_listening(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()

    def _hang_up(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._ending.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._connections.append(connection)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            stack.enter_context(connection)
            if self.tls is not None:
                connection = stack.enter_context(self.tls.wrap_socket(connection, server_side=True))
            while seen := _read(connection):
                self._choose(seen)(connection)
                if not self.keeps:
                    return

    def _choose(self, seen: Seen) -> Play:
        with self._lock:
            if self._all is not None:
                return self._all
            if self._listing is not None and seen.path.endswith("/models"):
                self.listed.append(seen)
                return self._listing
            choice = self._choice
            play = None if choice else self._plays[min(len(self.seen), len(self._plays) - 1)]
            self.seen.append(seen)
            self.first_request.set()
        if choice is None:
            assert play is not None
            return play
        with self._choosing:  # a choice may take a while, and `GET /models` is answered meanwhile
            return self._as_chosen(choice(seen))

    def _as_chosen(self, raw: bytes | None) -> Play:
        return lambda connection: bool(self._ending.wait()) and None if raw is None else connection.sendall(raw)


def answer(status: int, body: Any, headers: dict[str, str] | None = None) -> bytes:
    """An HTTP answer. `body`: bytes as they are, anything else as JSON."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    length = str(len(payload))
    named = {"content-type": "application/json", "content-length": length, "connection": "close", **(headers or {})}
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Whatever')}"]
    lines += [f"{name}: {value}" for name, value in named.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


def completion(content: str | None, finish_reason: str | None = "stop", **changes: Any) -> dict[str, Any]:
    """A body like vLLM's."""
    usage = changes.pop("usage", {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13})
    message = {"role": "assistant", "content": content, **changes}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
        "usage": usage,
    }


def text_completion(text: str, finish_reason: str = "stop") -> dict[str, Any]:
    """A body like vLLM's at /v1/completions."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, "prompt_tokens_details": None}
    return {"id": "cmpl-1", "object": "text_completion", "model": "tiny", "choices": [choice], "usage": usage}


def _read(connection: socket.socket) -> Seen | None:
    with connection.makefile("rb") as stream:
        first = stream.readline().decode("latin-1").split()
        if len(first) < 2 or not first[0].isascii() or not first[0].isupper():
            return None  # not HTTP, such as the beginning of TLS
        headers = {}
        while line := stream.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        body = stream.read(length)
        if len(body) < length:
            return None  # who asked was killed in the middle of it
    return Seen(first[0], first[1], headers, body)
