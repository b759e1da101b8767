"""A Docker engine of a test's own, which may be stopped, restarted and filled up. The shared one is left alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tbench.sandbox.docker.engine import Engine

_BOUND_SEC = 60.0


class OwnEngine:
    """A dockerd on a private socket, with its data in a tmpfs of `size_mb`; images come from the shared engine."""

    def __init__(self, *options: str, size_mb: int = 3000) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tbe-"))  # short: containerd's sockets lie below
        self.root = self.directory / "root"
        self.root.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tbench-test", self.root], check=True)
        self.host = f"unix://{self.directory}/d.sock"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        # Apart from it, as on any machine with systemd: it lives on while the engine restarts.
        state = [*("--address", f"{self.directory}/c.sock"), *("--root", f"{self.directory}/cr")]
        self._containerd = self._run("containerd", *state, "--state", f"{self.directory}/cs")

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def start(self) -> None:
        """Returns when it answers."""
        # In a network namespace of its own: without a bridge, dockerd deletes the interface docker0 that it finds.
        self._process = self._run(
            *(
                "unshare",
                "--net",
                "dockerd",
                "-H",
                self.host,
                "--data-root",
                str(self.root),
                "--containerd",
                f"{self.directory}/c.sock",
            ),
            *("--exec-root", str(self.directory / "x"), "--pidfile", str(self.directory / "pid")),
            *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false"),
            *self._options,
        )
        ends_at = time.monotonic() + _BOUND_SEC
        while not self._answers():
            if time.monotonic() > ends_at or self._process.poll() is not None:
                raise AssertionError((self.directory / "log").read_text()[-3000:])
            threading.Event().wait(0.05)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(str(self.directory / "d.sock"))
            client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b"200 OK" in client.recv(100)
        return False

    @property
    def process_id(self) -> int:
        """Process id of dockerd."""
        assert self._process is not None
        return self._process.pid

    def tell(self, number: int) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Returns when it has ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(_BOUND_SEC)
            self._process = None

    def start_again(self) -> None:
        """Start it where it does not run."""
        if self._process is None:
            self.start()

    def _remove_containers(self) -> None:
        """Their processes would outlive the engine's."""
        if self._process is None:
            self.start()
        listed = ["docker", "-H", self.host, "ps", "--all", "--quiet"]
        found = subprocess.run(listed, capture_output=True, text=True, timeout=_BOUND_SEC).stdout.split()
        if found:
            subprocess.run(
                ["docker", "-H", self.host, "rm", "--force", *found], capture_output=True, timeout=_BOUND_SEC
            )

    def load(self, images: list[str]) -> None:
        """Copy images of the shared engine."""
        with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as saving:
            subprocess.run(
                ["docker", "-H", self.host, "load", "-q"], stdin=saving.stdout, check=True, stdout=subprocess.DEVNULL
            )

    def remove(self) -> None:
        """End what runs in it, and take its directory away."""
        with contextlib.suppress(Exception):
            self._remove_containers()
            self.stop()
        self._containerd.kill()
        self._containerd.wait(_BOUND_SEC)
        # With live-restore its containers outlive it; their shims have the directory in their arguments.
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{self.directory}/" in (process / "cmdline").read_bytes().decode("utf-8", "replace"):
                    os.kill(int(process.name), signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{self.directory}/")]):
            subprocess.run(["umount", "--lazy", mount], capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def own_engine(
    *options: str, images: list[str], size_mb: int = 3000, outage_sec: float = 120.0
) -> Iterator[tuple[OwnEngine, Engine]]:
    """The engine, and tbench's connection to it."""
    own = OwnEngine(*options, size_mb=size_mb)
    try:
        own.start()
        own.load(images)
        engine = Engine.connect(8, host=own.host, outage_sec=outage_sec)
        yield own, engine
        engine.close()
    finally:
        own.remove()
