"""An image registry of a test's own (Debian's docker-registry), and a front before it that misbehaves as told."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import http.client
import io
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

USER, PASSWORD = "lab", "not-a-secret-1"
_HTPASSWD = f"{USER}:$2y$04$abcdefghijklmnopqrstuuidHxhhX1rLLMWEHLlIJ7bcj5JrGph6e\n"
LOGIN = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
"""The `auth` value that `docker login` writes into config.json."""
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
_CONFIG, _LAYER = (
    f"application/vnd.docker.{kind}" for kind in ("container.image.v1+json", "image.rootfs.diff.tar.gzip")
)
_TLS = 0x16
_START_SEC, _INSTALL_SEC, _SILENCE_SEC = 30.0, 300.0, 60.0


@functools.cache
def _program() -> str | None:
    """Path of docker-registry, installed where that can be done."""
    if shutil.which("docker-registry") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "docker-registry"]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env=environment, capture_output=True, timeout=_INSTALL_SEC, check=False)
    return shutil.which("docker-registry")


class Pushed(NamedTuple):
    """An image in a registry."""

    name: str
    """Repository without the registry."""
    tag: str
    digest: str
    layers: tuple[str, ...]
    """Digests of its layers."""
    size: int
    """Bytes of layers and configuration, as they are stored."""

    def at(self, registry: OwnRegistry | Front, *, pinned: bool = False) -> str:
        """How a task names it: by its tag, or by tag and digest."""
        return f"{registry.address}/{self.name}:{self.tag}" + (f"@{self.digest}" if pinned else "")


class OwnRegistry:
    """A running registry; `push` makes an image that no engine has seen before."""

    def __init__(self, address: str, *, has_login: bool) -> None:
        self.address = address
        self._has_login = has_login

    def push(self, *, size: int = 2000, architecture: str = "amd64", layers: int = 1) -> Pushed:
        """Push an image whose layers are of `size` random bytes each."""
        name, packed, diffs = f"lab/{uuid.uuid4().hex[:12]}", list[bytes](), list[str]()
        for _ in range(layers):
            tar = _tar_of(os.urandom(size))
            diffs.append(_digest(tar))
            packed.append(gzip.compress(tar, 1, mtime=0))
        config = {"architecture": architecture, "os": "linux", "config": {"Labels": {"tbench.test": "registry"}}}
        config_blob = json.dumps({**config, "rootfs": {"type": "layers", "diff_ids": diffs}}).encode()
        for blob in (*packed, config_blob):
            self._push_blob(name, blob)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": _CONFIG, "size": len(config_blob), "digest": _digest(config_blob)},
            "layers": [{"mediaType": _LAYER, "size": len(blob), "digest": _digest(blob)} for blob in packed],
        }
        digest = self.push_manifest(name, "1", MANIFEST, manifest)
        size = len(config_blob) + sum(map(len, packed))
        return Pushed(name, "1", digest, tuple(_digest(blob) for blob in packed), size)

    def push_manifest(self, name: str, tag: str, kind: str, manifest: object) -> str:
        """Push a manifest whose blobs are there; returns its digest."""
        body = json.dumps(manifest).encode()
        self._request("PUT", f"/v2/{name}/manifests/{tag}", body, kind)
        return _digest(body)

    def _push_blob(self, name: str, blob: bytes) -> None:
        place = self._request("POST", f"/v2/{name}/blobs/uploads/", b"", "")["Location"]
        path = "/" + place.split("/", 3)[3]
        self._request("PUT", f"{path}&digest={_digest(blob)}", blob, "application/octet-stream")

    def _request(self, method: str, path: str, body: bytes, kind: str) -> dict[str, str]:
        headers = {"Content-Type": kind} if kind else {}
        if self._has_login:
            headers["Authorization"] = f"Basic {LOGIN}"
        with contextlib.closing(http.client.HTTPConnection(self.address, timeout=_SILENCE_SEC)) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            words = response.read()
            assert response.status < 300, (method, path, response.status, words)
            return dict(response.getheaders())


def _tar_of(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo(f"content-{uuid.uuid4().hex}")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@contextlib.contextmanager
def own_registry(*, login: bool = False) -> Iterator[OwnRegistry]:
    """A registry on a free port of the loopback, with a directory of its own; with `login` it asks who one is."""
    command = _program()
    if command is None:
        pytest.skip("docker-registry is not installed; as root, apt could do that where a mirror answers")
    with tempfile.TemporaryDirectory(prefix="tbench-registry-") as name:
        directory = Path(name)
        (directory / "htpasswd").write_text(_HTPASSWD)
        access = {"auth": {"htpasswd": {"realm": "test", "path": str(directory / "htpasswd")}}} if login else {}
        configuration = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": str(directory / "data")}},
            "http": {"addr": "127.0.0.1:0", "secret": "of-a-test"},
            **access,
        }
        file = directory / "config.yml"
        file.write_text(json.dumps(configuration))  # which is YAML, too
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen([command, "serve", str(file)], stdout=log, stderr=log)
        try:
            yield OwnRegistry(_address(directory / "log", process), has_login=login)
        finally:
            process.terminate()
            process.wait(_SILENCE_SEC)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Where it listens, as it says itself."""
    ends = time.monotonic() + _START_SEC
    while time.monotonic() < ends and process.poll() is None:
        if found := re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text()):
            return found[1]
        time.sleep(0.02)
    pytest.fail(f"docker-registry does not begin: {log.read_text()[-2000:]}")


class Request(NamedTuple):
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]


Fault = Callable[["Front", socket.socket, bytes], None]
"""The handler of a request, called with the client and the request as received."""


class Front:
    """A port before a registry. What is asked goes through, but for what `fault` says."""

    def __init__(self, registry: OwnRegistry) -> None:
        self.registry = registry
        self.seen: list[Request] = []
        self.most_at_once = 0
        """Most blobs that were on their way at one time."""
        self.ending = threading.Event()
        self._faults: list[tuple[str, Fault, int]] = []
        self._lock = threading.Lock()
        self._at_once = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def fault(self, part: str, fault: Fault, times: int = 1 << 30) -> None:
        """Do this about the next so many requests whose path has `part` in it."""
        with self._lock:
            self._faults.append((part, fault, times))

    def behave(self) -> None:
        """Let everything through from now on."""
        with self._lock:
            self._faults.clear()

    def asked(self, part: str) -> int:
        """How many requests had `part` in their path."""
        return sum(part in request.path for request in self.seen)

    def close(self) -> None:
        self.ending.set()
        for each in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self.ending.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += (byte := connection.recv(1))
                if not byte or head[0] == _TLS:
                    return  # an engine tries TLS first
            self._choose(head)(self, connection, head)

    def _choose(self, head: bytes) -> Fault:
        lines = head.decode().split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        pairs = (line.partition(":") for line in lines[1:] if line)
        with self._lock:
            self.seen.append(Request(method, path, {name.lower(): value.strip() for name, _, value in pairs}))
            for index, (part, fault, times) in enumerate(self._faults):
                if part in path and times:
                    self._faults[index] = (part, fault, times - 1)
                    return fault
        return through

    @contextlib.contextmanager
    def behind(self, head: bytes) -> Iterator[socket.socket]:
        """A connection to the registry, which has the request."""
        host, _, port = self.registry.address.partition(":")
        is_blob = b"/blobs/" in head.partition(b"\r\n")[0]
        with socket.create_connection((host, int(port)), timeout=_SILENCE_SEC) as upstream:
            kept = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")]
            upstream.sendall(b"\r\n".join([*kept, b"Connection: close", b"", b""]))
            with self._lock:
                self._at_once += is_blob
                self.most_at_once = max(self.most_at_once, self._at_once)
            try:
                yield upstream
            finally:
                with self._lock:
                    self._at_once -= is_blob


def through(front: Front, connection: socket.socket, head: bytes) -> None:
    """The registry's own answer."""
    slowly(0)(front, connection, head)


def slowly(pause_sec: float, piece: int = 1 << 16) -> Fault:
    """The registry's answer in pieces with a pause before each."""

    def play(front: Front, connection: socket.socket, head: bytes) -> None:
        with front.behind(head) as upstream:
            while data := upstream.recv(piece):
                if pause_sec:
                    front.ending.wait(pause_sec)
                connection.sendall(data)

    return play


def cut_after(size: int, *, then_wait: bool = False) -> Fault:
    """So many bytes of the registry's answer, then the end; or, with `then_wait`, nothing more for ever."""

    def play(front: Front, connection: socket.socket, head: bytes) -> None:
        with front.behind(head) as upstream:
            left = size
            while left and (data := upstream.recv(min(left, 1 << 16))):
                connection.sendall(data)
                left -= len(data)
        if then_wait:
            front.ending.wait()

    return play


def answering(status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> Fault:
    """An answer that is not the registry's."""

    def play(front: Front, connection: socket.socket, head: bytes) -> None:
        named = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in named.items()), "", ""]
        connection.sendall("\r\n".join(lines).encode() + (b"" if head.startswith(b"HEAD") else body))

    return play


def never(front: Front, connection: socket.socket, head: bytes) -> None:
    """No answer, and the connection stays open."""
    front.ending.wait()


HTML = answering(200, b"<html><body>Please log in to the network</body></html>", "text/html")
TOO_MANY = json.dumps({"errors": [{"code": "TOOMANYREQUESTS", "message": "slow down"}]}).encode()


@contextlib.contextmanager
def front_of(registry: OwnRegistry) -> Iterator[Front]:
    """A front for the duration of the block."""
    front = Front(registry)
    try:
        yield front
    finally:
        front.close()
