"""TLS of a test's own: a certificate that is its own CA, and an engine of the test's own that is reached over TLS."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_engine import OwnEngine

_INSIDE = 2376
"""The port at which the engine listens, in the network namespace that it has to itself."""
_RELAY = """
import socket, sys, threading
def copy(one, other):
    try:
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (one, other):
            each.close()
listening = socket.socket(fileno=int(sys.argv[1]))
while True:
    near, far = listening.accept()[0], socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    for pair in ((near, far), (far, near)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""


def make_certificate(directory: Path, name: str = "localhost", hosts: str = "DNS:localhost,IP:127.0.0.1") -> Path:
    """Make ca.pem, cert.pem and key.pem of one certificate for this host; returns the directory."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    directory.mkdir(exist_ok=True)
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={hosts}"]
    files = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")]
    making = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(making, check=True, capture_output=True)
    shutil.copy(directory / "cert.pem", directory / "ca.pem")
    return directory


def tls_options(directory: Path) -> list[str]:
    """Options that make an engine listen with TLS, only for clients with a certificate of this CA."""
    files = [
        f"--tls{name}={directory}/{file}.pem" for name, file in (("cacert", "ca"), ("cert", "cert"), ("key", "key"))
    ]
    return ["--host", f"tcp://127.0.0.1:{_INSIDE}", "--tlsverify", *files]


@contextlib.contextmanager
def reached_over_tls(own: OwnEngine) -> Iterator[str]:
    """The address of an engine with these options, for as long as it is not started again."""
    inside = ["nsenter", "--net", "--target", str(own.process_id)]
    subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
    # A socket stays in the network namespace in which it was made.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [*inside, sys.executable, "-c", _RELAY, str(listening.fileno()), str(_INSIDE)]
        with subprocess.Popen(command, pass_fds=[listening.fileno()]) as relay:
            try:
                yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
            finally:
                relay.kill()
