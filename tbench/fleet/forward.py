"""An engine's socket on another machine as one on this: a single ssh that forwards it, and is started again if it ends.

All connections go through the one ssh; the SDK's own way would start a process for each. The ssh runs `cat` over there,
which ends with this process, whatever becomes of it.
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
from tbench.fleet.machine import EngineAddress, Way
from tbench.text import one_line

CONNECT_SEC = 20.0
_LOOK_SEC = 0.05
_END_SEC = 5.0
_OPTIONS = {
    "BatchMode": "yes",  # nobody is there to be asked for a password
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ExitOnForwardFailure": "yes",
    "StreamLocalBindUnlink": "yes",
    "ControlPath": "none",
    "LogLevel": "ERROR",
}


class SshForward(Way):
    """A socket of this machine behind which the engine of another one answers."""

    def __init__(self, address: EngineAddress) -> None:
        """Raises UsageError where there is no ssh."""
        ssh = shutil.which("ssh")
        if ssh is None:
            raise UsageError(f"{address.text}: there is no ssh here; install openssh-client")
        self._directory = Path(tempfile.mkdtemp(prefix="tb-ssh-"))
        self._socket, self._said = self._directory / "engine.sock", self._directory / "said"
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
        """The address of the socket on this machine."""
        return f"unix://{self._socket}"

    def connect(self) -> None:
        """Begin to forward; returns when connections are taken. Raises UsageError with what ssh says."""
        self._start()
        ends_at = time.monotonic() + CONNECT_SEC
        while time.monotonic() < ends_at:
            if self._takes_connections():
                return
            assert self._process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_SEC)
                break
        why = self._why()
        self.close()
        port = f"-p {self._address.port} " if self._address.port is not None else ""
        trial = f"'ssh {port}{self._address.host} true' must work without a question"
        raise UsageError(f"{self._address.text}: {why}; {trial}")

    def _start(self) -> None:
        with self._starting:
            self._end()
            if self._is_closed:
                return
            with self._said.open("wb") as said:
                # Ctrl-C is for this process alone: containers are removed through the ssh.
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True
                )

    def _takes_connections(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self._socket))
            return True
        return False

    def _why(self) -> str:
        words = self._said.read_text("utf-8", "replace").strip().splitlines()
        if words:
            return one_line(words[-1], 200)
        has_ended = self._process is not None and self._process.poll() is not None
        return "ssh has ended" if has_ended else f"ssh does not connect within {CONNECT_SEC:.0f} s"

    async def mend(self) -> str:
        """Start ssh again where it has ended; by the next look it is connected, or has ended again."""
        if self._process is not None and self._process.poll() is None:
            return ""
        why = self._why()
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
        # One that is being started in a thread is ended as well.
        with self._starting:
            self._is_closed = True
            self._end()
        shutil.rmtree(self._directory, ignore_errors=True)
