"""The container engine: connects to it, calls Docker's SDK with deadlines, and interprets its errors.

Every call runs in a thread and has a deadline outside of it, since the SDK's stream sockets ignore the SDK's timeout.
This is also the one place that waits for an engine that is down for a while (a restart, an upgrade).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, TypeVar

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, create_api_error_from_http_exception
from docker.types import CancellableStream

from tbench.errors import EngineUnavailable, TbenchError
from tbench.sandbox.docker import sdk
from tbench.sandbox.docker.discovery import NO_ENGINE, Machine, Search, find_engine, start_commands
from tbench.sandbox.docker.login import read_docker_config
from tbench.sandbox.docker.tls import CERTIFICATES, VERIFY, TlsForward, tls_context
from tbench.sandbox.owner import owner as owner_of_this_process
from tbench.text import one_line
from tbench.threads import DaemonThreads

# The libraries below the SDK wrap an error several times, so that its causes have to be searched.


def is_cut_off(error: BaseException) -> bool:
    """Whether the connection broke or could not be made; timeouts do not count."""
    if any(isinstance(cause, urllib3.exceptions.ReadTimeoutError | TimeoutError) for cause in _causes(error)):
        return False
    return isinstance(error, requests.ConnectionError | urllib3.exceptions.ProtocolError | ConnectionError)


def was_refused(error: BaseException) -> bool:
    """Whether the engine certainly did not receive the call."""
    refusals = ConnectionRefusedError | FileNotFoundError | urllib3.exceptions.NewConnectionError
    return any(isinstance(cause, refusals) for cause in _causes(error))


def no_engine(search: Search) -> EngineUnavailable:
    """Return the error for a machine where no engine answers, with commands to start one."""
    commands = " or ".join(f"'{each}'" for each in start_commands(search.silent, Machine.of_this_process()))
    looked_at = [f"{place.host} ({place.kind}): {why}" for place, why in search.silent.items()]
    return EngineUnavailable(
        f"no container engine answers; start one with {commands}, or give {NO_ENGINE} to do without", looked_at
    )


def why_unavailable(
    error: BaseException, where: str, waited_sec: float, forward_error: str = "", *, is_given: bool = True
) -> str:
    """Explain why no engine can be reached at an address, and what to do about it.

    `forward_error` is the error of a forward to the engine, if there is one; `is_given`: the address is an option.
    """
    causes = _causes(error)
    silent = f"no container engine answers at {where}"
    doctor = f"'tbench doctor{f' --engine {where}' if is_given else ''}' may say more"
    if forward_error:
        return f"{silent}: {one_line(forward_error, 200)}; {doctor}"
    if any(isinstance(cause, PermissionError) for cause in causes):
        return (
            f"no permission on {where}: join its group ('sudo usermod -aG docker $USER', log in again) or run as root"
        )
    if any(isinstance(cause, FileNotFoundError | ConnectionRefusedError) for cause in causes):
        return f"{silent}: start one there, use another address, or give {NO_ENGINE} to do without"
    if any(isinstance(cause, requests.Timeout | TimeoutError) for cause in causes):
        return f"{silent} within {waited_sec:.0f} s; {doctor}"
    return f"{silent}: {one_line(_root_cause(error, causes), 200)}; {doctor}"


def _root_cause(error: BaseException, causes: list[BaseException]) -> str:
    """Return the HTTP status if another service answers, or else the innermost error, such as an unknown host."""
    of_requests = [cause for cause in causes if isinstance(cause, requests.RequestException)]
    for each in of_requests:
        if each.response is not None:
            return f"it answers {each.response.status_code} {each.response.reason}"
    of_system = [cause for cause in causes if isinstance(cause, OSError) and cause not in of_requests]
    return (of_system[-1].strerror or str(of_system[-1])) if of_system else str(error)


def _causes(error: BaseException) -> list[BaseException]:
    found = [error]
    for cause in found:  # grows as it is read
        reasons = [*cause.args, cause.__cause__, cause.__context__, getattr(cause, "reason", None)]
        found += [reason for reason in reasons if isinstance(reason, BaseException) and reason not in found]
    return found


T = TypeVar("T")
CONNECT_SEC = 30.0
"""Time limit of each call while connecting."""
_CALL_SEC = 120.0
OUTAGE_SEC = 120.0
"""Seconds to wait for an engine that does not answer; as long as a terminal waits for its session."""
_LONGEST_PAUSE_SEC = 2.0
_RETRY_REMOVAL_SEC = 30.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Names of architectures in images, by the kernel's names."""
_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_WRONG_STATE = "container state improper"
_REPEATABLE = {
    *("inspect_container", "inspect_image", "inspect_volume", "exec_inspect", "containers", "images", "networks"),
    *("volumes", "info", "start", "put_archive", "exec_create", "update_container"),
    *("remove_container", "remove_image", "remove_network", "remove_volume"),
}
"""SDK calls that can be repeated safely if only the answer was lost."""


class EngineError(TbenchError):
    """A failed call, with the engine's message and HTTP status; the status is None if there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineUnreachable(EngineError):
    """No engine answers. `sent`: the call may have been executed, with only its answer lost."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True)
class EngineInfo:
    """Facts that the engine reports about itself and its machine."""

    name: str
    version: str
    cpus: int
    memory_mb: float
    storage_driver: str
    cgroup_version: str
    kernel: str = ""
    is_podman: bool = False
    has_name_server: bool = True
    """Whether containers find each other by name in a network. Podman does not report it, and needs a plugin for it."""
    shares_hosts_offline: bool = True
    """Whether containers that share a namespace share /etc/hosts even if it has no network."""
    is_rootless: bool = False
    root: str = ""
    """Directory of the engine's data on its machine."""
    architecture: str = "amd64"
    """Architecture of its containers, by the name used for images."""
    has_gpus: bool = False
    """Whether containers can use NVIDIA GPUs."""
    gpus: int | None = None
    """Number of GPUs, if known from another source than the engine."""
    identity: str = ""
    """Unique id of the engine, independent of its address; empty if unknown."""
    may_limit_disk: bool = False
    """Whether its storage driver can limit a container's disk, if the file system below is set up for it."""


@dataclass(frozen=True)
class RefusedRemoval:
    """A removal that the engine has refused."""

    engine_message: str
    options: dict[str, Any]
    """Options of the removal."""
    at: float = field(default_factory=time.monotonic)

    @property
    def is_due(self) -> bool:
        """Whether it is time to try again."""
        return time.monotonic() - self.at > _RETRY_REMOVAL_SEC


@dataclass(frozen=True)
class PullStream:
    """Progress messages of a pull. Closing the stream stops the pull."""

    messages: Iterator[dict[str, Any]]
    """Raises the connection's errors, so that a lost engine is not taken for a finished pull."""
    close: Callable[[], None]
    """May be called from another thread while one waits for a message. Never raises."""


@dataclass(eq=False)
class Engine:
    """A connection to Docker, or to Podman's Docker-compatible socket."""

    api: docker.APIClient
    executor: Executor
    info: EngineInfo
    _: KW_ONLY
    outage_sec: float = OUTAGE_SEC
    """Seconds to wait when the engine does not answer."""
    is_forwarded: bool = False
    """Whether the socket leads to another machine."""
    owner: str = field(default_factory=owner_of_this_process)
    """Owner label of all that is created."""
    forward: TlsForward | None = None
    """Forward to that machine, which is closed with the engine."""
    search: Search | None = None
    """The search that has found the engine; None if the address was given."""
    refused: dict[tuple[str, str], RefusedRemoval] = field(default_factory=dict)
    """Removals to try again, by kind and name."""
    calls: Counter[str] = field(default_factory=Counter)
    """Number of calls by name."""
    _is_given_up: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that lead another process to an engine that was found without an address."""
        return self.search.found.variables if self.search is not None and self.search.found is not None else {}

    @property
    def notice(self) -> str:
        """Line for the user about an engine that was found and is not the default one; empty for others."""
        return self.search.notice if self.search is not None else ""

    @property
    def is_local(self) -> bool:
        """Whether the engine runs on this machine, with the same paths as this process."""
        if self.is_forwarded:
            return False
        return self.info.name == socket.gethostname() and self.api.base_url.startswith(
            ("http+docker://", "http+unix://")
        )

    @classmethod
    def connect(
        cls,
        concurrency: int = 8,
        host: str | None = None,
        *,
        outage_sec: float = OUTAGE_SEC,
        is_forwarded: bool = False,
        owner: str = "",
    ) -> Engine:
        """Connect to the engine at `host`; the class describes the other parameters.

        The default is DOCKER_HOST, or else the first engine of this machine that answers.

        Raises EngineUnavailable with advice, and LoginUnreadable if Docker's own configuration is broken.
        """
        read_docker_config()  # reports problems for which the SDK would raise a traceback
        # A trial can hold one connection in an exec while its removal and another trial's start need their own.
        connections = 3 * concurrency + 4
        environment, search = {**os.environ, **({} if host is None else {"DOCKER_HOST": host})}, None
        if not environment.get("DOCKER_HOST"):
            search = find_engine()
            if search.found is None:
                raise no_engine(search)
            environment |= search.found.variables
        where = environment["DOCKER_HOST"]
        forward = _tls_forward(environment)
        with contextlib.ExitStack() as stack:
            if forward is not None:
                stack.callback(forward.close)
                environment["DOCKER_HOST"], is_forwarded = forward.host, True
            try:
                client = docker.from_env(timeout=int(CONNECT_SEC), max_pool_size=connections, environment=environment)
                sdk.forget_proxies(client.api)  # they would be added to every container, regardless of its network
                raw, version = client.api.info(), client.api.version()
                client.api.timeout = int(_CALL_SEC)
            except (DockerException, requests.RequestException) as error:
                forward_error = "" if forward is None else forward.why
                why = why_unavailable(error, where, CONNECT_SEC, forward_error, is_given=host is not None)
                raise EngineUnavailable(why) from None
            info = _info(raw, version)
            stack.pop_all()
        return cls(
            client.api,
            DaemonThreads(),
            info,
            outage_sec=outage_sec,
            is_forwarded=is_forwarded,
            owner=owner or owner_of_this_process(),
            forward=forward,
            search=search,
        )

    @property
    def shares_kernel(self) -> bool:
        """Whether containers share this process's kernel: not behind TCP or SSH, nor in a virtual machine.

        Then load and memory are shared, but not necessarily paths, since this process may itself be in a container.
        """
        if self.is_forwarded:
            return False
        # The SDK's name for a local socket.
        return self.api.base_url.startswith("http+docker://localhost") and self.info.kernel == platform.release()

    async def call(
        self,
        function: Callable[..., T],
        *args: Any,
        deadline_sec: float = _CALL_SEC,
        outage_sec: float | None = None,
        again: bool | None = None,
        dispose: Callable[[T], object] | None = None,
        **kwargs: Any,
    ) -> T:
        """Run a blocking SDK call in the executor. Raises EngineError, also when the deadline passes.

        If the engine does not answer, the call is retried for `outage_sec` (default: `Engine.outage_sec`) before
        EngineUnreachable is raised. `again` allows repeating a call whose answer was lost (default: if that is safe).
        `dispose` gets a result that arrives after cancellation or the deadline.
        """
        if self._is_given_up:
            raise EngineUnreachable(f"{_name(function)}: the engine's machine is gone", sent=False)
        ends_at, pause_sec = time.monotonic() + (self.outage_sec if outage_sec is None else outage_sec), 0.05
        again = _name(function) in _REPEATABLE if again is None else again
        while True:
            try:
                return await self._call_once(function, args, kwargs, deadline_sec, dispose)
            except EngineUnreachable as error:
                if (error.sent and not again) or self._is_given_up or time.monotonic() + pause_sec > ends_at:
                    raise
            await asyncio.sleep(pause_sec)
            pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)

    async def find(self, function: Callable[..., T], *args: Any, **options: Any) -> T | None:
        """Make a call like `call`, but return None if the engine does not have the object. Raises EngineError."""
        try:
            return await self.call(function, *args, **options)
        except EngineError as error:
            if error.status == 404:
                return None
            raise

    async def _call_once(
        self,
        function: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        deadline_sec: float,
        dispose: Callable[[T], object] | None,
    ) -> T:
        name = _name(function)
        self.calls[name] += 1
        running = self.executor.submit(function, *args, **kwargs)
        try:
            async with asyncio.timeout(deadline_sec):
                return await asyncio.wrap_future(running)
        except (asyncio.CancelledError, TimeoutError) as error:
            if dispose is not None:
                running.add_done_callback(partial(_dispose_of_result, dispose))
            if isinstance(error, asyncio.CancelledError):
                raise
            raise EngineError(f"the engine did not answer {name} within {deadline_sec:.0f} s") from None
        except APIError as error:
            message = one_line(str(error.explanation or error))
            # Podman's 500 for a container that has ended, or is being removed.
            raise EngineError(message, 409 if _WRONG_STATE in message else error.status_code) from error
        # The SDK does not wrap urllib3's errors when it reads a response in pieces (build, pull, logs).
        except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            message = f"{name}: {one_line(str(error))}"
            if is_cut_off(error):
                raise EngineUnreachable(message, sent=not was_refused(error)) from error
            raise EngineError(message) from error

    def open_pull(self, repository: str, version: str, login: str | None, silence_sec: float) -> PullStream:
        """Start pulling an image; `version` is a tag or digest, `login` the value of X-Registry-Auth.

        Blocks until the first message. Raises the SDK's errors, also if no message arrives for `silence_sec`. The SDK's
        own `pull` cannot be stopped, and calls credential helpers without a deadline.
        """
        response = self.api.post(
            f"{self.api.base_url}/v{self.api.api_version}/images/create",
            params={"fromImage": repository, "tag": version},
            headers={"X-Registry-Auth": login} if login else {},
            stream=True,
            timeout=silence_sec,
        )
        try:
            response.raise_for_status()
        except requests.HTTPError as error:
            raise create_api_error_from_http_exception(error) from error
        return PullStream(_messages(response), partial(_close_response, response))

    async def ping(self, deadline_sec: float) -> str:
        """Check that the engine answers; returns the problem, or an empty text. Never raises."""
        try:
            await self._call_once(self.api.ping, (), {}, deadline_sec, None)
        except EngineUnreachable as error:
            return f"no engine answers: the connection is {'cut' if error.sent else 'refused'}"
        except EngineError as error:
            return one_line(str(error), 200)
        return ""

    def give_up(self) -> None:
        """Mark the engine as lost: calls fail at once until `restore`."""
        self._is_given_up = True

    def restore(self) -> None:
        """Mark the engine as available again."""
        self._is_given_up = False

    def close(self) -> None:
        """Close the connections without waiting for calls in progress."""
        with contextlib.suppress(Exception):
            self.api.close()
        if self.forward is not None:
            self.forward.close()


def _tls_forward(environment: dict[str, str]) -> TlsForward | None:
    """Start a forward if the engine requires TLS, and remove the TLS variables. Raises EngineUnavailable."""
    host = environment.get("DOCKER_HOST", "")
    context = tls_context(environment) if host.startswith(("tcp://", "https://")) else None
    for name in (VERIFY, CERTIFICATES):
        environment.pop(name, None)
    return None if context is None else TlsForward(host, context)


def _close_response(response: requests.Response) -> None:
    """Close a response that another thread may still be reading. Never raises."""
    with contextlib.suppress(Exception):
        CancellableStream(iter(()), response).close()  # wakes up that thread, but leaves the descriptor open
    with contextlib.suppress(Exception):
        response.close()


def is_disk_full(message: object) -> bool:
    """Whether the engine's message reports a full disk."""
    return _DISK_FULL.search(str(message)) is not None


def _messages(response: requests.Response) -> Iterator[dict[str, Any]]:
    """Parse the response's JSON objects, one per line."""
    rest = b""
    for piece in response.raw.stream(decode_content=True):
        *lines, rest = (rest + piece).split(b"\n")
        yield from (json.loads(line) for line in lines if line.strip())
    if rest.strip():
        yield json.loads(rest)


def _info(raw: dict[str, Any], version: dict[str, Any]) -> EngineInfo:
    """Parse the engine's answers to /info and /version."""
    is_podman = any("podman" in part.get("Name", "").lower() for part in version.get("Components") or ())
    return EngineInfo(
        name=raw.get("Name", "?"),
        version=version["Version"],
        is_podman=is_podman,
        is_rootless=bool(raw.get("Rootless")) or "name=rootless" in (raw.get("SecurityOptions") or ()),
        has_name_server=not is_podman,
        shares_hosts_offline=not is_podman,
        cpus=raw.get("NCPU", 1),
        memory_mb=raw.get("MemTotal", 0) / (1 << 20),
        storage_driver=raw.get("Driver", "?"),
        cgroup_version=raw.get("CgroupVersion", "1"),
        kernel=raw.get("KernelVersion", ""),
        root=raw.get("DockerRootDir", ""),
        architecture=_ARCHITECTURES.get(raw.get("Architecture", ""), raw.get("Architecture", "")),
        has_gpus=_has_gpus(raw),
        may_limit_disk=_may_limit_disk(raw),
        # Several engines on one machine may share the id, but not the directory.
        identity=f"{raw['ID']} {raw.get('DockerRootDir', '')}" if raw.get("ID") else "",
    )


def _has_gpus(info: dict[str, Any]) -> bool:
    devices = (str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ())
    return "nvidia" in (info.get("Runtimes") or {}) or any(device.startswith("nvidia.com/gpu") for device in devices)


def _may_limit_disk(info: dict[str, Any]) -> bool:
    """Whether the driver has quotas: btrfs, zfs, and overlay on XFS if it is mounted with pquota (not reported)."""
    below = dict(pair for pair in info.get("DriverStatus") or () if len(pair) == 2).get("Backing Filesystem", "")
    driver = info.get("Driver", "")
    return driver in ("btrfs", "zfs") or (driver in ("overlay", "overlay2") and below == "xfs")


def _dispose_of_result(dispose: Callable[[T], object], done: Future[T]) -> None:
    if not done.cancelled() and done.exception() is None:
        dispose(done.result())


def _name(function: Callable[..., Any]) -> str:
    return getattr(getattr(function, "func", function), "__name__", "a call")
