"""A sandbox without an engine: a container of the runtime on an overlay of its image."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO

from tbench.errors import Origin, TrialError
from tbench.results import Stage
from tbench.sandbox.archive import FileEntry, pack, unpack
from tbench.sandbox.backend import BUSYBOX, LOG_DIRECTORIES, TOOLS, BackendFacts, ExecResult, Sandbox
from tbench.sandbox.commands import EndOfOutput
from tbench.sandbox.container import MIN_FREE_PIDS, ROOT, BaseContainer
from tbench.sandbox.container_proxy import Masks
from tbench.sandbox.oci.accounts import find_user
from tbench.sandbox.oci.images import Images
from tbench.sandbox.oci.process import OciCommands
from tbench.sandbox.oci.spec import container_spec, process_spec
from tbench.sandbox.oci.store import (
    OciError,
    State,
    Store,
    held,
    how_to_install,
    image_facts,
    is_full,
    run,
    runtime_name,
    start_of,
)
from tbench.sandbox.owner import LABEL_BEGAN, LABEL_ORIGINAL, LABEL_SNAPSHOT, SNAPSHOT_KEPT
from tbench.sandbox.recipe import Originals, SandboxRecipe
from tbench.sandbox.stream import OutputStream

_ADDRESS, _NAME_SERVER = "10.0.2.100", "10.0.2.3"
"""Addresses that slirp4netns gives to a container and to its own name server."""
_READY_SEC = 30.0
_PUT_SEC = 600
_LOG_BYTES = 1 << 20
_WITHOUT_CGROUPS = {"runc": "--rootless=true", "crun": "--cgroup-manager=disabled"}
"""Options with which the runtime accepts cgroups that cannot be written, even as root."""
_NO_OVERLAY = 99
_OVERLAY_REMEDY = f"; use another file system, or install fuse-overlayfs: {how_to_install(['fuse-overlayfs'])}"
# In the container's own mount namespace, so that nothing stays mounted when the container ends, for whatever reason.
_START = """options=$1 merged=$2 log=$3; shift 3
mount -t overlay overlay -o "$options" "$merged" 2>"$log" ||
    { [ "$FUSE" ] && fuse-overlayfs -o "$FUSE" "$merged" 2>>"$log"; } || exit 99
exec "$@"
"""
_BOUNDED = f'stdbuf -o0 head -c {_LOG_BYTES} >"$1"; exec cat >/dev/null\n'
# This ends when the container's first process has ended, even if tbench has been killed.
_ONLINE = """tail --pid="$1" -f /dev/null |
slirp4netns --configure --mtu=65520 --disable-host-loopback --exit-fd=0 --ready-fd=1 "$1" eth0
"""
# The process that starts a container holds a lock on its directory, and continues if tbench is killed.
_WAIT_FOR_START = '[ ! -d "$0" ] || flock --wait 30 "$0" true\n'
# On a busy machine a cgroup may not be empty at once. The runtime does not know a container that has not started.
_DELETE = """id=${0##*/}
for turn in 1 2 3 4 5; do
    "$@" delete --force "$id" 2>/dev/null && break
    "$@" state "$id" >/dev/null 2>&1 || break
    sleep 0.5
done
exec rm -rf "$0"
"""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where containers are made."""

    store: Store
    images: Images
    originals: Originals = dataclasses.field(default_factory=Originals)
    has_limits: bool = True
    """Whether cgroups may be written."""


class OciContainer(BaseContainer[SandboxRecipe]):
    """The container of one trial."""

    def __init__(self, place: Place, recipe: SandboxRecipe, directory: Path, state: State) -> None:
        self._place, self._directory, self._state, self._recipe = place, directory, state, recipe
        layers = [directory / "upper", *place.images.layers(recipe.image.id)]
        own = image_facts(place.images.directory(recipe.image.id))["Config"].get("Env") or ()
        variables = dict(each.partition("=")[::2] for each in own)
        self._variables = {**variables, "HOSTNAME": recipe.hostname or directory.name[-12:], **recipe.environment}
        self._layers = layers
        super().__init__(directory.name, recipe, self._make_commands(recipe.proxy.masks))
        self._oom_kills = 0

    def _make_commands(self, masks: Masks | None) -> OciCommands:
        return OciCommands(
            self._place.store, self._directory, self._recipe, self._state, self._layers, self._variables, masks
        )

    @classmethod
    async def start(cls, place: Place, recipe: SandboxRecipe) -> OciContainer:
        """Create and start a container, and wait for the image's own healthcheck.

        Raises TrialError (sandbox_failed, sandbox_lost, image_unavailable, image_no_space, healthcheck_failed), and
        leaves nothing behind then.
        """
        directory = place.store.containers / f"tbench-{uuid.uuid4().hex[:16]}"
        state = State(recipe.labels, recipe.image.id, time.time(), reaches_internet=recipe.has_internet)
        container = None
        try:
            for folder in (directory, *(directory / each for each in ("upper", "work", "merged"))):
                folder.mkdir(0o755)
            state.write(directory)
            container = cls(place, recipe, directory, state)
            await container._start()
            return container
        except BaseException as error:
            await asyncio.shield(
                remove_container(place.store, directory, state if container is None else container._state)
            )
            if isinstance(error, OciError | OSError | TimeoutError):
                why = f"starting the container failed: {error or 'it took too long'}"
                kind = "image_no_space" if is_full(why) else "sandbox_failed"
                origin = Origin("start", recipe.is_fresh)
                raise TrialError(kind, why, stage=Stage.SANDBOX, origin=origin) from error
            raise

    async def _start(self) -> None:
        recipe = self._recipe
        shared = None if recipe.shares_with is None else State.read(self._directory.parent / recipe.shares_with)
        if recipe.shares_with is not None and (shared is None or not shared.is_running):
            raise TrialError("sandbox_lost", "the container whose network is to be shared is gone")
        self._write_files()
        init = [f"{TOOLS}/bin/init", *recipe.startup.entrypoint]
        proxies = recipe.proxy_variables() if recipe.has_proxy_variables else {}
        user = find_user(self._layers, recipe.image.user)
        process = process_spec(recipe, init, user, self.workdir, {**self._variables, **proxies})
        network = "" if shared is None else f"/proc/{shared.pid}/ns/net"
        spec = container_spec(
            self._place.store, recipe, self._directory, process, limits=self._place.has_limits, network=network
        )
        (self._directory / "config.json").write_text(json.dumps(spec))
        await self._run_init(None if shared is None else shared.pid)
        if recipe.has_internet and shared is None:
            await self._go_online()
        if self._needs_log_directories:
            await self.put(LOG_DIRECTORIES)
        if recipe.startup.healthcheck is not None:
            await self.wait_until_healthy(recipe.startup.healthcheck)
        if recipe.loose is not None:
            with tempfile.TemporaryFile() as file:
                await asyncio.to_thread(recipe.loose.pack, file)
                file.seek(0)
                await self._unpack(file, self.workdir)

    def _write_files(self) -> None:
        recipe, name = self._recipe, self._recipe.hostname or self._directory.name[-12:]
        own = f"{_ADDRESS}\t{name}\n" if recipe.has_internet else ""
        (self._directory / "hosts").write_text(f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n{own}")
        (self._directory / "hostname").write_text(f"{name}\n")
        (self._directory / "resolv.conf").write_text(f"nameserver {_NAME_SERVER}\n" if recipe.has_internet else "")

    async def _run_init(self, shares_with: int | None) -> None:
        """Start the first process. Raises OciError."""
        store, directory = self._place.store, self._directory
        lower = ":".join(str(each) for each in self._layers[1:])
        options = f"lowerdir={lower},upperdir={self._layers[0]},workdir={directory}/work"
        errors, pid_file = directory / "start.log", directory / "pid"
        words = [] if self._place.has_limits else [_WITHOUT_CGROUPS[runtime_name()]]
        words += ["--log", str(errors), "run", "--detach", "--pid-file", str(pid_file), "--bundle", str(directory)]
        argv = [
            *store.as_root(shares_with), "unshare", "--mount", "sh", "-c", _START, "sh",
            options + (",userxattr" if store.is_rootless else ""), str(directory / "merged"), str(errors),
            *store.runtime(*words, directory.name),
        ]  # fmt: skip
        uses_fuse = shutil.which("fuse-overlayfs") and os.access("/dev/fuse", os.W_OK)
        output = await self._log_pipe() if self._recipe.startup.entrypoint else asyncio.subprocess.DEVNULL
        try:
            with held(directory) as lock:
                process = await asyncio.create_subprocess_exec(
                    *argv, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                    env={**os.environ, "FUSE": options if uses_fuse else ""}, pass_fds=(lock,),
                )  # fmt: skip
        finally:
            if output >= 0:
                os.close(output)
        async with asyncio.timeout(_READY_SEC):
            await process.wait()
        if process.returncode:
            lines = _read_lines(errors)
            if process.returncode != _NO_OVERLAY:
                raise OciError(lines[-1])
            # Its last line is only a hint at the kernel's log.
            raise OciError(f"{lines[0]}{'' if shutil.which('fuse-overlayfs') else _OVERLAY_REMEDY}")
        pid = int(pid_file.read_text())
        self._state = dataclasses.replace(self._state, pid=pid, starttime=start_of(pid))
        self._state.write(directory)
        self._commands = self._make_commands(self._masks)

    async def _log_pipe(self) -> int:
        """Return the writing end of a pipe to the bounded log of an entry point."""
        read, write = os.pipe()
        try:
            await _start_in_background(_BOUNDED, str(self._directory / "log"), stdin=read)
        finally:
            os.close(read)
        return write

    async def _go_online(self) -> None:
        """Connect the container with the internet. Raises OciError, TimeoutError."""
        read, write = os.pipe()
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        try:
            try:
                await _start_in_background(_ONLINE, str(self._state.pid), stdout=write)
            finally:
                os.close(write)
            loop.add_reader(read, readable.set)
            async with asyncio.timeout(_READY_SEC):
                await readable.wait()
            if not os.read(read, 1):
                raise OciError("slirp4netns could not connect the container with the internet")
        finally:
            loop.remove_reader(read)
            os.close(read)

    @property
    def ran_out_of_memory(self) -> bool:
        self._oom_kills = max(self._oom_kills, _count_oom_kills(self._state.pid))
        return self._oom_kills > 0

    async def put(self, files: Mapping[str, FileEntry]) -> None:
        await self._unpack(io.BytesIO(pack(files)), "/")

    async def _unpack(self, archive: IO[bytes], directory: str) -> None:
        script = f'exec {BUSYBOX} tar -x -p -f - -C "$TARGET"'
        ended = await self.stream(
            script, timeout_sec=_PUT_SEC, user="root", source=archive, environment={"TARGET": directory}
        )
        if ended.exit_code != 0:
            raise TrialError("sandbox_failed", "copying files into the container failed",
                             origin=Origin("put_archive", self.is_fresh, ran=True))  # fmt: skip

    async def fetch(self, directory: str, limit_bytes: int) -> dict[str, bytes]:
        listing = f"{BUSYBOX} find . -type f -print0 | {BUSYBOX} sort -z"
        script = f'cd "$SOURCE" 2>/dev/null || exit 0; {listing} | {BUSYBOX} xargs -0 -r {BUSYBOX} tar -c -f -'

        async def read(sink: IO[bytes]) -> ExecResult:
            return await self.stream(
                script, timeout_sec=_PUT_SEC, user="root", sink=sink, limit_bytes=2 * limit_bytes + _LOG_BYTES,
                environment={"SOURCE": directory},
            )  # fmt: skip

        with tempfile.TemporaryFile() as sink:
            try:
                ended = await read(sink)
                is_read = ended.exit_code == 0 or ended.timed_out or not self._place.has_limits
            except TrialError as error:
                if error.type != "sandbox_failed" or not self._place.has_limits:
                    raise
                is_read = False
            if not is_read:
                # Perhaps no process could be started.
                sink.seek(0)
                sink.truncate()
                async with self._more_processes():
                    ended = await read(sink)
            if ended.timed_out:
                raise TrialError("sandbox_lost", f"reading {directory} took longer than {_PUT_SEC} s")
            sink.seek(0)
            return unpack(sink, limit_bytes, whole_names=True)

    @contextlib.asynccontextmanager
    async def _more_processes(self) -> AsyncIterator[None]:
        """Allow some processes more than the limit for the block."""
        limit = self._limits.pids
        try:
            await self._runtime("update", "--pids-limit", str(limit + MIN_FREE_PIDS))
            yield
            await self._runtime("update", "--pids-limit", str(limit))
        except (OciError, TimeoutError) as error:
            origin = Origin("make_room", self.is_fresh)
            raise TrialError("sandbox_failed", f"allowing more processes failed: {error}", origin=origin) from error

    async def backend_facts(self) -> BackendFacts:
        labels = image_facts(self._place.images.directory(self._recipe.image.id))["Config"].get("Labels") or {}
        return BackendFacts(began_at=float(labels.get(LABEL_BEGAN) or self._state.began_at))

    async def original(self) -> Sandbox:
        return await self._place.originals.get(self._original_recipe, partial(self.start, self._place), _is_running)

    async def start_copy(self, *, is_apart: bool = False) -> OciContainer:
        shares_with = None if is_apart and self.can_be_apart() else self.container_id
        return await self._another(dataclasses.replace(self._original_recipe, shares_with=shares_with))

    async def make_fresh(self) -> Sandbox:
        return await self._another(dataclasses.replace(self._original_recipe, shares_with=None))

    async def _another(self, recipe: SandboxRecipe) -> OciContainer:
        return await self.start(self._place, dataclasses.replace(recipe, is_fresh=True))

    async def open_as_root(self, script: str, limit_sec: int) -> tuple[OutputStream, EndOfOutput]:
        return await self._make_commands(None).script(script, limit_sec=limit_sec, user=ROOT, environment={})

    async def logs(self) -> Mapping[str, bytes]:
        with contextlib.suppress(OSError):
            if printed := (self._directory / "log").read_bytes():
                return {"entrypoint.log": self._masks.mask(printed)}
        return {}

    async def snapshot(self) -> str:
        if not self._state.is_running:
            raise TrialError("sandbox_lost", "the container is gone or ended")
        labels = {
            **self._state.labels, LABEL_SNAPSHOT: SNAPSHOT_KEPT, LABEL_ORIGINAL: self._original_recipe.image.id,
            LABEL_BEGAN: str((await self.backend_facts()).began_at),
        }  # fmt: skip
        try:
            async with self._paused():
                return await self._place.images.save(self._recipe.image.id, self._layers[0], labels)
        except (OciError, OSError, TimeoutError) as error:
            raise TrialError("verifier_failed", f"copying the sandbox failed: {error}") from error

    @contextlib.asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """Stop all processes for the block where that is possible, so that files do not change."""
        if not self._place.has_limits:
            yield
            return
        await self._runtime("pause")
        try:
            yield
        finally:
            await self._runtime("resume")

    async def _runtime(self, *words: str) -> str:
        store = self._place.store
        return await run([*store.as_root(self._state.pid), *store.runtime(*words, self.container_id)])

    async def keep(self) -> str:
        self._state = dataclasses.replace(self._state, is_kept=True)
        try:
            self._state.write(self._directory)
        except OSError as error:
            raise TrialError("sandbox_lost", f"keeping the sandbox failed: {error}") from error
        self.lease.release()
        return self.container_id

    async def make_room(self) -> tuple[str, ...]:
        if not self._place.has_limits or not self._state.is_running:
            return ()
        try:
            used = json.loads(await self._runtime("events", "--stats"))["data"]
            memory = used["memory"]
            processes, in_use = used["pids"].get("current", 0), memory["usage"].get("usage", 0)
            return await self._free(processes, in_use, memory.get("raw") or {})
        except (OciError, OSError, ValueError, TimeoutError) as error:
            origin = Origin("make_room", self.is_fresh)
            raise TrialError("sandbox_failed", f"making room failed: {error}", origin=origin) from error

    async def _kill_processes(self) -> None:
        # While all are stopped, so that a fork bomb cannot start new ones meanwhile.
        async with self._paused():
            for pid in json.loads(await self._runtime("ps", "--format", "json")) or ():
                with contextlib.suppress(ProcessLookupError):
                    if pid != self._state.pid:
                        os.kill(pid, signal.SIGKILL)

    async def end_processes(self) -> None:
        """Kill all processes, or else stop the container. Never raises."""
        try:
            await self._kill_processes()
        except (OciError, OSError, ValueError, TimeoutError):  # without cgroups they cannot be listed
            with contextlib.suppress(OSError):
                if self._state.is_running:
                    os.kill(self._state.pid, signal.SIGKILL)

    async def _limit_memory(self, size: int) -> bool:
        await self._runtime("update", "--memory", str(size), "--memory-swap", str(size))
        return True

    async def remove(self) -> None:
        self._oom_kills = max(self._oom_kills, _count_oom_kills(self._state.pid))
        await remove_container(self._place.store, self._directory, self._state)
        self.lease.release()


async def _start_in_background(
    script: str, word: str, stdin: int = asyncio.subprocess.DEVNULL, stdout: int = asyncio.subprocess.DEVNULL
) -> None:
    """Start a shell script without waiting for its end; `word` is its first argument."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f"exec 3<&0\n{{\n{script}}} <&3 3<&- &", "sh", word,
        stdin=stdin, stdout=stdout, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    await process.wait()


async def _is_running(sandbox: Sandbox) -> bool:
    assert isinstance(sandbox, OciContainer)
    return sandbox._state.is_running


async def remove_container(store: Store, directory: Path, state: State | None) -> str:
    """Remove a container by force; returns why it is still there, or an empty text. Bounded; never raises."""
    try:
        if state is not None and state.is_running:
            await _kill(state)
        has_started = state is not None and state.pid != 0
        script = _DELETE if has_started else f"{_WAIT_FOR_START}{_DELETE}"
        await run([*store.as_root(), "sh", "-c", script, str(directory), *store.runtime()])
    except (OciError, OSError, TimeoutError) as error:
        return str(error) or "it took too long"
    return ""


async def _kill(state: State) -> None:
    """Kill a container's first process, and with it all others, and wait for the end."""
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(state.pid)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            if not state.is_running:  # the number may be another process's by now
                return
            loop.add_reader(process, ended.set)
            signal.pidfd_send_signal(process, signal.SIGKILL)
            async with asyncio.timeout(_READY_SEC):
                await ended.wait()
        finally:
            loop.remove_reader(process)
            os.close(process)


def _read_lines(log: Path) -> list[str]:
    """Return the lines of a log, at least one."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return [each[-400:] for each in lines] or ["no message"]
    return ["no message"]


def _count_oom_kills(pid: int) -> int:
    """Return how many processes in the cgroup of a process ran out of memory and were killed; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names and "memory" not in names.split(","):
                continue
            file = f"memory{path}/memory.oom_control" if names else f"{path}/memory.events"
            for row in Path(f"/sys/fs/cgroup/{file}").read_text().splitlines():
                if row.startswith("oom_kill "):
                    return int(row.split()[1])
    return 0
