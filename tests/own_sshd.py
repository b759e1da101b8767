"""An sshd of a test's own on the loopback, and an `ssh` that knows its key: nobody's own configuration is touched."""

from __future__ import annotations

import contextlib
import functools
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

_INSTALL_SEC, _START_SEC = 300.0, 20.0
_SSHD_PLACES = "/usr/sbin:/usr/local/sbin:/usr/bin"


@functools.cache
def _program() -> str | None:
    """Path of sshd, installed where that can be done; the sshd of the machine is not started."""
    if shutil.which("sshd", path=_SSHD_PLACES) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "openssh-server"]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env=environment, capture_output=True, timeout=_INSTALL_SEC, check=False)
    return shutil.which("sshd", path=_SSHD_PLACES)


class OwnSshd:
    """An sshd that root of this machine can log in to with a key that is made for it."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program, self._directory = program, directory
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
        (directory / "authorized").write_bytes((directory / "user.pub").read_bytes())
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        (directory / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {directory}/host\nPidFile {directory}/pid\n"
            f"AuthorizedKeysFile {directory}/authorized\nPermitRootLogin yes\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        )
        host_key = (directory / "host.pub").read_text().strip()
        (directory / "known").write_text(f"[127.0.0.1]:{self.port} {host_key}\n")
        (directory / "ssh_config").write_text(
            f"IdentityFile {directory}/user\nIdentitiesOnly yes\nUserKnownHostsFile {directory}/known\n"
        )
        self.path = directory / "bin"
        """A folder for PATH, whose ssh has this configuration."""
        self.path.mkdir()
        (self.path / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory}/ssh_config "$@"\n')
        (self.path / "ssh").chmod(0o755)
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, path: str = "") -> str:
        """Address of the engine with its socket at this path, through this sshd."""
        return f"ssh://root@127.0.0.1:{self.port}{path}"

    def start(self) -> None:
        """Returns when it takes connections."""
        Path("/run/sshd").mkdir(exist_ok=True)
        with (self._directory / "log").open("ab") as log:
            command = [self._program, "-D", "-e", "-f", str(self._directory / "sshd_config")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        ends_at = time.monotonic() + _START_SEC
        while time.monotonic() < ends_at:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError((self._directory / "log").read_text()[-2000:])

    def start_again(self) -> None:
        """Start it where it does not run."""
        if self._process is None:
            self.start()

    def stop(self) -> None:
        """End it with its connections, as a machine that loses its network does."""
        if self._process is not None:
            for pid in _below(self._process.pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait(_START_SEC)
            self._process = None


def _below(pid: int) -> list[int]:
    """All descendants of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[1] == str(pid):
                found += [int(path.parent.name), *_below(int(path.parent.name))]
    return found


@contextlib.contextmanager
def own_sshd() -> Iterator[OwnSshd]:
    """One that runs; all of it is gone afterwards."""
    program = _program()
    if program is None or os.geteuid() != 0:
        pytest.skip(
            "sshd is not installed, or this is not root; apt could install openssh-server where a mirror answers"
        )
    with tempfile.TemporaryDirectory(prefix="tbench-sshd-") as name:
        sshd = OwnSshd(program, Path(name))
        sshd.start()
        try:
            yield sshd
        finally:
            sshd.stop()
