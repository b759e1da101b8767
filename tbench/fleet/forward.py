"""Forwards the socket of an engine on another machine through a single ssh, which is restarted if it ends.

All connections share this ssh; the SDK's own support for ssh would start a process for each. On the other machine it
runs `cat`, which ends when this process ends for any reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from tbench.errors import UsageError
from tbench.fleet.machine import EngineAddress, Forward
from tbench.text import one_line

CONNECT_SEC = 20.0
_POLL_SEC = 0.05
_END_SEC = 5.0
_OPTIONS = {
    "BatchMode": "yes",  # never ask for a password
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ExitOnForwardFailure": "yes",
    "StreamLocalBindUnlink": "yes",
    "ControlPath": "none",
    "LogLevel": "ERROR",
}


class SshForward(Forward):
    """A local socket that leads to the engine of another machine."""

    def __init__(self, address: EngineAddress) -> None:
        """Raises UsageError if ssh is not installed."""
        ssh = shutil.which("ssh")
        if ssh is None:
            raise UsageError(f"{address.text}: ssh is not installed here; install openssh-client")
        self._directory = Path(tempfile.mkdtemp(prefix="tb-ssh-"))
        self._socket, self._log = self._directory / "engine.sock", self._directory / "ssh.log"
        options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
        port = ["-p", str(address.port)] if address.port is not None else []
        forward = f"{self._socket}:{address.path}"
        self._command = [ssh, "-T", *options, *port, "-L", forward, "--", address.host, "exec cat >/dev/null"]
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._starting = threading.Lock()

    @property
    def host(self) -> str:
        """Address of the local socket."""
        return f"unix://{self._socket}"

    def connect(self) -> None:
        """Start the forward and wait until it accepts connections. Raises UsageError with the message of ssh."""
        self._start()
        ends_at = time.monotonic() + CONNECT_SEC
        while time.monotonic() < ends_at:
            if self._takes_connections():
                return
            assert self._process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_SEC)
                break
        why = self._problem()
        self.close()
        port = f"-p {self._address.port} " if self._address.port is not None else ""
        advice = f"'ssh {port}{self._address.host} true' must work without asking questions"
        raise UsageError(f"{self._address.text}: {why}; {advice}")

    def _start(self) -> None:
        with self._starting:
            self._end()
            if self._is_closed:
                return
            with self._log.open("wb") as log:
                # In a new session, so that Ctrl-C does not end it: containers are removed through this ssh.
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
                )

    def _takes_connections(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self._socket))
            return True
        return False

    def _problem(self) -> str:
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        if lines:
            return one_line(lines[-1], 200)
        has_ended = self._process is not None and self._process.poll() is not None
        return "ssh has ended" if has_ended else f"ssh does not connect within {CONNECT_SEC:.0f} s"

    async def repair(self) -> str:
        """Restart ssh if it has ended; by the next check it is connected, or has ended again."""
        if self._process is not None and self._process.poll() is None:
            return ""
        why = self._problem()
        try:
            await asyncio.to_thread(self._start)
        except OSError as error:
            return f"ssh cannot be started: {error.strerror or error}"
        return why

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_SEC)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_SEC)

    def close(self) -> None:
        # Waits for an ssh that is being started in another thread, and ends it.
        with self._starting:
            self._is_closed = True
            self._end()
        shutil.rmtree(self._directory, ignore_errors=True)
