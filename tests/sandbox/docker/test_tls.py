"""An engine that wants TLS: what leads to it passes everything on, in both directions, and says why where it cannot."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from own_tls import make_certificate

from tbench.errors import EngineUnavailable
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.tls import CERTIFICATES, VERIFY, TlsForward, tls_context

pytestmark = [
    pytest.mark.usefixtures("left_by_the_sdk"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
LARGE = bytes(range(256)) * 40_000
BOUND_SEC = 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("foreign"), "other")


@contextlib.contextmanager
def served(files: Path, serve: Callable[[ssl.SSLSocket], None], *, asks: bool = True) -> Iterator[str]:
    """A server that wants TLS, and where it asks for one, a certificate of its CA."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files / "ca.pem")
    context.load_cert_chain(files / "cert.pem", files / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def one(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), connection:
                connection.settimeout(BOUND_SEC)
                with context.wrap_socket(connection, server_side=True) as wrapped:
                    serve(wrapped)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=one, args=[listening.accept()[0]], daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join(BOUND_SEC)


def received(connection: socket.socket) -> bytes:
    pieces = []
    while data := connection.recv(1 << 16):
        pieces.append(data)
    return b"".join(pieces)


def answers_at_the_end(connection: ssl.SSLSocket) -> None:
    """Read until nothing more comes, and only then answer with the same."""
    connection.sendall(b"begun:" + received(connection))


@contextlib.contextmanager
def forwarded(host: str, **variables: str) -> Iterator[TlsForward]:
    context = tls_context(variables)
    assert context is not None
    with contextlib.closing(TlsForward(host, context)) as forward:
        yield forward


def connected(forward: TlsForward) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(BOUND_SEC)
    client.connect(forward.host.removeprefix("unix://"))
    return client


def test_a_direction_that_ends_leaves_the_other_and_large_data_arrives_whole(files: Path) -> None:
    with served(files, answers_at_the_end) as host, forwarded(host, **secure(files)) as forward:
        for _ in range(3):
            with connected(forward) as client:
                client.sendall(LARGE)
                client.shutdown(socket.SHUT_WR)
                assert received(client) == b"begun:" + LARGE


def echo(connection: ssl.SSLSocket) -> None:
    while data := connection.recv(1 << 14):
        connection.sendall(data)


def test_both_directions_are_under_way_at_once(files: Path) -> None:
    with served(files, echo) as host, forwarded(host, **secure(files)) as forward, connected(forward) as client:

        def send() -> None:
            client.sendall(LARGE)
            client.shutdown(socket.SHUT_WR)

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        assert received(client) == LARGE
        sending.join(BOUND_SEC)


def sends_before_it_reads(connection: ssl.SSLSocket) -> None:
    connection.sendall(LARGE)
    connection.sendall(b"%d" % len(received(connection)))


def test_a_server_that_does_not_read_yet_is_read(files: Path) -> None:
    with (
        served(files, sends_before_it_reads) as host,
        forwarded(host, **secure(files)) as forward,
        connected(forward) as client,
    ):

        def send() -> None:
            client.sendall(LARGE)
            client.shutdown(socket.SHUT_WR)

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        time.sleep(0.5)  # until everything on the way to the server is full
        assert received(client) == LARGE + b"%d" % len(LARGE)
        sending.join(BOUND_SEC)


def test_many_connections_do_not_disturb_each_other_and_all_are_gone_in_the_end(files: Path) -> None:
    before = threading.active_count()
    with served(files, echo) as host, contextlib.ExitStack() as stack:
        with forwarded(host, **secure(files)) as forward:
            clients = [stack.enter_context(connected(forward)) for _ in range(30)]
            for number, client in enumerate(clients):
                client.sendall(b"%d" % number)
            assert [client.recv(100) for client in clients] == [b"%d" % number for number in range(30)]
        assert [received(client) for client in clients] == [b""] * 30
        assert not Path(forward.host.removeprefix("unix://")).exists()
        forward.close()  # once more does no harm
    ends_at = time.monotonic() + BOUND_SEC
    while threading.active_count() > before and time.monotonic() < ends_at:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_a_server_that_hangs_up_ends_the_connection(files: Path) -> None:
    def hangs_up(connection: ssl.SSLSocket) -> None:
        connection.sendall(b"one word")

    with served(files, hangs_up) as host, forwarded(host, **secure(files)) as forward, connected(forward) as client:
        assert received(client) == b"one word"


def test_without_the_wish_to_verify_any_certificate_is_taken(files: Path, foreign: Path) -> None:
    takes_any = {CERTIFICATES: str(foreign)}
    with (
        served(files, answers_at_the_end, asks=False) as host,
        forwarded(host, **takes_any) as forward,
        connected(forward) as client,
    ):
        client.sendall(b"hello")
        client.shutdown(socket.SHUT_WR)
        assert received(client) == b"begun:hello"


def secure(files: Path) -> dict[str, str]:
    return {VERIFY: "1", CERTIFICATES: str(files)}


def test_tls_is_asked_for_by_either_variable(files: Path) -> None:
    assert tls_context({}) is None
    assert tls_context({VERIFY: ""}) is None
    verifies, takes_any = tls_context(secure(files)), tls_context({CERTIFICATES: str(files)})
    assert verifies is not None and verifies.verify_mode is ssl.CERT_REQUIRED and verifies.check_hostname
    assert takes_any is not None and takes_any.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize("missing", ["ca.pem", "cert.pem", "key.pem"])
def test_files_that_are_missing_are_one_line_with_their_directory(missing: str, files: Path, tmp_path: Path) -> None:
    shutil.copytree(files, tmp_path / "some")
    (tmp_path / "some" / missing).unlink()
    with pytest.raises(
        EngineUnavailable, match=f"^the TLS files in {tmp_path}/some cannot be used: No such file"
    ) as no:
        tls_context(secure(tmp_path / "some"))
    assert str(no.value).endswith("; set DOCKER_CERT_PATH to the directory of ca.pem, cert.pem and key.pem")


# -- why an engine is not there ---------------------------------------------------------------------


def why(host: str, monkeypatch: pytest.MonkeyPatch, files: Path) -> str:
    for name, value in secure(files).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EngineUnavailable) as unavailable:
        Engine.connect(host=host)
    words = str(unavailable.value)
    assert words.startswith(f"no container engine answers at {host}: ") and "\n" not in words
    assert words.endswith(f"; 'tbench doctor --engine {host}' may say more")
    return words


def test_a_certificate_of_another_ca_is_refused_by_its_name(
    files: Path, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(files, answers_at_the_end, asks=False) as host:
        assert "its certificate is not accepted: self-signed certificate" in why(host, monkeypatch, foreign)


def test_a_certificate_that_the_engine_refuses_is_reported(
    files: Path, foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = shutil.copytree(foreign, tmp_path / "mixed")
    shutil.copy(files / "ca.pem", mixed / "ca.pem")
    with served(files, answers_at_the_end) as host:
        words = why(host, monkeypatch, mixed)
    # The alert is lost where the connection is cut before it is read.
    assert "TLS failed: tlsv1 alert unknown ca" in words or "it may refuse cert.pem" in words


def test_an_engine_without_tls_is_reported(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as connection:
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        host = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        assert "TLS failed: wrong version number" in why(host, monkeypatch, files)
        listening.shutdown(socket.SHUT_RDWR)
        answering.join(BOUND_SEC)


def test_no_one_and_an_unknown_name_are_reported(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert "Connection refused" in why(f"tcp://127.0.0.1:{port}", monkeypatch, files)
    assert "Name or service not known" in why("tcp://no-such-host.invalid:2376", monkeypatch, files)
