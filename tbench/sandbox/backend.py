"""What a trial needs of its sandbox: the seam between trials and whatever holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.stream import ByteStream
from tbench.sandbox.archive import FileEntry

TOOLS = "/opt/tbench"
BUSYBOX = f"{TOOLS}/bin/busybox"
"""The tools volume's own shell and utilities: images need not have any."""
NOT_STAGED = 97
"""Exit code of our scripts when what they were given could not be put into the container."""

LOG_DIRECTORIES = {
    path: FileEntry(None, 0o777) for path in ("/logs", "/logs/agent", "/logs/verifier", "/logs/artifacts")
}
"""Every task may rely on them."""


@dataclass(frozen=True)
class ExecResult:
    """How a command in the sandbox ended."""

    exit_code: int | None
    output: bytes = b""
    timed_out: bool = False


class Sandbox(Protocol):
    """The container of one trial. Every method is bounded; errors are TrialError."""

    @property
    def container_id(self) -> str:
        """What the engine calls it."""

    @property
    def workdir(self) -> str:
        """Absolute directory where agent and verifier work."""

    @property
    def runs_as_root(self) -> bool:
        """Whether the image's own user is root."""

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has ended a process of it for want of memory, as far as that was heard."""

    async def connect(self, argv: Sequence[str], environment: Mapping[str, str]) -> ByteStream:
        """Start argv as the agent's user; its standard streams."""

    async def shell(
        self,
        script: str,
        *,
        timeout_sec: float,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a POSIX shell script in `/` with the tools volume's shell."""

    async def put(self, files: Mapping[str, FileEntry]) -> None:
        """Write files by absolute path, owned by root."""

    async def fetch(self, directory: str, limit_bytes: int) -> dict[str, bytes]:
        """Regular files below `directory` by relative path; files that would pass the limit are cut."""

    async def copy(self) -> Sandbox:
        """Another with this one's files as they are now and its network, but none of its processes."""

    async def snapshot(self) -> str:
        """The files as they are now as an image that stays; its id."""

    async def keep(self) -> None:
        """Let it outlive its process: no reaper touches it."""

    async def is_running(self) -> bool:
        """Whether the container still lives, and goes on living."""

    async def make_room(self) -> tuple[str, ...]:
        """Where its processes or its memory are used up, make it possible to start a command again.

        What was done, `kind: what` each; empty where nothing was used up.
        """

    async def remove(self) -> None:
        """End it, forced and bounded. Never raises."""
