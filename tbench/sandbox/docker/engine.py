"""The container engine: connecting to it, calling Docker's SDK with deadlines, and what its errors mean.

All calls run in threads of their own and have a deadline from outside: the SDK's stream sockets ignore its own
timeout. An engine that is away for a while (a restart, an upgrade) is waited for here, in one place.
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
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, create_api_error_from_http_exception
from docker.types import CancellableStream

from tbench.errors import EngineUnavailable, TbenchError
from tbench.sandbox.docker import sdk
from tbench.sandbox.docker.login import read_docker_config
from tbench.sandbox.docker.owner import owner as owner_of_this_process
from tbench.sandbox.docker.tls import CERTIFICATES, VERIFY, TlsForward, tls_context
from tbench.text import one_line
from tbench.threads import DaemonThreads

# What errors of the SDK say about an engine that does not answer; the libraries below it wrap them several times.

DEFAULT = "unix:///var/run/docker.sock"
"""Where an engine is looked for if nothing says where."""
_MINE = "start Docker (or run 'tbench setup', which can as root on Debian)"


def is_cut_off(error: BaseException) -> bool:
    """Whether the connection broke or could not be made; an answer that takes too long does not count."""
    if any(isinstance(cause, urllib3.exceptions.ReadTimeoutError | TimeoutError) for cause in _causes(error)):
        return False
    return isinstance(error, requests.ConnectionError | urllib3.exceptions.ProtocolError | ConnectionError)


def was_refused(error: BaseException) -> bool:
    """Whether the engine cannot have received the call."""
    refusals = ConnectionRefusedError | FileNotFoundError | urllib3.exceptions.NewConnectionError
    return any(isinstance(cause, refusals) for cause in _causes(error))


def why_unavailable(error: BaseException, host: str | None, waited_sec: float, of_way: str = "") -> str:
    """Why an engine at `host`, or else where DOCKER_HOST says, cannot be connected to, and what to do about it.

    `of_way` is what went wrong on the way to it, where something leads there.
    """
    where = host or os.environ.get("DOCKER_HOST") or DEFAULT
    causes = _causes(error)
    nobody = f"no container engine answers at {where}"
    closer = f"'tbench doctor{'' if host is None else f' --engine {host}'}' looks closer"
    if of_way:
        return f"{nobody}: {one_line(of_way, 200)}; {closer}"
    if any(isinstance(cause, PermissionError) for cause in causes):
        return (
            f"no permission on {where}: join its group ('sudo usermod -aG docker $USER', log in again) or run as root"
        )
    if any(isinstance(cause, FileNotFoundError | ConnectionRefusedError) for cause in causes):
        return f"{nobody}: {_MINE if where.startswith('unix://') else 'start one there, or name another address'}"
    if any(isinstance(cause, requests.Timeout | TimeoutError) for cause in causes):
        return f"{nobody} within {waited_sec:.0f} s; {closer}"
    return f"{nobody}: {one_line(_words(error, causes), 200)}; {closer}"


def _words(error: BaseException, causes: list[BaseException]) -> str:
    """What another service answers, or the innermost reason, such as that of a name that nobody knows."""
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
FIRST_SEC = 30.0
"""How long each of the first answers of an engine may take."""
_CALL_SEC = 120.0
OUTAGE_SEC = 120.0
"""How long an engine that does not answer is waited for; as long as a terminal waits for its session."""
_LONGEST_PAUSE_SEC = 2.0
_AGAIN_SEC = 30.0
"""How long something is left alone that the engine has refused to remove."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What kernels and images call the same."""
_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_REPEATABLE = {
    *("inspect_container", "inspect_image", "inspect_volume", "exec_inspect", "containers", "images", "networks"),
    *("volumes", "info", "start", "put_archive", "exec_create", "update_container"),
    *("remove_container", "remove_image", "remove_network", "remove_volume"),
}
"""Names of SDK calls that can be repeated when one went through and only its answer was lost."""


class EngineError(TbenchError):
    """The engine refused or failed a call; the message is its own. `status` is None where there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineUnreachable(EngineError):
    """No engine answers. `sent` says that the call may have gone through, and only its answer was lost."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True)
class EngineInfo:
    """What the engine reports about its machine, which may be another than ours."""

    name: str
    version: str
    cpus: int
    memory_mb: float
    storage_driver: str
    cgroup_version: str
    kernel: str = ""
    is_podman: bool = False
    root: str = ""
    """Directory of the engine's data, on its machine."""
    architecture: str = "amd64"
    """Of its containers, as images call it."""
    has_gpus: bool = False
    """Whether it can give NVIDIA's GPUs to containers."""
    gpus: int | None = None
    """How many, where somebody else than the engine knows."""
    identity: str = ""
    """What tells it from every other engine, whatever its address; empty where it does not say."""
    may_limit_disk: bool = False
    """Whether its storage driver can limit a container's disk, if the file system below is set up for it."""


@dataclass(frozen=True)
class RefusedRemoval:
    """Something that the engine has refused to remove."""

    words: str
    """The engine's."""
    options: dict[str, Any]
    """Those of its removal."""
    at: float = field(default_factory=time.monotonic)

    @property
    def is_due(self) -> bool:
        """Whether it is time to try again."""
        return time.monotonic() - self.at > _AGAIN_SEC


@dataclass(frozen=True)
class PullStream:
    """What an engine says while it pulls. It stops pulling when the stream is closed."""

    messages: Iterator[dict[str, Any]]
    """They raise what the connection raises; an engine that goes away does not look like one that is done."""
    close: Callable[[], None]
    """May be called from another thread, while one waits for a message. Never raises."""


class Engine:
    """A connection to Docker, or to Podman's Docker-compatible socket."""

    def __init__(
        self,
        api: docker.APIClient,
        executor: Executor,
        info: EngineInfo,
        *,
        outage_sec: float = OUTAGE_SEC,
        is_forwarded: bool = False,
        owner: str = "",
        way: TlsForward | None = None,
    ) -> None:
        """`is_forwarded` says that behind its socket is another machine; `owner` is the label of what is made there.

        `way` leads to that machine, and is closed with the rest.
        """
        self.api = api
        self.info = info
        self.outage_sec = outage_sec
        """How long the engine is waited for when it does not answer."""
        self.owner = owner or owner_of_this_process()
        self.refused: dict[tuple[str, str], RefusedRemoval] = {}
        """What could not be removed yet, by kind and name."""
        self.calls: Counter[str] = Counter()
        """How often it was called, by name of the call."""
        self._executor = executor
        self._is_forwarded = is_forwarded
        self._is_given_up = False
        self._way = way

    @property
    def is_local(self) -> bool:
        """Whether the engine is this machine's own, so that its paths are ours."""
        if self._is_forwarded:
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
        """Connect to the engine at `host`, by default where DOCKER_HOST says; the rest is that of the class.

        Raises EngineUnavailable with advice, and LoginUnreadable where Docker's own configuration is broken.
        """
        read_docker_config()  # of which the SDK would make a traceback
        # A trial can hold one connection in an exec while its removal and another's start need their own.
        connections = 3 * concurrency + 4
        environment = {**os.environ, **({} if host is None else {"DOCKER_HOST": host})}
        way = _way(environment)
        with contextlib.ExitStack() as stack:
            if way is not None:
                stack.callback(way.close)
                environment["DOCKER_HOST"], is_forwarded = way.host, True
            try:
                # from_env() is the documented way to honour DOCKER_HOST.
                client = docker.from_env(timeout=int(FIRST_SEC), max_pool_size=connections, environment=environment)
                sdk.forget_proxies(client.api)  # it would add them to every container, whatever network that has
                raw = client.api.info()
                told = client.api.version()
                client.api.timeout = int(_CALL_SEC)
            except (DockerException, requests.RequestException) as error:
                of_way = "" if way is None else way.why
                raise EngineUnavailable(why_unavailable(error, host, FIRST_SEC, of_way=of_way)) from None
            info = _info(raw, told)
            stack.pop_all()
        return cls(
            client.api, DaemonThreads(), info, outage_sec=outage_sec, is_forwarded=is_forwarded, owner=owner, way=way
        )

    @property
    def shares_kernel(self) -> bool:
        """Whether containers run on this process's own kernel: not behind TCP or SSH, nor in a virtual machine.

        This process may itself be in a container: load and memory are the same for both, paths need not be.
        """
        if self._is_forwarded:
            return False
        # The SDK's own name for a socket of this machine.
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

        Where nobody answers, it is tried for `outage_sec` (by default the engine's own), then EngineUnreachable is
        raised. A call whose answer was lost is repeated where `again` says so, by default where that does no harm.
        `dispose` is given a result that comes after its caller was cancelled or the deadline had passed.
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
        running = self._executor.submit(function, *args, **kwargs)
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
            raise EngineError(_api_message(error), error.status_code) from error
        # urllib3's own come through where the SDK reads a response in pieces (build, pull, logs).
        except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            words = f"{name}: {one_line(str(error))}"
            if is_cut_off(error):
                raise EngineUnreachable(words, sent=not was_refused(error)) from error
            raise EngineError(words) from error

    def open_pull(self, repository: str, version: str, login: str | None, silence_sec: float) -> PullStream:
        """Begin to pull an image; `version` is a tag or a digest, `login` what goes into X-Registry-Auth.

        Blocks until the engine says something, and raises what the SDK raises, also where it then says nothing for
        `silence_sec`. The SDK's own `pull` cannot be ended, and looks for logins by itself, helpers without a deadline.
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
        return PullStream(_messages(response), partial(_end, response))

    async def answers(self, deadline_sec: float) -> str:
        """Look whether somebody answers; what is wrong, empty where nothing is. Raises nothing."""
        try:
            await self._call_once(self.api.ping, (), {}, deadline_sec, None)
        except EngineUnreachable as error:
            return f"no engine answers: the connection is {'cut' if error.sent else 'refused'}"
        except EngineError as error:
            return one_line(str(error), 200)
        return ""

    def give_up(self) -> None:
        """Take it that the engine's machine is gone: calls fail at once from now on, until it is taken up again."""
        self._is_given_up = True

    def take_up(self) -> None:
        """Call the engine again."""
        self._is_given_up = False

    def close(self) -> None:
        """Close the connections; calls under way are not waited for."""
        with contextlib.suppress(Exception):
            self.api.close()
        if self._way is not None:
            self._way.close()


def _way(environment: dict[str, str]) -> TlsForward | None:
    """What leads to an engine that wants TLS, of which nothing is left in the environment. Raises EngineUnavailable."""
    host = environment.get("DOCKER_HOST", "")
    context = tls_context(environment) if host.startswith(("tcp://", "https://")) else None
    for name in (VERIFY, CERTIFICATES):
        environment.pop(name, None)
    return None if context is None else TlsForward(host, context)


def _end(response: requests.Response) -> None:
    """Close an answer that may be still under way, and that another thread may wait for. Never raises."""
    with contextlib.suppress(Exception):
        CancellableStream(iter(()), response).close()  # which wakes that thread; it leaves the descriptor open
    with contextlib.suppress(Exception):
        response.close()


def is_disk_full(said: object) -> bool:
    """Whether the engine's words say that its disk is full."""
    return _DISK_FULL.search(str(said)) is not None


def _messages(response: requests.Response) -> Iterator[dict[str, Any]]:
    """The JSON objects of an answer, which come one in a line."""
    rest = b""
    for piece in response.raw.stream(decode_content=True):
        *lines, rest = (rest + piece).split(b"\n")
        yield from (json.loads(line) for line in lines if line.strip())
    if rest.strip():
        yield json.loads(rest)


def _info(raw: dict[str, Any], told: dict[str, Any]) -> EngineInfo:
    """What an engine says of itself, in its answers to /info and /version."""
    return EngineInfo(
        name=raw.get("Name", "?"),
        version=told["Version"],
        is_podman=any("podman" in part.get("Name", "").lower() for part in told.get("Components") or ()),
        cpus=raw.get("NCPU", 1),
        memory_mb=raw.get("MemTotal", 0) / (1 << 20),
        storage_driver=raw.get("Driver", "?"),
        cgroup_version=raw.get("CgroupVersion", "1"),
        kernel=raw.get("KernelVersion", ""),
        root=raw.get("DockerRootDir", ""),
        architecture=_ARCHITECTURES.get(raw.get("Architecture", ""), raw.get("Architecture", "")),
        has_gpus=_has_gpus(raw),
        may_limit_disk=_may_limit_disk(raw),
        # Engines beside each other on a machine may share the id, but not the directory.
        identity=f"{raw['ID']} {raw.get('DockerRootDir', '')}" if raw.get("ID") else "",
    )


def _has_gpus(info: dict[str, Any]) -> bool:
    devices = (str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ())
    return "nvidia" in (info.get("Runtimes") or {}) or any(device.startswith("nvidia.com/gpu") for device in devices)


def _may_limit_disk(info: dict[str, Any]) -> bool:
    """Btrfs and ZFS have quotas; overlay has them over XFS that is mounted with pquota, of which nothing is told."""
    below = dict(pair for pair in info.get("DriverStatus") or () if len(pair) == 2).get("Backing Filesystem", "")
    driver = info.get("Driver", "")
    return driver in ("btrfs", "zfs") or (driver in ("overlay", "overlay2") and below == "xfs")


def _dispose_of_result(dispose: Callable[[T], object], done: Future[T]) -> None:
    if not done.cancelled() and done.exception() is None:
        dispose(done.result())


def _name(function: Callable[..., Any]) -> str:
    return getattr(getattr(function, "func", function), "__name__", "a call")


def _api_message(error: APIError) -> str:
    return one_line(str(error.explanation or error))
