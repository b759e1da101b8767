"""A way to the shared engine that can be cut under whatever goes over it: a relay from a socket of the test's own."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

ENGINE = "/var/run/docker.sock"
_BOUND_SEC = 60.0


class OwnRelay:
    """Connections to its socket are led to the engine, until they are cut."""

    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "relay.sock")
        self._ends: list[socket.socket] = []
        self._copying: list[threading.Thread] = []
        self._passed = threading.Condition()
        self._bytes = 0
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self._path)
        self._listening.listen(100)
        threading.Thread(target=self._serve, daemon=True, name="relay").start()

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
                    self._copying.append(threading.Thread(target=self._copy, args=pair, daemon=True, name="relay"))
                    self._copying[-1].start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
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
        self._listening.close()
        self.cut()


@contextlib.contextmanager
def own_relay() -> Iterator[OwnRelay]:
    with (
        tempfile.TemporaryDirectory(prefix="tbr-") as directory,
        contextlib.closing(OwnRelay(Path(directory))) as relay,
    ):
        yield relay
