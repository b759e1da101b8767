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
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.own_images import tools_tag

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
def own_podman(*, is_rootless: bool = False) -> Iterator[Engine]:
    """A service with an empty storage of its own, of root or of a user made for it; all of it is gone afterwards."""
    with contextlib.ExitStack() as stack:
        # Podman takes no run directory of more than 50 characters. Older kernels let users have no overlay in memory.
        directory = Path(tempfile.mkdtemp(prefix="podman-", dir="/var/tmp" if is_rootless else None))
        user = stack.enter_context(_new_user()) if is_rootless else ""
        yield from _serving(directory, user)


@contextlib.contextmanager
def _new_user() -> Iterator[str]:
    """An ordinary user with ranges of ids."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("useradd", "newuidmap", "slirp4netns", "setpriv"))):
        pytest.skip("a user of a test's own needs root, uidmap, slirp4netns and setpriv")
    name = f"tbench-{uuid.uuid4().hex[:8]}"
    subprocess.run(["useradd", "--no-create-home", name], check=True, capture_output=True, timeout=END_SEC)
    try:
        yield name
    finally:
        subprocess.run(["userdel", "--force", name], capture_output=True, timeout=END_SEC)


def load_from_docker(engine: Engine) -> None:
    """Copy base image and tools from Docker, if it has them: making them anew takes minutes."""
    images = ["debian:bookworm-slim", tools_tag()]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        engine.api.load_image(subprocess.run(["docker", "save", *images], check=True, capture_output=True).stdout)


def _serving(directory: Path, user: str) -> Iterator[Engine]:
    configuration = directory / "containers.conf"
    runtime = "runc" if shutil.which("runc") else "crun"  # Debian's crun starts nothing with hybrid cgroups
    configuration.write_text(CONFIGURATION.format(runtime=runtime, directory=directory))
    command = ["podman", "--root", str(directory / "storage"), "--runroot", str(directory / "run")]
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    environment |= {"CONTAINERS_CONF": str(configuration), "HOME": str(directory)}
    if user:
        environment["XDG_RUNTIME_DIR"] = str(directory / "user")
        (directory / "user").mkdir()
        command = [*f"setpriv --reuid={user} --regid={user} --init-groups".split(), *command]
        command += ["--storage-driver", "overlay"]
        subprocess.run(["chown", "-R", f"{user}:", str(directory)], check=True, timeout=END_SEC)
    path = directory / "podman.sock"
    service = subprocess.Popen(
        [*command, "system", "service", "--time=0", f"unix://{path}"],
        env=environment,
        cwd=directory,
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
            subprocess.run(
                [*command, *words.split()], env=environment, cwd=directory, capture_output=True, timeout=END_SEC
            )
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
