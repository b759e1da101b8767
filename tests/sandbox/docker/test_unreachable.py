"""Engines that cannot be connected to: one line each with the address, the reason and what to do, in bounded time."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tbench.errors import EngineUnavailable
from tbench.sandbox.docker import engine as engine_module
from tbench.sandbox.docker.engine import Engine

pytestmark = [
    pytest.mark.usefixtures("left_by_the_sdk"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class _NoEngine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def another_service() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _NoEngine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def hangs_up() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            with pytest.raises(OSError):
                while True:
                    with listening.accept()[0] as accepted:
                        accepted.recv(1 << 16)

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    yield f"tcp://127.0.0.1:{port}"


@contextlib.contextmanager
def unknown_name() -> Iterator[str]:
    yield "tcp://no-such-host.invalid:2376"


def why(host: str) -> str:
    with pytest.raises(EngineUnavailable) as unavailable:
        Engine.connect(host=host)
    words = str(unavailable.value)
    assert "\n" not in words and "Error" not in words and len(words) < 300, words
    return words


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (silent, " within 1 s; 'tbench doctor --engine {host}' may say more"),
        (another_service, ": it answers 404 Not Found; 'tbench doctor --engine {host}' may say more"),
        (hangs_up, ": Remote end closed connection without response; 'tbench doctor --engine {host}' may say more"),
        (nobody, ": start one there, use another address, or give --engine oci: to do without"),
        (unknown_name, "; 'tbench doctor --engine {host}' may say more"),
    ],
)
def test_what_is_no_engine_is_one_line_with_the_reason(
    place: Callable[[], contextlib.AbstractContextManager[str]], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "CONNECT_SEC", 1.0)
    with place() as host:
        words = why(host)
    assert words.startswith(f"no container engine answers at {host}")
    assert reason.format(host=host) in words


def test_a_socket_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    host = f"unix://{tmp_path}/no.sock"
    what_to_do = "start one there, use another address, or give --engine oci: to do without"
    assert why(host) == f"no container engine answers at {host}: {what_to_do}"


def test_the_address_that_docker_host_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent() as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        monkeypatch.setattr(engine_module, "CONNECT_SEC", 1.0)
        with pytest.raises(
            EngineUnavailable, match=rf"^no container engine answers at {host} within 1 s; 'tbench doct"
        ):
            Engine.connect()


@pytest.mark.engine
def test_later_calls_have_more_time_than_the_first() -> None:
    engine = Engine.connect()
    assert engine.api.timeout > engine_module.CONNECT_SEC
    engine.close()
