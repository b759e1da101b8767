"""The seam between runs and whatever holds their containers: what a backend and its sandboxes can do.

`Backend` and `Sandbox` are what every one has. What only some have (copying, keeping, making room, a tty) is a protocol
of its own: a mode asks for it with `require` before anything is started, and is refused in words where it is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from harness.stream import ByteStream
from tbench.errors import UsageError
from tbench.events import Phase
from tbench.sandbox.archive import FileEntry
from tbench.tasks.task import Task

TOOLS = "/opt/tbench"
BUSYBOX = f"{TOOLS}/bin/busybox"
"""The tools' own shell and utilities, which every sandbox has: images need not have any."""
NOT_STAGED = 97
"""Exit code of our scripts when what they were given could not be put into the sandbox."""

LOG_DIRECTORIES = {
    path: FileEntry(None, 0o777) for path in ("/logs", "/logs/agent", "/logs/verifier", "/logs/artifacts")
}
"""Every task may rely on them."""

NetworkChoice = Literal["task", "none", "bridge"]
"""As the task says; none for anybody; a network for everybody."""
Say = Callable[[str], None]
"""Hears, in words, of what takes long: a build, a pull."""


@dataclass(frozen=True)
class ExecResult:
    """How a command in the sandbox ended."""

    exit_code: int | None
    output: bytes = b""
    timed_out: bool = False


class Sandbox(Protocol):
    """The container of one trial. Every method is bounded; errors are TrialError."""

    @property
    def workdir(self) -> str:
        """Absolute directory where agent and verifier work."""

    @property
    def runs_as_root(self) -> bool:
        """Whether the image's own user is root."""

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has ended a process of it out of memory, as far as that was heard."""

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
        """Run a POSIX shell script in `/` with the tools' shell."""

    async def put(self, files: Mapping[str, FileEntry]) -> None:
        """Write files by absolute path, owned by root."""

    async def fetch(self, directory: str, limit_bytes: int) -> dict[str, bytes]:
        """Regular files below `directory` by relative path; files that would pass the limit are cut."""

    async def remove(self) -> None:
        """End it, forced and bounded. Never raises."""


@runtime_checkable
class Copies(Protocol):
    """A sandbox that can be copied."""

    async def copy(self) -> Sandbox:
        """Another with this one's files as they are now and its network, but none of its processes."""


@runtime_checkable
class Snapshots(Protocol):
    """A sandbox whose files can be kept as an image."""

    async def snapshot(self) -> str:
        """The files as they are now as an image that stays; its id."""


@runtime_checkable
class Keeps(Protocol):
    """A sandbox that can outlive its run."""

    async def keep(self) -> str:
        """Let it outlive its process: no reaper touches it. The id by which its backend finds it again."""


@runtime_checkable
class MakesRoom(Protocol):
    """A sandbox whose limits can be lifted from outside."""

    async def make_room(self) -> tuple[str, ...]:
        """Where its processes or its memory are used up, make it possible to start a command again.

        What was done, `kind: what` each; empty where nothing was used up.
        """


class TtyStream(ByteStream, Protocol):
    """Both ends of a terminal in the sandbox."""

    async def resize(self, rows: int, columns: int) -> None:
        """Tell it the size of the window that it is shown in."""


@runtime_checkable
class HasTty(Protocol):
    """A sandbox in which a human can sit at a terminal."""

    async def open_tty(self, argv: Sequence[str], environment: Mapping[str, str], rows: int, columns: int) -> TtyStream:
        """Start argv as the agent's user on a terminal of its own."""


@dataclass(frozen=True)
class Capacity:
    """What the sandboxes of a backend may use together."""

    cpus: float
    memory_mb: float
    is_this_machine: bool = False
    """Its load is the load of the machine that this process runs on."""


class Backend(Protocol):
    """Where the sandboxes of one run live: a container engine, or a fake. Opened once, and closed."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def sandbox_type(self) -> type:
        """The class of its sandboxes: which of the optional protocols they have."""

    @property
    def image_ids(self) -> Mapping[str, str]:
        """Image id by task name; filled in as images are resolved."""

    async def open(self, say: Say) -> None:
        """Make ready for sandboxes; what dead runs left is removed. Raises UsageError."""

    async def sandbox(self, task: Task, trial: str, on_phase: Callable[[Phase], None] = lambda _: None) -> Sandbox:
        """A new sandbox for a trial, healthy. Raises TrialError, and leaves nothing behind when it does."""

    def capacity(self) -> Capacity:
        """What all sandboxes may use together."""

    def describe(self) -> dict[str, Any]:
        """What run.json keeps of it: plain JSON."""

    async def close(self) -> None:
        """Let go of everything but the sandboxes. Never raises."""


@runtime_checkable
class Reopens(Protocol):
    """A backend that finds again what was kept of a trial."""

    async def reopen(self, task: Task, trial: str, kept: str) -> Sandbox:
        """A sandbox that was kept. Raises TrialError (sandbox_lost) when it is gone."""

    async def from_snapshot(self, task: Task, trial: str, image_id: str) -> Sandbox:
        """A new sandbox with the files of a snapshot. Raises TrialError."""


@dataclass(frozen=True)
class SandboxSettings:
    """How the sandboxes of one run are made."""

    run: str
    build: bool = False
    """Images are built even where they exist."""
    network: NetworkChoice = "task"
    block_host: bool = False
    """Neither the backend's host nor the endpoint can be reached from them."""
    no_new_privileges: bool = False
    """sudo, su and other setuid programs have no effect."""
    base_url: str | None = None
    """The endpoint, for `block_host`."""
    image_logs: Path | None = None
    """Directory for the output of builds."""


MakeBackend = Callable[[SandboxSettings], Backend]
"""Gives a run its backend."""
Opened = TypeVar("Opened", bound=Backend)
_LACKING: dict[type, str] = {
    Copies: "cannot copy a sandbox",
    Snapshots: "cannot take snapshots",
    Keeps: "cannot keep a sandbox beyond its run",
    MakesRoom: "cannot make room in a sandbox",
    HasTty: "has no terminal for a human",
}


def require(backend: Backend, capability: type, wanted: str) -> None:
    """Raises UsageError where the backend's sandboxes lack what `wanted` (an option, a command) needs."""
    if not issubclass(backend.sandbox_type, capability):
        raise UsageError(f"{wanted}: {backend.name} {_LACKING[capability]}; leave it out, or use another backend")


@contextlib.asynccontextmanager
async def opened(backend: Opened, say: Say = lambda _: None) -> AsyncIterator[Opened]:
    """Open `backend` for the duration of the block."""
    try:
        await backend.open(say)
        yield backend
    finally:
        await asyncio.shield(backend.close())
