"""Starts Podman's service on a machine that has only the program, and advises on problems with Podman."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tbench.errors import UsageError
from tbench.sandbox.docker.discovery import find_engine, own_socket

_START_SEC = 60.0
_PAUSE_SEC = 0.2
_OVERLAY_SINCE = (5, 13)
"""The first kernel that lets ordinary users mount an overlay."""


@dataclass(frozen=True)
class PodmanMachine:
    """The facts about a machine that decide how Podman's service is started."""

    user: int
    environment: Mapping[str, str]
    has: Callable[[str], object] = shutil.which
    """Whether a program is installed."""
    root: Path = Path("/")
    kernel: str = platform.release()

    def command(self) -> list[str]:
        """Return the command that runs the service, with options where Podman's defaults do not work."""
        options = []
        # Debian's crun starts no container where cgroup versions 1 and 2 are mixed.
        if (self.root / "sys/fs/cgroup/unified").is_dir() and self.has("runc"):
            options += ["--runtime", "runc"]
        if not (self.root / "run/systemd/system").is_dir():
            options += ["--cgroup-manager", "cgroupfs"]
        return ["podman", *options, "system", "service", "--time=0", f"unix://{self.socket}"]

    def new_storage_conf(self) -> Path | None:
        """Return the file that should choose the overlay driver; None if a driver has been chosen, or it cannot work.

        The default may be vfs, which copies whole images. Once there is a storage, its driver cannot be changed.
        """
        home = Path(self.environment.get("HOME") or Path.home())
        data = Path(self.environment.get("XDG_DATA_HOME") or home / ".local/share")
        file = Path(self.environment.get("XDG_CONFIG_HOME") or home / ".config") / "containers/storage.conf"
        is_new = not (data / "containers/storage").exists() and not file.exists()
        works = self.has("fuse-overlayfs") or _version(self.kernel) >= _OVERLAY_SINCE
        return file if self.user != 0 and is_new and works else None

    @property
    def socket(self) -> Path:
        return own_socket(self.user, self.environment, self.root)


def start_podman(say: Callable[[str], None]) -> None:
    """Start Podman's service in a session of its own, and wait until it answers. Raises UsageError."""
    machine = PodmanMachine(os.geteuid(), os.environ)
    command, socket = machine.command(), machine.socket
    log = socket.with_name("tbench-podman.log")
    try:
        if (file := machine.new_storage_conf()) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text('[storage]\ndriver = "overlay"\n')
            say(f"engine: {file} now chooses Podman's overlay driver instead of the slow vfs")
        socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with log.open("wb") as output:
            service = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
    except OSError as error:
        raise UsageError(f"Podman's service cannot be started at {socket}: {error.strerror or error}") from error
    say(f"engine: starting Podman's service: {' '.join(command)} (output in {log})")
    ends_at = time.monotonic() + _START_SEC
    while find_engine().found is None:
        if service.poll() is not None or time.monotonic() > ends_at:
            last = next(reversed(log.read_text(errors="replace").strip().splitlines()), "it printed nothing")
            remedy = podman_remedy(last, is_rootless=machine.user != 0)
            raise UsageError(f"Podman's service does not answer: {last}{f'; {remedy}' if remedy else ''}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.wait(_PAUSE_SEC)


def podman_remedy(message: str, *, is_rootless: bool) -> str:
    """Return the remedy for an error of Podman or its runtime; empty if none is known."""
    low = message.lower()
    file = "~/.config/containers/containers.conf" if is_rootless else "/etc/containers/containers.conf"
    if "insufficient uids" in low or "subuid" in low or "newuidmap" in low:
        ranges = "--add-subuids 100000-165535 --add-subgids 100000-165535"
        return f"install uidmap, and give this user ids: 'sudo usermod {ranges} $USER && podman system migrate'"
    if "slirp4netns" in low or "rootless netns" in low:
        return "install slirp4netns, which connects the containers of ordinary users"
    if "rlimit" in low:
        lines = 'default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"] under [containers]'
    elif "cgroup" in low:
        lines = 'runtime = "runc" and cgroup_manager = "cgroupfs" under [engine]'
    else:
        return ""
    return f"set {lines} in {file}{' and install runc' if 'runc' in lines else ''}, then restart Podman's service"


def overlay_remedy(*, is_rootless: bool) -> str:
    """Return the remedy for a slow storage driver."""
    file = "~/.config/containers/storage.conf" if is_rootless else "/etc/containers/storage.conf"
    return f"set driver = \"overlay\" under [storage] in {file}, then 'podman system reset' (it removes all images)"


def _version(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
