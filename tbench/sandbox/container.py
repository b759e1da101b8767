"""The part of a sandbox that is the same for every container engine: variables, users and paths of its commands."""

from __future__ import annotations

import asyncio
import dataclasses
import io
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Generic, Self, TypeVar

from harness.stream import ByteStream
from tbench.errors import Origin, TrialError
from tbench.sandbox.archive import FileEntry
from tbench.sandbox.backend import (
    BUSYBOX,
    LOG_DIRECTORIES,
    ExecResult,
    TtyStream,
)
from tbench.sandbox.commands import OUTPUT_BYTES, Command, Commands, EndOfOutput
from tbench.sandbox.disk_watch import WatchedDisk
from tbench.sandbox.pinning import Lease
from tbench.sandbox.recipe import SandboxRecipe
from tbench.sandbox.startup import wait_until_healthy
from tbench.sandbox.stream import OutputStream
from tbench.sandbox.transfer import transfer
from tbench.tasks.format import Healthcheck

_CONNECT_SEC = 30.0
"""Deadline for connecting; shorter than a terminal waits for tmux, to tell a hanging engine from a hanging tmux."""
_FULL = 0.9
"""Share of a limit above which it counts as used up."""
MIN_FREE_PIDS = 16
"""Number of free process ids that a verifier needs."""
_MORE_MEMORY_MB = 512.0
ROOT = "0:0"
"""Root by number, since the accounts in the container may have changed."""
RecipeType = TypeVar("RecipeType", bound=SandboxRecipe)


class BaseContainer(ABC, Generic[RecipeType]):
    """The container of one trial; a backend's own class starts, changes and removes it."""

    def __init__(self, container_id: str, recipe: RecipeType, commands: Commands) -> None:
        """`container_id` is the id of a container that was made from `recipe`."""
        self.container_id = container_id
        self.workdir = recipe.workdir or recipe.image.workdir
        self._recipe = recipe
        self._image = recipe.image
        self._agent_user = recipe.agent_user
        self._limits = recipe.limits
        self.is_fresh = recipe.is_fresh
        self._masks = recipe.proxy.masks
        self._network = recipe.network
        self._commands = commands
        self.lease = Lease()
        """CPUs and GPUs reserved for it, released when it is removed or kept."""
        self.disk: WatchedDisk | None = None
        """The container's disk use, if an agent works in the container."""

    @abstractmethod
    async def logs(self) -> Mapping[str, bytes]:
        """Return the last output of its entry point; see `HasLogs`."""

    @property
    @abstractmethod
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel is known to have killed one of its processes because memory ran out."""

    async def disk_exceeded(self) -> asyncio.Event:
        return await (self.disk.exceeded() if self.disk is not None else asyncio.Future())

    @abstractmethod
    async def put(self, files: Mapping[str, FileEntry]) -> None:
        """Write files by absolute path, with their modes and owners."""

    @abstractmethod
    async def fetch(self, directory: str, limit_bytes: int) -> dict[str, bytes]:
        """Read the regular files below `directory`; see `Sandbox`."""

    @abstractmethod
    async def remove(self) -> None:
        """Remove the container by force, in bounded time. Never raises."""

    @abstractmethod
    async def open_as_root(self, script: str, limit_sec: int) -> tuple[OutputStream, EndOfOutput]:
        """Start a script as root, without masks: files are transferred unchanged. Raises TrialError."""

    @abstractmethod
    async def _kill_processes(self) -> None:
        """Kill all processes except our init."""

    @abstractmethod
    async def _limit_memory(self, size: int) -> bool:
        """Set another limit in bytes; returns False if limits cannot be changed."""

    @property
    def _proxy_of_phase(self) -> Mapping[str, str]:
        """Proxy variables for a command started now, if its network is public.

        With a list of allowed hosts there are none, since a proxy would bypass the list. Services have theirs from the
        start.
        """
        is_open = self._recipe.is_proxied or (self._network is not None and self._network.mode == "public")
        return self._recipe.proxy_variables() if is_open and self._recipe.starts else {}

    @property
    def runs_as_root(self) -> bool:
        return self._image.user in ("", "0", "root", "0:0", "root:root")

    async def connect(self, argv: Sequence[str], environment: Mapping[str, str], user: str | None = None) -> ByteStream:
        user = user or self._agent_user
        environment = {**self._proxy_of_phase, **environment}
        if not self._image.has_locale:
            environment = {"LANG": "C.UTF-8", **environment}
        if self.runs_as_root and user is None:
            make = f"{BUSYBOX} mkdir -p {' '.join(LOG_DIRECTORIES)}"
            argv = [BUSYBOX, "sh", "-c", f'{make}; exec "$@"', "sh", *argv]
        try:
            # Without waiting for the engine: a terminal does so itself, and does not charge the agent for the time.
            command = Command(argv, user or "", self.workdir, environment)
            return await self._commands.open(command, deadline_sec=_CONNECT_SEC, outage_sec=0)
        except TrialError as error:
            if error.type == "engine_unreachable":
                raise ConnectionError(str(error)) from error
            raise

    async def shell(
        self,
        script: str,
        *,
        timeout_sec: float,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        return await self.stream(
            script, timeout_sec=timeout_sec, user=user, environment=environment, source=io.BytesIO(stdin)
        )

    async def stream(
        self,
        script: str,
        *,
        timeout_sec: float,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        source: IO[bytes] | None = None,
        sink: IO[bytes] | None = None,
        limit_bytes: int = OUTPUT_BYTES,
    ) -> ExecResult:
        environment = {**self._proxy_of_phase, **(environment or {})}
        if user in ("root", "0"):
            user = ROOT
            if not self._image.has_home:
                # Otherwise the engine takes HOME from the accounts.
                environment.setdefault("HOME", "/root")
        try:
            return await self._commands.run(
                script,
                timeout_sec=timeout_sec,
                user=user or "",
                environment=environment,
                source=source or io.BytesIO(),
                sink=sink,
                limit_bytes=limit_bytes,
            )
        except TrialError as error:
            error.origin = error.origin or Origin("exec", self.is_fresh, getattr(error.__cause__, "status", None))
            raise

    async def open_tty(
        self, argv: Sequence[str], environment: Mapping[str, str], rows: int, columns: int, user: str | None = None
    ) -> TtyStream:
        environment = {**self._proxy_of_phase, **environment}
        command = Command(argv, user or self._agent_user or "", self.workdir, environment)
        return await self._commands.tty(command, (rows, columns))

    @property
    def _needs_log_directories(self) -> bool:
        """Whether the log directories are made at the start.

        Otherwise the agent's and the verifier's scripts make them as root, which is far cheaper.
        """
        recipe = self._recipe
        return not self.runs_as_root or recipe.agent_user is not None or bool(recipe.startup.entrypoint)

    @property
    def _original_recipe(self) -> RecipeType:
        """The recipe with the task's own image, even if this container was made from a snapshot."""
        return dataclasses.replace(self._recipe, image=self._recipe.original or self._image, original=None)

    def image_id(self) -> str:
        return self._original_recipe.image.id

    def can_be_apart(self) -> bool:
        recipe = self._recipe
        return recipe.network is None and not (recipe.closed_to and recipe.has_internet)

    async def copy_into(self, starting: asyncio.Future[Self], paths: Collection[str], removed: Collection[str]) -> None:
        async def open_copy(script: str, limit_sec: int) -> tuple[OutputStream, EndOfOutput]:
            # The files are packed while the copy starts.
            return await (await asyncio.shield(starting)).open_as_root(script, limit_sec)

        await transfer(self.open_as_root, open_copy, paths, removed)

    async def _free(self, processes: int, memory: int, details: Mapping[str, int]) -> tuple[str, ...]:
        """Make room as in `MakesRoom`, with the numbers of processes and bytes in use.

        `details` are the kernel's memory statistics: they show the file cache, which the kernel can reclaim.
        """
        limits, repairs = self._limits, []
        if processes >= min(_FULL * limits.pids, limits.pids - MIN_FREE_PIDS):
            await self._kill_processes()
            repairs.append(f"processes: {processes} of {limits.pids} were running; all were killed")
        cache = sum(details.get(f"total_{name}", details.get(name, 0)) for name in ("active_file", "inactive_file"))
        held_mb, more_mb = (memory - cache) / (1 << 20), limits.memory_mb + _MORE_MEMORY_MB
        if held_mb >= _FULL * limits.memory_mb and await self._limit_memory(int(more_mb * (1 << 20))):
            repairs.append(f"memory: {limits.memory_mb:.0f} MB were used up; {more_mb:.0f} MB are allowed now")
        return tuple(repairs)

    async def wait_until_healthy(self, check: Healthcheck) -> None:
        """Wait for a healthcheck. Raises TrialError with the logs of entry point and services."""
        try:
            await wait_until_healthy(self, check)
        except TrialError as error:
            error.files = await self.logs()
            raise

    async def when_healthy(self, check: Healthcheck | None) -> Self:
        """Return the container once the task's own healthcheck passes; remove it if that fails. Raises TrialError."""
        if check is not None:
            try:
                await self.wait_until_healthy(check)
            except BaseException:
                await asyncio.shield(self.remove())
                raise
        return self

    def hide(self, text: str) -> str:
        return self._masks.mask_text(text)
