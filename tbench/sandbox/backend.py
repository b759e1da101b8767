"""Interfaces of backends, which make sandboxes, and of sandboxes.

Every backend implements `Backend` and `Sandbox`. Optional abilities (copying, keeping, making room, a tty) are
separate protocols. Code that cannot do without an ability calls `require` before anything starts, which raises
UsageError if the backend lacks the ability.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeVar, runtime_checkable

from harness.concurrency import wait_until_ended
from harness.stream import ByteStream
from tbench.config.settings import SandboxConfig
from tbench.errors import Origin, TrialError, UsageError
from tbench.events import Phase
from tbench.results import ImageOrigin
from tbench.sandbox.archive import FileEntry
from tbench.sandbox.container_proxy import WITHOUT_PROXY, ContainerProxy
from tbench.sandbox.package import AgentPackage
from tbench.tasks.environment import Environment
from tbench.tasks.network import NetworkPolicy

TOOLS = "/opt/tbench"
BUSYBOX = f"{TOOLS}/bin/busybox"
"""Path of busybox in every sandbox: our own shell and utilities, since images need not have any."""
STOP_OTHERS = f"""stop_others() {{
    kill -STOP -1
    kill -CONT $PPID
    for starting in $({BUSYBOX} grep -l '^Name:.runc:' /proc/[0-9]*/status); do
        {BUSYBOX} grep -q '^PPid:.0$' $starting || continue
        starting=${{starting%/status}}
        kill -CONT ${{starting#/proc/}}
    done
}} 2>/dev/null
"""
"""Shell function that stops all other processes of the container except its parent, which enforces a time limit. A
command that the engine is just starting continues: stopped, it would block the engine for ever."""
NOT_STAGED = 97
"""Exit code of our scripts when their files could not be copied into the sandbox."""

LOG_DIRECTORIES = {
    path: FileEntry(None, 0o777) for path in ("/logs", "/logs/agent", "/logs/verifier", "/logs/artifacts")
}
"""Log directories that every sandbox has."""

Say = Callable[[str], None]
"""Shows one line of progress about a slow operation, such as a build or a pull."""


@dataclass(frozen=True)
class ExecResult:
    """Outcome of a command in a sandbox."""

    exit_code: int | None
    output: bytes = b""
    timed_out: bool = False
    was_cut: bool = False
    """Whether the output exceeded the limit, so that the command's end was not awaited."""


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
        """Whether the agent never worked in it."""

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel is known to have killed one of its processes because memory ran out."""

    async def connect(self, argv: Sequence[str], environment: Mapping[str, str], user: str | None = None) -> ByteStream:
        """Start `argv` as `user` (default: the task's agent user) and return its standard streams."""

    async def shell(
        self,
        script: str,
        *,
        timeout_sec: float,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a POSIX shell script in `/` with busybox's shell, as `user` (default: the image's own)."""

    async def put(self, files: Mapping[str, FileEntry]) -> None:
        """Write files by absolute path, with their modes and owners."""

    async def fetch(self, directory: str, limit_bytes: int) -> dict[str, bytes]:
        """Read the regular files below `directory`, by relative path; content beyond the limit is cut."""

    async def remove(self) -> None:
        """Remove the sandbox by force, in bounded time. Never raises."""


@dataclass(frozen=True)
class BackendFacts:
    """Parts of a sandbox that come from its backend instead of its image: name servers, host names, mounts."""

    servers: frozenset[str] = frozenset()
    """Addresses of name servers."""
    hosts: frozenset[tuple[str, str]] = frozenset()
    """Pairs of address and name, as in /etc/hosts."""
    volumes: frozenset[str] = frozenset()
    """Directories that are volumes; their content is not compared with the image."""
    began_at: float = 0.0
    """Time when the sandbox was made, in seconds of its machine's clock; files changed later are not the image's."""


@runtime_checkable
class Compares(Protocol):
    """A sandbox whose files can be compared with those of its image."""

    def image_id(self) -> str:
        """Return an id of the image's content that no other content ever has; empty if unknown."""

    async def backend_facts(self) -> BackendFacts:
        """Return the facts that the backend adds to this sandbox but not to `original`, without asking processes
        inside."""

    async def original(self) -> Sandbox:
        """Return a read-only sandbox of the unchanged image, shared by all sandboxes of that image."""


@runtime_checkable
class Copies(Protocol):
    """A sandbox that can make other sandboxes of its image."""

    def can_be_apart(self) -> bool:
        """Return whether copies can have a network of their own at little cost: without services or a router."""

    async def start_copy(self, *, is_apart: bool = False) -> Sandbox:
        """Start a sandbox of the same image on this one's network, with its volumes but none of its other files.

        `is_apart`: the copy has a network of its own, if `can_be_apart`. Raises TrialError.
        """

    async def copy_into(self, starting: asyncio.Future[Any], paths: Collection[str], removed: Collection[str]) -> None:
        """Copy the `paths` into the sandbox that `start_copy` is starting, directories without their content.

        Before that, the paths in `removed` are removed there. Raises TrialError.
        """

    async def make_fresh(self) -> Sandbox:
        """Make a sandbox of the same image; it shares only networks and volumes of services. Raises TrialError."""


@runtime_checkable
class Streams(Protocol):
    """A sandbox that can stream a command's input and output from and to files, so they need not fit into memory."""

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
        """Run a script as `shell` does, with standard input from `source` and output written to `sink`.

        After `limit_bytes` of output, reading stops, and the result is `was_cut`. Raises TrialError, and OSError if the
        disk of `sink` is full.
        """


@runtime_checkable
class Snapshots(Protocol):
    """A sandbox that can be saved as an image."""

    async def snapshot(self) -> str:
        """Save the current files as a permanent image and return its id."""


@runtime_checkable
class Keeps(Protocol):
    """A sandbox that can outlive its run."""

    async def keep(self) -> str:
        """Exempt the sandbox from removal, even when this process has ended; returns the id for `Reopens.reopen`."""


@runtime_checkable
class Survives(Protocol):
    """A sandbox that outlives the process of its run, and can be found again with `Reopens.reopen`."""

    @property
    def identity(self) -> str:
        """Id for `Reopens.reopen`."""

    async def pause(self) -> None:
        """Stop its processes until it is reopened, if that is possible. Raises TrialError."""


@runtime_checkable
class NoticesVisitors(Protocol):
    """A sandbox that can tell whether a person works in it."""

    async def has_visitor(self) -> bool:
        """Whether a person has a terminal of their own open in it. Raises TrialError."""


@runtime_checkable
class HasServices(Protocol):
    """A sandbox of several containers."""

    def service(self, name: str) -> Sandbox:
        """Return the container of a service by its name in the compose file.

        Raises TrialError(sandbox_failed) for an unknown name.
        """

    async def stop_main(self) -> None:
        """Stop the agent's container but leave its services running."""


@runtime_checkable
class HasLogs(Protocol):
    """A sandbox with logs of its entry point and services."""

    async def logs(self) -> Mapping[str, bytes]:
        """Return at most the last megabyte of each log: `entrypoint.log`, and `services/NAME.log`. Never raises."""


@runtime_checkable
class HidesSecrets(Protocol):
    """A sandbox that knows secrets, such as a proxy's password, and can redact them."""

    def hide(self, text: str) -> str:
        """Redact the secrets in `text`."""


@runtime_checkable
class BoundsDisk(Protocol):
    """A sandbox that notices when its agent writes too much."""

    async def disk_exceeded(self) -> asyncio.Event:
        """Wait until the agent has written more than it may; returns an event, set once its processes are killed."""


@runtime_checkable
class MakesRoom(Protocol):
    """A sandbox whose limits can be raised from outside."""

    async def make_room(self) -> tuple[str, ...]:
        """Free processes or memory if they are used up, so that commands can be started again.

        Returns the actions taken as `kind: what`; empty if nothing was used up.
        """


@runtime_checkable
class SwitchesNetwork(Protocol):
    """A sandbox that can change its network for each phase of a trial."""

    async def use_network(self, policy: NetworkPolicy) -> None:
        """Apply the network policy of a phase, and end connections that it forbids. Raises TrialError.

        Does nothing if all phases of the task have the same network, or if the run has chosen the network.
        """


class TtyStream(ByteStream, Protocol):
    """Input and output of a terminal in the sandbox."""

    async def resize(self, rows: int, columns: int) -> None:
        """Set the terminal's size."""


@runtime_checkable
class HasTty(Protocol):
    """A sandbox in which a person can use a terminal."""

    async def open_tty(
        self, argv: Sequence[str], environment: Mapping[str, str], rows: int, columns: int, user: str | None = None
    ) -> TtyStream:
        """Start `argv` as `user` (default: the task's agent user) on a new terminal."""


@dataclass(frozen=True)
class Capacity:
    """Total resources of a backend's sandboxes."""

    cpus: float
    memory_mb: float
    is_this_machine: bool = False
    """Whether the sandboxes run on the machine of this process and share its load."""
    gpus: int | None = 0
    """Number of GPUs; None if there are some but their number is unknown."""
    kept_mb: float = 0.0
    """Memory that sandboxes of interrupted trials of earlier runs may use."""


class Backend(Protocol):
    """Makes the sandboxes of one run. Opened once, then closed."""

    @property
    def name(self) -> str:
        """The backend's name in messages."""

    @property
    def sandbox_type(self) -> type:
        """Class of its sandboxes, which implements the optional protocols that they support."""

    @property
    def image_ids(self) -> Mapping[str, str]:
        """Image ids by name of the environment; filled in as images are resolved."""

    @property
    def image_origins(self) -> Mapping[str, ImageOrigin]:
        """Origins of these images, by name of the environment."""

    async def open(self, say: Say) -> None:
        """Prepare the backend, and remove leftovers of dead runs. Raises UsageError."""

    async def sandbox(
        self, environment: Environment, trial: str, on_phase: Callable[[Phase], None] = lambda _: None
    ) -> Sandbox:
        """Start a trial's sandbox and wait until it is healthy. Raises TrialError, and leaves nothing behind then."""

    async def prepare(self, environment: Environment) -> None:
        """Pull or build the environment's image ahead of `sandbox`. Raises TrialError."""

    def capacity(self) -> Capacity:
        """Return the total resources of all sandboxes."""

    def describe(self) -> dict[str, Any]:
        """Return the backend's entry in run.json, as plain JSON."""

    async def close(self) -> None:
        """Release everything but the sandboxes. Never raises."""


@runtime_checkable
class RefusesTasks(Protocol):
    """A backend that cannot run all tasks."""

    def refuse(self, environment: Environment) -> str:
        """Return why it cannot make an environment's sandboxes; empty if it can. Starts nothing. Raises TrialError."""


@runtime_checkable
class Reopens(Protocol):
    """A backend that can find kept sandboxes and snapshots again."""

    async def reopen(self, environment: Environment, trial: str, kept: str) -> Sandbox:
        """Find a kept sandbox by its id `kept`. Raises TrialError(sandbox_lost) if it is gone."""

    async def from_snapshot(self, environment: Environment, trial: str, image_id: str) -> Sandbox:
        """Start a sandbox with the files of a snapshot. Raises TrialError."""


@runtime_checkable
class HoldsImages(Protocol):
    """A backend that can fetch images before their trials, and remove them afterwards."""

    async def describe_pulls(self, environments: Sequence[Environment], *, ask: bool) -> Sequence[str]:
        """Describe the pulls ahead and whether they fit on the disk; `ask` allows asking registries for sizes.

        Takes a few seconds at most. Never raises.
        """

    async def prefetch(self, environments: Sequence[Environment]) -> Mapping[str, TrialError]:
        """Fetch the images of these environments; returns the errors by name."""

    async def drop_image(self, environment: Environment, others: Sequence[Environment]) -> int:
        """Remove an image that this run has fetched, unless the `others` or other users of the backend need it.

        Returns the bytes freed, 0 if it stays. Never raises.
        """


@runtime_checkable
class RechecksTools(Protocol):
    """A backend with files shared by all sandboxes, which may break during a run."""

    def request_recheck(self) -> None:
        """Request a check of the shared files before the next sandbox, because of an infrastructure failure."""


@dataclass(frozen=True)
class SandboxSettings:
    """Settings of the sandboxes of one run."""

    run: str
    config: SandboxConfig = field(default_factory=SandboxConfig)
    """The configuration's sandbox settings."""
    container_proxy: ContainerProxy = WITHOUT_PROXY
    """Proxy for sandboxes and builds that have a network."""
    endpoints: tuple[str, ...] = ()
    """URLs of the endpoint's servers, which `block_host` makes unreachable."""
    image_logs: Path | None = None
    """Directory for the output of builds, in the directory of the run."""
    machine_folder: str = ""
    """Folder of `image_logs` for one of several machines; empty for the only machine."""
    package: AgentPackage | None = None
    """Package of the agent, which is mounted in every sandbox; None for agents without one."""
    made_images: dict[str, set[str]] = field(default_factory=dict)
    """Ids of the images that were pulled or built, by engine; runs of several models share them."""

    @property
    def own_logs(self) -> Path | None:
        """Directory for the output of builds on this machine."""
        return None if self.image_logs is None else self.image_logs / self.machine_folder

    @property
    def directory(self) -> Path | None:
        """Directory of the run; None for a run without one."""
        return None if self.image_logs is None else self.image_logs.parent.resolve()


MakeBackend = Callable[[SandboxSettings], Backend]
"""Makes the backend for a run."""
Opened = TypeVar("Opened", bound=Backend)
_MISSING: dict[type, str] = {
    Compares: "cannot compare a sandbox with its image",
    Copies: "cannot copy a sandbox",
    Streams: "cannot stream files",
    Snapshots: "cannot take snapshots",
    Keeps: "cannot keep a sandbox beyond its run",
    MakesRoom: "cannot raise a sandbox's limits",
    SwitchesNetwork: "cannot change a sandbox's network",
    HasTty: "has no interactive terminal",
}


def require(backend: Backend, capability: type, wanted: str) -> None:
    """Check that the backend's sandboxes have the capability that `wanted` (an option, a command) needs.

    Raises UsageError.
    """
    if not issubclass(backend.sandbox_type, capability):
        raise UsageError(f"{wanted}: {backend.name} {_MISSING[capability]}; omit it or use another backend")


def service_of(sandbox: Sandbox, name: str) -> Sandbox:
    """Return the container of a service of the sandbox. Raises TrialError(sandbox_failed)."""
    if not isinstance(sandbox, HasServices):
        raise TrialError("sandbox_failed", f"there is no service {name!r}: this sandbox is one container")
    return sandbox.service(name)


async def use_network(sandbox: Sandbox, environment: Environment, phase: Literal["start", "agent", "verifier"]) -> None:
    """Apply the network policy of a phase to a sandbox of `environment`. Raises TrialError."""
    networks = environment.networks
    if networks.is_plain:
        return
    if not isinstance(sandbox, SwitchesNetwork):
        needed = "its network changes between phases, or allows only some hosts"
        raise TrialError("task_unsupported", f"{needed}, and this backend {_MISSING[SwitchesNetwork]}")
    await sandbox.use_network(getattr(networks, phase))


async def check_output(sandbox: Sandbox, script: str, *, timeout_sec: float, stdin: bytes = b"") -> bytes:
    """Run a script as root and return its output. Raises TrialError, also if the script fails."""
    ended = await sandbox.shell(script, timeout_sec=timeout_sec, user="root", stdin=stdin)
    if ended.exit_code == 0 and not ended.timed_out and not ended.was_cut:
        return ended.output
    how = f"took longer than {timeout_sec:g} s" if ended.timed_out else f"ended with {ended.exit_code}"
    message = f"a script that inspects the container {how}"
    raise TrialError("verifier_failed", message, origin=Origin("exec", sandbox.is_fresh, ran=True))


@contextlib.asynccontextmanager
async def open_backend(backend: Opened, say: Say = lambda _: None) -> AsyncIterator[Opened]:
    """Open `backend` for the duration of the block."""
    try:
        await backend.open(say)
        yield backend
    finally:
        await asyncio.shield(backend.close())


@contextlib.asynccontextmanager
async def removed_afterwards(sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """Remove the sandbox at the end of the block, also if the block is cancelled."""
    try:
        yield sandbox
    finally:
        await wait_until_ended(asyncio.ensure_future(sandbox.remove()))
