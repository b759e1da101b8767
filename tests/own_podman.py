"""A Podman service of a test's own, on a private socket and storage: the machine's own Podman is left alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tbench.sandbox.docker.engine import Engine

START_SEC, END_SEC = 60.0, 60.0
# What a machine without systemd or with fewer capabilities needs; elsewhere it does no harm.
CONFIGURATION = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
tmp_dir = "{directory}/tmp"
cgroup_manager = "cgroupfs"
runtime = "{runtime}"
[network]
network_config_dir = "{directory}/networks"
"""


@contextlib.contextmanager
def own_podman() -> Iterator[Engine]:
    """A service with an empty storage of its own; all of it is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="podman-"))  # Podman takes no run directory of more than 50 characters
    configuration = directory / "containers.conf"
    runtime = "crun" if shutil.which("crun") else "runc"
    configuration.write_text(CONFIGURATION.format(runtime=runtime, directory=directory))
    command = ["podman", "--root", str(directory / "storage"), "--runroot", str(directory / "run")]
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    environment |= {"CONTAINERS_CONF": str(configuration), "HOME": str(directory)}
    path = directory / "podman.sock"
    service = subprocess.Popen(
        [*command, "system", "service", "--time=0", f"unix://{path}"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(path, service)
        engine = Engine.connect(8, host=f"unix://{path}")
        yield engine
        engine.close()
    finally:
        service.terminate()
        service.wait(END_SEC)
        for words in ("rm -af", "volume rm -af", "network prune -f", "rmi -af"):
            subprocess.run([*command, *words.split()], env=environment, capture_output=True, timeout=END_SEC)
        _remove(directory)


def _wait_for(path: Path, service: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + START_SEC
    while time.monotonic() < ends and service.poll() is None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            return
        time.sleep(0.05)
    pytest.fail(f"podman's service does not answer at {path}; it ended with {service.poll()}")


def _remove(directory: Path) -> None:
    """Not by `podman system reset`, which may reach beyond this storage."""
    # Podman lets a conmon wait five minutes after each exec, which would then write here again.
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{directory}/".encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{directory}/")]):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, timeout=END_SEC)
    shutil.rmtree(directory, ignore_errors=True)
