"""The seam between runs and whatever holds their containers: what a backend and its sandboxes can do.

Every backend implements `Backend` and `Sandbox`. What only some can do (copying, keeping, making room, a tty) is a
protocol of its own: a mode asks for it with `require` before anything is started; a missing one is a UsageError.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeVar, runtime_checkable

from harness.stream import ByteStream
from tbench.config.settings import SandboxConfig
from tbench.errors import Origin, TrialError, UsageError
from tbench.events import Phase
from tbench.results import ImageOrigin
from tbench.sandbox.archive import FileEntry
from tbench.sandbox.container_proxy import WITHOUT_PROXY, ContainerProxy
from tbench.tasks.environment import Environment
from tbench.tasks.network import NetworkPolicy

TOOLS = "/opt/tbench"
BUSYBOX = f"{TOOLS}/bin/busybox"
"""Path of busybox in every sandbox: shell and utilities of our own, as images need not have any."""
NOT_STAGED = 97
"""Exit code of our scripts when their files could not be put into the sandbox."""

LOG_DIRECTORIES = {
    path: FileEntry(None, 0o777) for path in ("/logs", "/logs/agent", "/logs/verifier", "/logs/artifacts")
}
"""Directories for logs that every task may rely on."""

Say = Callable[[str], None]
"""Called with one line of text about something that takes long: a build, a pull."""


@dataclass(frozen=True)
class ExecResult:
    """How a command in the sandbox ended."""

    exit_code: int | None
    output: bytes = b""
    timed_out: bool = False
    was_cut: bool = False
    """Whether it printed more than it was allowed to, so that nobody waited for its end."""


class Sandbox(Protocol):
    """The container of one trial. Every method is bounded; errors are TrialError."""

    @property
    def workdir(self) -> str:
        """Absolute directory where agent and verifier work."""

    @property
    def runs_as_root(self) -> bool:
        """Whether the image's own user is root."""

    @property
    def is_fresh(self) -> bool:
        """Whether it was made beside the agent's, so that the agent never was in it."""

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has ended one of its processes because it was out of memory, as far as is known."""

    async def connect(self, argv: Sequence[str], environment: Mapping[str, str], user: str | None = None) -> ByteStream:
        """Start `argv` as `user`, or else that of the task's agent; returns its standard streams."""

    async def shell(
        self,
        script: str,
        *,
        timeout_sec: float,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a POSIX shell script in `/` with busybox's shell."""

    async def put(self, files: Mapping[str, FileEntry]) -> None:
        """Write files by absolute path, with their modes and owners."""

    async def fetch(self, directory: str, limit_bytes: int) -> dict[str, bytes]:
        """Read the regular files below `directory`, by relative path; files that would exceed the limit are cut."""

    async def remove(self) -> None:
        """Remove the sandbox by force, in bounded time. Never raises."""


@dataclass(frozen=True)
class GivenNames:
    """What a backend itself writes into the files of a sandbox that say where servers are, and where it mounts."""

    servers: frozenset[str] = frozenset()
    """Addresses of name servers."""
    hosts: frozenset[tuple[str, str]] = frozenset()
    """Addresses with one name each, as in /etc/hosts."""
    volumes: frozenset[str] = frozenset()
    """Directories that are volumes: what lies there is not compared with the image."""
    began_at: float = 0.0
    """When the sandbox was made, in seconds by its machine's clock: what changed later is not the image's."""


@runtime_checkable
class Compares(Protocol):
    """A sandbox whose files can be compared with those of its image."""

    def image_id(self) -> str:
        """What tells the content of its image from that of all others, on any day; empty where nothing does."""

    async def given_names(self) -> GivenNames:
        """The names that the backend gives this sandbox, and not to `original`: nobody inside is asked."""

    async def original(self) -> Sandbox:
        """The image as it is, to be read only: a sandbox in which nothing else ever runs, shared by all of its kind."""


@runtime_checkable
class Copies(Protocol):
    """A sandbox beside which others of the same image can be made."""

    async def copy(self, paths: Collection[str], removed: Collection[str]) -> Sandbox:
        """Make a sandbox of the same image on this one's network, with some of its files but none of its processes.

        The `paths` are brought as they are in this one, directories without what lies in them; the `removed` are
        removed. Raises TrialError.
        """

    async def start_copy(self) -> Sandbox:
        """Begin a copy: a sandbox of the same image on this one's network, with none of its files. Raises as `copy`."""

    async def bring(self, copy: Sandbox, paths: Collection[str], removed: Collection[str]) -> None:
        """Bring files into a copy that was begun, as `copy` says. Raises TrialError."""

    async def anew(self) -> Sandbox:
        """Make a sandbox of the same image with nothing of this one. Raises TrialError."""


@runtime_checkable
class Streams(Protocol):
    """A sandbox whose commands can read from files and print into them: what they pass on need not fit into memory."""

    async def stream(
        self,
        script: str,
        *,
        timeout_sec: float,
        user: str | None = None,
        source: IO[bytes] | None = None,
        sink: IO[bytes] | None = None,
        limit_bytes: int = 64 << 20,
    ) -> ExecResult:
        """Run a script as `shell` does, with the file `source` as its input; what it prints goes into `sink`.

        Beyond `limit_bytes` of output nothing more is read, and the result is `was_cut`. Raises OSError where the disk
        under `sink` is full, TrialError else.
        """


@runtime_checkable
class Snapshots(Protocol):
    """A sandbox whose files can be kept as an image."""

    async def snapshot(self) -> str:
        """Save the current files as an image that stays; returns its id."""


@runtime_checkable
class Keeps(Protocol):
    """A sandbox that can outlive its run."""

    async def keep(self) -> str:
        """Let the sandbox outlive this process, safe from cleaning; returns the id for `Reopens.reopen`."""


@runtime_checkable
class HasServices(Protocol):
    """A sandbox of several containers."""

    def service(self, name: str) -> Sandbox:
        """The container of a service by its name in the compose file.

        Raises TrialError (sandbox_failed) for a name that there is not.
        """

    async def stop_main(self) -> None:
        """Stop the container in which the agent worked, and leave its services running."""


@runtime_checkable
class HasLogs(Protocol):
    """A sandbox in which others than the agent write something."""

    async def logs(self) -> Mapping[str, bytes]:
        """The last megabyte of each: `entrypoint.log`, and `services/NAME.log` of services. Never raises."""


@runtime_checkable
class HidesSecrets(Protocol):
    """A sandbox that was told secrets, such as a proxy's password, which nobody else is told."""

    def hide(self, text: str) -> str:
        """A text without them, of which pieces may have come one by one."""


@runtime_checkable
class MakesRoom(Protocol):
    """A sandbox whose limits can be lifted from outside."""

    async def make_room(self) -> tuple[str, ...]:
        """Make it possible to start a command again where processes or memory are used up.

        Returns what was done, `kind: what` each; empty where nothing was used up.
        """


@runtime_checkable
class SwitchesNetwork(Protocol):
    """A sandbox whose network can be another for each phase of a trial."""

    async def use_network(self, policy: NetworkPolicy) -> None:
        """Put the network of a phase in force; what it does not allow ends, also what is under way. Raises TrialError.

        Where one network is right for all phases of the task, or the run has chosen it, this does nothing.
        """


class TtyStream(ByteStream, Protocol):
    """Both ends of a terminal in the sandbox."""

    async def resize(self, rows: int, columns: int) -> None:
        """Set the terminal's size to that of the window that shows it."""


@runtime_checkable
class HasTty(Protocol):
    """A sandbox in which a human can sit at a terminal."""

    async def open_tty(
        self, argv: Sequence[str], environment: Mapping[str, str], rows: int, columns: int, user: str | None = None
    ) -> TtyStream:
        """Start `argv` as `user`, or else that of the task's agent, on a terminal of its own."""


@dataclass(frozen=True)
class Capacity:
    """The cpus and memory that the sandboxes of a backend may use together."""

    cpus: float
    memory_mb: float
    is_this_machine: bool = False
    """Whether the sandboxes run on the machine of this process, so that its load is theirs."""
    gpus: int | None = 0
    """GPUs that sandboxes can have; None where there are some, and it is not known how many."""


class Backend(Protocol):
    """Where the sandboxes of one run live: a container engine, or a fake. Opened once, and closed."""

    @property
    def name(self) -> str:
        """The backend's name in messages."""

    @property
    def sandbox_type(self) -> type:
        """The class of its sandboxes, which tells the optional protocols that they implement."""

    @property
    def image_ids(self) -> Mapping[str, str]:
        """Image id by name of the environment; filled in as images are resolved."""

    @property
    def image_origins(self) -> Mapping[str, ImageOrigin]:
        """Where these images came from, by name of the environment."""

    async def open(self, say: Say) -> None:
        """Get ready to make sandboxes, and remove what dead runs left. Raises UsageError."""

    async def sandbox(
        self, environment: Environment, trial: str, on_phase: Callable[[Phase], None] = lambda _: None
    ) -> Sandbox:
        """Start a sandbox for a trial and wait until it is healthy. Raises TrialError; then nothing is left behind."""

    async def prepare(self, environment: Environment) -> None:
        """Pull or build its image, so that `sandbox` need not. Raises TrialError."""

    def capacity(self) -> Capacity:
        """The cpus and memory that all sandboxes may use together."""

    def describe(self) -> dict[str, Any]:
        """What run.json stores about the backend, as plain JSON."""

    async def close(self) -> None:
        """Release everything but the sandboxes. Never raises."""


@runtime_checkable
class Reopens(Protocol):
    """A backend that can find kept sandboxes and snapshots again."""

    async def reopen(self, environment: Environment, trial: str, kept: str) -> Sandbox:
        """Find a kept sandbox by its id `kept`. Raises TrialError (sandbox_lost) when it is gone."""

    async def from_snapshot(self, environment: Environment, trial: str, image_id: str) -> Sandbox:
        """Start a sandbox with the files of a snapshot. Raises TrialError."""


@runtime_checkable
class HoldsImages(Protocol):
    """A backend that can get images before there is a trial, and remove them when there is none any more."""

    async def about_pulls(self, environments: Sequence[Environment], *, ask: bool) -> Sequence[str]:
        """Lines about what has to be pulled and whether there is room for it; `ask` lets it ask registries for sizes.

        Bounded, in seconds. Raises nothing.
        """

    async def prefetch(self, environments: Sequence[Environment]) -> Mapping[str, TrialError]:
        """Get the images of these; returns by name what keeps one from being had."""

    async def drop_image(self, environment: Environment, others: Sequence[Environment]) -> int:
        """Remove an image that came with this run and that none of the `others` needs, nor anybody else on the backend.

        Returns the bytes that it had, 0 where it stays. Raises nothing.
        """


@runtime_checkable
class Doubts(Protocol):
    """A backend that keeps something for all sandboxes, which may break under a run."""

    def doubt(self) -> None:
        """Have it look, before the next sandbox, whether that is whole: an attempt has failed by the infrastructure."""


@dataclass(frozen=True)
class SandboxSettings:
    """How the sandboxes of one run are made."""

    run: str
    asked: SandboxConfig = field(default_factory=SandboxConfig)
    """What the configuration says of them."""
    container_proxy: ContainerProxy = WITHOUT_PROXY
    """Of which proxy sandboxes and builds with a network are told."""
    endpoints: tuple[str, ...] = ()
    """URLs of the endpoint's servers, which `block_host` closes."""
    image_logs: Path | None = None
    """Directory for the output of builds."""


MakeBackend = Callable[[SandboxSettings], Backend]
"""Makes the backend for a run."""
Opened = TypeVar("Opened", bound=Backend)
_LACKING: dict[type, str] = {
    Compares: "cannot compare a sandbox with its image",
    Copies: "cannot copy a sandbox",
    Streams: "cannot pass files on",
    Snapshots: "cannot take snapshots",
    Keeps: "cannot keep a sandbox beyond its run",
    MakesRoom: "cannot make room in a sandbox",
    SwitchesNetwork: "cannot change a sandbox's network",
    HasTty: "has no terminal for a human",
}


def require(backend: Backend, capability: type, wanted: str) -> None:
    """Check that the backend's sandboxes have what `wanted` (an option, a command) needs. Raises UsageError."""
    if not issubclass(backend.sandbox_type, capability):
        raise UsageError(f"{wanted}: {backend.name} {_LACKING[capability]}; leave it out, or use another backend")


async def use_network(sandbox: Sandbox, environment: Environment, phase: Literal["start", "agent", "verifier"]) -> None:
    """Put the network of a phase in force in a sandbox of `environment`. Raises TrialError.

    It begins with that of the start, and the others are for the time in which agent and verifier work.
    """
    networks = environment.networks
    if networks.is_plain:
        return
    if not isinstance(sandbox, SwitchesNetwork):
        needed = "it has another network for each phase, or one of some hosts only"
        raise TrialError("task_unsupported", f"{needed}, and this backend {_LACKING[SwitchesNetwork]}")
    await sandbox.use_network(getattr(networks, phase))


async def output_of(sandbox: Sandbox, script: str, *, timeout_sec: float, stdin: bytes = b"") -> bytes:
    """What a script prints that root runs. Raises TrialError, also where the script does not come to a good end."""
    ended = await sandbox.shell(script, timeout_sec=timeout_sec, user="root", stdin=stdin)
    if ended.exit_code == 0 and not ended.timed_out and not ended.was_cut:
        return ended.output
    how = f"took longer than {timeout_sec:g} s" if ended.timed_out else f"ended with {ended.exit_code}"
    words = f"a script that looks at the container {how}"
    raise TrialError("verifier_failed", words, origin=Origin("exec", sandbox.is_fresh, ran=True))


@contextlib.asynccontextmanager
async def opened(backend: Opened, say: Say = lambda _: None) -> AsyncIterator[Opened]:
    """Open `backend` for the duration of the block."""
    try:
        await backend.open(say)
        yield backend
    finally:
        await asyncio.shield(backend.close())


@contextlib.asynccontextmanager
async def removed_afterwards(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """A sandbox that lasts for the block."""
    try:
        yield sandbox
    finally:
        await _removed(sandbox)


async def _removed(sandbox: Sandbox) -> None:
    """Remove a sandbox: whoever is cancelled leaves nothing behind, nor a removal that nobody waits for."""
    removing = asyncio.ensure_future(sandbox.remove())
    try:
        await asyncio.shield(removing)
    except asyncio.CancelledError:
        await removing
        raise


Fill = Callable[[Collection[str], Collection[str]], Awaitable[Sandbox]]
"""Makes a copy, as `Copies.copy` says: whoever calls it removes that."""


@contextlib.asynccontextmanager
async def copy_begun(sandbox: Copies) -> AsyncIterator[Fill]:
    """A copy that is started while the block does something else, and is filled by the first call of what is given.

    Where nobody fills it, it is removed at the block's end.
    """
    begun = [asyncio.create_task(sandbox.start_copy(), name="a copy is started")]

    async def fill(paths: Collection[str], removed: Collection[str]) -> Sandbox:
        if not begun:
            return await sandbox.copy(paths, removed)
        copy = await asyncio.shield(begun[0])
        begun.clear()
        try:
            await sandbox.bring(copy, paths, removed)
        except BaseException:
            await _removed(copy)
            raise
        return copy

    try:
        yield fill
    finally:
        for starting in begun:
            await asyncio.shield(_undo(starting))


async def _undo(starting: asyncio.Task[Sandbox]) -> None:
    starting.cancel()
    await asyncio.wait([starting])
    if not starting.cancelled() and starting.exception() is None:
        await starting.result().remove()
