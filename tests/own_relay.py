"""A way to the shared engine: a relay from a socket of the test's own, which can be cut, or answer in its place."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

ENGINE = "/var/run/docker.sock"
_BOUND_SEC = 60.0
_REQUEST = re.compile(rb"((?:GET|HEAD|POST|PUT|DELETE) \S+) HTTP/1\.1\r\n")
CUT = b""


def refused_with(status: int, message: str) -> bytes:
    """The answer of an engine that refuses a request."""
    body = json.dumps({"message": message}).encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


FAILS = refused_with(500, "failed to create shim task: fork/exec: resource temporarily unavailable")
"""Answer of an engine whose machine has no room for another process."""


Answers = Callable[[str], bytes | None]


class OwnRelay:
    """Connections to its socket are led to the engine, until they are cut.

    `answers` is asked about each request, `GET /path`: what it returns is sent instead of the engine's answer, and the
    connection ends.
    """

    def __init__(self, directory: Path, answers: Answers = lambda _: None) -> None:
        self.answers = answers
        self._path = str(directory / "relay.sock")
        self._ends: list[socket.socket] = []
        self._copying: list[threading.Thread] = []
        self._passed = threading.Condition()
        self._bytes = 0
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self._path)
        self._listening.listen(100)
        self._serving = threading.Thread(target=self._serve, daemon=True, name="relay")
        self._serving.start()

    @property
    def host(self) -> str:
        return f"unix://{self._path}"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = self._listening.accept()[0], socket.socket(socket.AF_UNIX)
                far.connect(ENGINE)
                self._ends += [near, far]
                for pair in ((near, far), (far, near)):
                    words = (*pair, pair[0] is near)
                    self._copying.append(threading.Thread(target=self._copy, args=words, daemon=True, name="relay"))
                    self._copying[-1].start()

    def _copy(self, one: socket.socket, other: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                asked = _REQUEST.match(data) if asks else None
                if asked and (answer := self.answers(asked[1].decode())) is not None:
                    one.sendall(answer)
                    for each in (one, other):
                        each.shutdown(socket.SHUT_RDWR)
                    return
                other.sendall(data)
                with self._passed:
                    self._bytes += len(data)
                    self._passed.notify_all()
            other.shutdown(socket.SHUT_WR)

    def wait_for(self, number: int) -> None:
        """Returns when so many more bytes have been passed on, in both directions together."""
        with self._passed:
            ends_at = self._bytes + number
            assert self._passed.wait_for(lambda: self._bytes >= ends_at, _BOUND_SEC)

    def cut(self) -> None:
        """End all connections that there are, as a network does of which nobody hears; new ones are led on."""
        ends, self._ends = self._ends, []
        copying, self._copying = self._copying, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in copying:
            thread.join(_BOUND_SEC)
        for end in ends:
            end.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        # A connection that is being accepted at this moment joins the others, or it would never be closed.
        self._serving.join(_BOUND_SEC)
        self._listening.close()
        self.cut()


@contextlib.contextmanager
def own_relay(answers: Answers = lambda _: None) -> Iterator[OwnRelay]:
    with (
        tempfile.TemporaryDirectory(prefix="tbr-") as directory,
        contextlib.closing(OwnRelay(Path(directory), answers)) as relay,
    ):
        yield relay
