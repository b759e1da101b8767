"""A sandbox in one container: created with the task's limits and our labels, removed by force."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from harness.stream import ByteStream
from tbench.errors import TrialError
from tbench.sandbox.archive import ChunkReader, FileEntry, pack, unpack
from tbench.sandbox.backend import BUSYBOX, LOG_DIRECTORIES, ChangeKind, ExecResult, Sandbox, TtyStream
from tbench.sandbox.docker.beside import Originals, compare, transfer
from tbench.sandbox.docker.create import (
    REMOVE_SEC,
    ContainerLimits,
    Recipe,
    container_error,
    create,
    create_arguments,
    force_remove,
    run_helper,
    unreachable,
)
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.exec_stream import ExecStream
from tbench.sandbox.docker.labels import KEPT_PREFIX, LABEL_ORIGINAL, LABEL_SNAPSHOT, SNAPSHOT_KEPT
from tbench.sandbox.docker.memory_watch import MemoryWatch
from tbench.sandbox.docker.network import closing_script
from tbench.text import one_line

__all__ = ["Container", "ContainerLimits", "Recipe"]

_CHANGES: Mapping[int, ChangeKind] = {0: "changed", 1: "added", 2: "removed"}
"""Kinds of changes by the engine's numbers."""
_COMMIT_SEC = 900.0
_ENDS_SEC = 2
_EXEC_SEC = 60.0
_CONNECT_SEC = 30.0
"""Deadline for connecting; shorter than a terminal waits for tmux, so that a hanging engine is told from it."""
_OUTPUT_BYTES = 64 << 20
_BEGAN = b"\1"
"""Output before that of a command; without it, not even a shell could be started."""
_ROOT = "0:0"
"""Root by number: the accounts in the container may be gone, or changed."""
_FULL = 0.9
"""Share of a limit from which on it counts as used up."""
_LEAST_PIDS = 16
"""Free processes without which a verifier can hardly work."""
_MORE_MEMORY_MB = 512.0


class Container:
    """The container of one trial: a `Sandbox` with all optional protocols."""

    def __init__(
        self,
        engine: Engine,
        container_id: str,
        recipe: Recipe,
        memory_watch: MemoryWatch | None = None,
        originals: Originals | None = None,
    ) -> None:
        """`container_id` names a container that was made of `recipe`."""
        self.container_id = container_id
        self.workdir = recipe.workdir or recipe.image.workdir
        self._engine = engine
        self._recipe = recipe
        self._image = recipe.image
        self._agent_user = recipe.agent_user
        self._limits = recipe.limits
        self._memory_watch = memory_watch
        self._originals = originals or Originals()

    @classmethod
    async def start(
        cls,
        engine: Engine,
        recipe: Recipe,
        memory_watch: MemoryWatch | None = None,
        originals: Originals | None = None,
    ) -> Container:
        """Create and start a container.

        Raises TrialError (sandbox_failed, engine_unreachable, image_no_space); leaves nothing behind when it does.
        """
        created = await create(engine, create_arguments(engine, recipe))
        container = cls(engine, created, recipe, memory_watch, originals)
        try:
            if not container.runs_as_root or recipe.agent_user is not None:
                # As root the agent's and the verifier's own scripts make them, which is far cheaper.
                await container.put(LOG_DIRECTORIES)
            await engine.call(engine.api.start, container.container_id)
            if recipe.has_internet and recipe.closed_to and not recipe.beside:
                # Nothing of the image runs yet: PID 1 is our own init.
                network_mode = f"container:{container.container_id}"
                await container._beside(
                    closing_script(recipe.closed_to), network_mode=network_mode, cap_add=["NET_ADMIN"]
                )
        except EngineError as error:
            await container.remove()
            raise container_error(error, "starting") from error
        except BaseException:
            await asyncio.shield(container.remove())
            raise
        return container

    @property
    def runs_as_root(self) -> bool:
        return self._image.user in ("", "0", "root", "0:0", "root:root")

    @property
    def ran_out_of_memory(self) -> bool:
        return self._memory_watch is not None and self._memory_watch.ran_out_of_memory(self.container_id)

    async def connect(self, argv: Sequence[str], environment: Mapping[str, str]) -> ByteStream:
        if not self._image.has_locale:
            environment = {"LANG": "C.UTF-8", **environment}
        if self.runs_as_root and self._agent_user is None:
            make = f"{BUSYBOX} mkdir -p {' '.join(LOG_DIRECTORIES)}"
            argv = [BUSYBOX, "sh", "-c", f'{make}; exec "$@"', "sh", *argv]
        try:
            # Not waited for: a terminal does so itself, and is not charged for it.
            return await self._open(
                list(argv),
                user=self._agent_user or "",
                workdir=self.workdir,
                environment=environment,
                deadline_sec=_CONNECT_SEC,
                outage_sec=0,
            )
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
        # The limit holds inside (there is no API to end an exec) and, with a margin, outside.
        limit = max(1, round(timeout_sec))
        script = f"printf '\\1'\n{script}"
        argv = [BUSYBOX, "timeout", "-k", "5", str(limit), BUSYBOX, "sh", "-c", script]
        output = bytearray()
        environment = dict(environment or {})
        if user in ("root", "0"):
            user = _ROOT
            if not self._image.has_home:
                # Else the engine takes it from the accounts.
                environment.setdefault("HOME", "/root")
        stream = await self._open(argv, user=user or "", workdir="/", environment=environment)
        started = time.monotonic()
        try:
            async with asyncio.timeout(limit + 30):
                async with stream.fed(stdin):
                    while len(output) < _OUTPUT_BYTES and (data := await stream.read_output()):
                        output += data
                code = await self._exit_code(stream.exec_id)
        except TimeoutError:
            return ExecResult(None, bytes(output.removeprefix(_BEGAN)), timed_out=True)
        except OSError as error:
            raise TrialError("sandbox_lost", f"the stream of a command broke: {error}") from error
        timed_out = time.monotonic() - started >= limit and code in (None, 124, 137, 143)
        began = output.startswith(_BEGAN)
        if (code in (None, 137) or not began) and not timed_out and await self._has_ended():
            raise TrialError("sandbox_lost", "the container ended under a command")
        if not began and not timed_out:
            words = one_line((output.decode("utf-8", "replace") + stream.errors).strip(), 200)
            raise TrialError("sandbox_failed", f"no command can be started in the container ({code}): {words}")
        return ExecResult(code, bytes(output.removeprefix(_BEGAN)), timed_out)

    async def open_tty(self, argv: Sequence[str], environment: Mapping[str, str], rows: int, columns: int) -> TtyStream:
        stream = await self._open(
            list(argv), user=self._agent_user or "", workdir=self.workdir, environment=environment, tty=True
        )
        tty = _Tty(self._engine, stream)
        await tty.resize(rows, columns)
        return tty

    async def _exit_code(self, exec_id: str) -> int | None:
        """Exit code of a command; None where it runs on with its output closed."""
        # The stream may end a moment before the engine knows of the process's end.
        ends_at = time.monotonic() + _ENDS_SEC
        while True:
            try:
                state = await self._engine.call(self._engine.api.exec_inspect, exec_id)
            except EngineError as error:
                if error.status is None:
                    raise unreachable(error) from error
                # An exec is forgotten when its container is gone, and when the engine restarted.
                raise TrialError("sandbox_lost", f"a command was lost with its container or engine: {error}") from error
            if not state["Running"] or time.monotonic() > ends_at:
                code: int | None = state["ExitCode"]
                return code
            await asyncio.sleep(0.02)

    async def _has_ended(self) -> bool:
        """Whether the container has just ended: its processes die a moment before the engine knows."""
        try:
            await self._engine.call(self._engine.api.wait, self.container_id, timeout=_ENDS_SEC)
        except EngineError as error:
            return error.status == 404
        return True

    async def _open(
        self,
        argv: list[str],
        *,
        user: str,
        workdir: str,
        environment: Mapping[str, str],
        deadline_sec: float = _EXEC_SEC,
        outage_sec: float | None = None,
        tty: bool = False,
    ) -> ExecStream:
        engine = self._engine
        outage_sec = engine.outage_sec if outage_sec is None else outage_sec
        options: dict[str, Any] = {"user": user, "workdir": workdir, "environment": dict(environment), "tty": tty}
        try:
            async with asyncio.timeout(deadline_sec + outage_sec):
                created = await engine.call(
                    engine.api.exec_create, self.container_id, argv, stdin=True, **options,
                    deadline_sec=deadline_sec, outage_sec=outage_sec,
                )  # fmt: skip
                stream = await engine.call(
                    partial(_start_exec, engine.api, created["Id"], tty),
                    deadline_sec=deadline_sec,
                    outage_sec=outage_sec,
                    dispose=ExecStream.release,
                )
                return await stream.attach()
        except (EngineError, TimeoutError) as error:
            status = getattr(error, "status", None)
            if status in (404, 409) or "container state improper" in str(error):  # Podman's 500
                raise TrialError("sandbox_lost", f"the container is gone or ended: {error}") from error
            if status is None:
                raise unreachable(error) from error
            if await self._has_ended():  # in some moments of a removal it is a 500
                raise TrialError("sandbox_lost", f"the container ended: {error}") from error
            raise TrialError("sandbox_failed", f"starting {shlex.join(argv[:3])} failed: {error}") from error

    async def put(self, files: Mapping[str, FileEntry]) -> None:
        try:
            await self._engine.call(self._engine.api.put_archive, self.container_id, "/", pack(files))
        except EngineError as error:
            if error.status is None:
                raise unreachable(error) from error
            kind = "sandbox_lost" if error.status in (404, 409) else "sandbox_failed"
            raise TrialError(kind, f"copying files into the container failed: {error}") from error

    async def fetch(self, directory: str, limit_bytes: int) -> dict[str, bytes]:
        def read() -> dict[str, bytes]:
            chunks, _ = self._engine.api.get_archive(self.container_id, directory, chunk_size=1 << 20)
            return unpack(io.BufferedReader(ChunkReader(chunks), 1 << 20), limit_bytes)

        try:
            return await self._engine.call(read, again=True)
        except EngineError as error:
            if error.status is None:
                raise unreachable(error) from error
            if error.status == 404 and "no such container" not in str(error).lower():
                return {}
            raise TrialError("sandbox_lost", f"reading {directory} failed: {error}") from error

    @property
    def _original_recipe(self) -> Recipe:
        """The recipe with the task's own image, also where this container was made of a snapshot."""
        return dataclasses.replace(self._recipe, image=self._recipe.original or self._image, original=None)

    async def changes(self) -> Mapping[str, ChangeKind]:
        if self._recipe.original is not None:
            # The engine would only tell what changed since the snapshot.
            return await compare(await self.original(), self)
        try:
            found = await self._engine.call(self._engine.api.diff, self.container_id, again=True)
        except EngineError as error:
            if error.status is None:
                raise unreachable(error) from error
            raise TrialError("sandbox_lost", f"the engine cannot tell what changed: {error}") from error
        return {entry["Path"]: _CHANGES[entry["Kind"]] for entry in found or ()}

    async def original(self) -> Sandbox:
        return await self._originals.get(self._original_recipe, partial(Container.start, self._engine), _is_running)

    async def copy(self, paths: Collection[str], removed: Collection[str]) -> Sandbox:
        copy = await self._another(dataclasses.replace(self._original_recipe, beside=self.container_id))
        try:
            await transfer(self._open_as_root, copy._open_as_root, paths, removed)
        except BaseException:
            await asyncio.shield(copy.remove())
            raise
        return copy

    async def anew(self) -> Sandbox:
        return await self._another(self._original_recipe)

    async def _another(self, recipe: Recipe) -> Container:
        return await Container.start(self._engine, recipe, self._memory_watch, self._originals)

    async def _open_as_root(self, script: str) -> ExecStream:
        return await self._open([BUSYBOX, "sh", "-c", script], user=_ROOT, workdir="/", environment={})

    async def snapshot(self) -> str:
        # Processes stand still meanwhile, as files that change would be torn. The container's labels come along: run,
        # trial and owner.
        committing = asyncio.ensure_future(
            self._engine.call(
                self._engine.api.commit,
                self.container_id,
                changes=[f"LABEL {LABEL_SNAPSHOT}={SNAPSHOT_KEPT} {LABEL_ORIGINAL}={self._original_recipe.image.id}"],
                deadline_sec=_COMMIT_SEC,
            )
        )
        try:
            committed = await asyncio.shield(committing)
        except asyncio.CancelledError:
            # The engine goes on: wait for its answer, or the image would be nobody's.
            with contextlib.suppress(EngineError):
                await _remove_image(self._engine, (await committing)["Id"])
            raise
        except EngineError as error:
            kind = "sandbox_lost" if error.status in (404, 409) else "verifier_failed"
            raise TrialError(kind, f"copying the sandbox failed: {error}") from error
        return str(committed["Id"])

    async def keep(self) -> str:
        name = re.sub(r"[^\w.-]+", "-", self._recipe.trial)
        try:
            await self._engine.call(
                self._engine.api.rename, self.container_id, f"{KEPT_PREFIX}{name}-{self.container_id[:12]}"
            )
        except EngineError as error:
            raise TrialError("sandbox_lost", f"keeping the sandbox failed: {error}") from error
        return self.container_id

    async def make_room(self) -> tuple[str, ...]:
        try:
            used = await self._engine.call(self._engine.api.stats, self.container_id, stream=False, again=True)
            repairs = []
            processes = used.get("pids_stats", {}).get("current", 0)
            if processes >= min(_FULL * self._limits.pids, self._limits.pids - _LEAST_PIDS):
                # From a cgroup of its own, and all at once: a bomb has no time to refill.
                await self._beside("kill -9 -1", network_mode="none", pid_mode=f"container:{self.container_id}")
                repairs.append(f"processes: {processes} of {self._limits.pids} ran; all were ended")
            if _held_mb(used.get("memory_stats", {})) >= _FULL * self._limits.memory_mb:
                limit_mb = self._limits.memory_mb + _MORE_MEMORY_MB
                limit = int(limit_mb * (1 << 20))
                await self._engine.call(
                    self._engine.api.update_container, self.container_id, mem_limit=limit, memswap_limit=limit
                )
                repairs.append(
                    f"memory: {self._limits.memory_mb:.0f} MB were used up; {limit_mb:.0f} MB are allowed now"
                )
        except EngineError as error:
            raise TrialError("sandbox_failed", f"making room in the container failed: {error}") from error
        return tuple(repairs)

    async def _beside(self, script: str, **host_config: Any) -> None:
        recipe = self._recipe
        await run_helper(self._engine, self._image.id, recipe.tools_volume, script, labels=recipe.labels, **host_config)

    async def remove(self) -> None:
        await force_remove(self._engine, self.container_id)


async def _remove_image(engine: Engine, image_id: str) -> None:
    """Remove an image, in bounded time; its parent stays, also one without a name. Never raises."""
    with contextlib.suppress(EngineError):
        await engine.call(engine.api.remove_image, image_id, noprune=True, deadline_sec=REMOVE_SEC)


def _start_exec(api: Any, exec_id: str, tty: bool) -> ExecStream:
    return ExecStream(exec_id, api.exec_start(exec_id, socket=True, tty=tty), is_tty=tty)


async def _is_running(sandbox: Sandbox) -> bool:
    assert isinstance(sandbox, Container)
    try:
        state = await sandbox._engine.call(sandbox._engine.api.inspect_container, sandbox.container_id)
    except EngineError as error:
        if error.status == 404:
            return False
        raise unreachable(error) from error
    return bool(state["State"]["Running"])


class _Tty(TtyStream):
    """A command on a terminal of its own."""

    def __init__(self, engine: Engine, stream: ExecStream) -> None:
        self._engine = engine
        self._stream = stream

    async def read(self) -> bytes:
        return await self._stream.read_output()

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)

    async def resize(self, rows: int, columns: int) -> None:
        # A process that has ended has no window: whoever reads hears of its end.
        with contextlib.suppress(EngineError):
            await self._engine.call(self._engine.api.exec_resize, self._stream.exec_id, height=rows, width=columns)

    async def close(self) -> None:
        await self._stream.close()


def _held_mb(memory: Mapping[str, Any]) -> float:
    """Megabytes that the kernel cannot take back: processes and tmpfs, but not the cache of files."""
    details = memory.get("stats") or {}
    cache = sum(details.get(f"total_{name}", details.get(name, 0)) for name in ("active_file", "inactive_file"))
    return float(memory.get("usage", 0) - cache) / (1 << 20)
