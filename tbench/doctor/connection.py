"""Finds out why no engine answers, by inspecting its address instead of an error message."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tbench.doctor import Finding, fail, ok
from tbench.errors import EngineUnavailable
from tbench.sandbox.docker.discovery import DEFAULT, NO_ENGINE, Search, find_engine
from tbench.sandbox.docker.engine import EngineInfo, no_engine
from tbench.sandbox.docker.podman import podman_remedy
from tbench.sandbox.docker.tls import CERTIFICATES, VERIFY, tls_context

_CAP_SYS_ADMIN = 21
_NESTED = (
    "give this container the host's engine (-v /var/run/docker.sock:/var/run/docker.sock), or start it with "
    "--privileged; otherwise no engine can start containers in here"
)
_START = f"start that engine, leave out its address to use this machine's, or give {NO_ENGINE} to do without"


@dataclass(frozen=True)
class ProcessContext:
    """Environment of this process, and the engine that it should use."""

    host: str
    """Address of the engine: the given one, the value of DOCKER_HOST, one that was found, or the default."""
    is_container: bool
    may_administrate: bool
    """Whether it has CAP_SYS_ADMIN, which an engine in here needs for mounts."""
    verifies_tls: bool = False
    certificates: str = ""
    patience_sec: float = 5.0
    over_ssh: str = ""
    """Address of an engine on another machine to which `host` is a forward; empty if it is not."""
    search: Search | None = None
    """The search for an engine, if no address was given."""

    @classmethod
    def of_this_process(cls, root: Path = Path("/"), host: str | None = None) -> ProcessContext:
        """Return the context of this process, with the engine at `host`, or else the engine that a run would use."""
        host = host or os.environ.get("DOCKER_HOST")
        search = None if host else find_engine()
        found = search.found if search is not None else None
        variables = os.environ | (found.variables if found is not None else {})
        return cls(
            host=host or variables.get("DOCKER_HOST") or DEFAULT,
            is_container=any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv")),
            may_administrate=_has_capability(root / "proc/self/status"),
            verifies_tls=bool(variables.get("DOCKER_TLS_VERIFY")),
            certificates=variables.get("DOCKER_CERT_PATH", ""),
            search=search,
        )

    @property
    def is_confined(self) -> bool:
        """Whether it is in a container that cannot start others."""
        return self.is_container and not self.may_administrate


def _has_capability(status: Path) -> bool:
    try:
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    except OSError:
        return os.geteuid() == 0
    return bool(int(lines.get("CapEff", "0"), 16) >> _CAP_SYS_ADMIN & 1)


def check_address(here: ProcessContext) -> Finding:
    """Check that an engine answers at its address. Blocks for a few seconds at most."""
    # An ordinary user's Podman may start containers in a container.
    may_start = not here.is_confined or shutil.which("podman")
    if here.search is not None and here.search.found is None and may_start:
        error = no_engine(here.search)
        what, _, advice = str(error).partition("; ")
        return fail(f"{what}: {', '.join(error.looked_at)}", advice)
    parts = urlsplit(here.host)
    if parts.scheme == "unix" or (not parts.scheme and here.host.startswith("/")):
        return _unix(Path(parts.path), here)
    if parts.scheme in ("tcp", "http", "https"):
        return _tcp(parts.hostname or "", parts.port, here)
    if parts.scheme == "ssh":
        return ok(f"{here.host} (over SSH)")
    return fail(f"DOCKER_HOST={here.host} is not an address", "set it to unix:///PATH or tcp://HOST:PORT, or unset it")


def cannot_start(message: str, here: ProcessContext, info: EngineInfo | None = None) -> Finding:
    """Return the result for an engine that answers but starts no container, with the engine's message."""
    if info is not None and info.is_podman:
        remedy = podman_remedy(message, is_rootless=info.is_rootless)
        return fail(f"no container starts: {message}", remedy or "read the message, and 'podman info'")
    denials = ("operation not permitted", "permission denied", "mount", "cgroup")
    if here.is_container and any(text in message.lower() for text in denials):
        return fail(f"no container starts, and this is a container without the privileges for it: {message}", _NESTED)
    return fail(f"no container starts: {message}", "read the engine's message and its log (journalctl -u docker)")


def _unix(path: Path, here: ProcessContext) -> Finding:
    try:
        kind = path.stat().st_mode
    except PermissionError:
        return _no_permission(path)
    except OSError:
        if here.is_confined:
            return fail(f"no engine at {path}, and this is a container without the privileges to run one", _NESTED)
        return fail(f"no engine runs: {path} does not exist", _START)
    if not stat.S_ISSOCK(kind):
        return fail(f"{path} is not a socket", "set DOCKER_HOST to the engine's socket, or unset it")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(here.patience_sec)
        try:
            connection.connect(str(path))
        except PermissionError:
            return _no_permission(path)
        except ConnectionRefusedError:
            if here.is_confined:
                return fail(
                    f"nothing listens at {path}, and this is a container without the privileges for it", _NESTED
                )
            return fail(f"no engine runs: {path} is left over from one that has ended", _START)
        except OSError as error:
            return fail(f"{path}: {error.strerror or error}", "restart the engine")
        return _ping(connection, str(path))


def _tcp(host: str, port: int | None, here: ProcessContext) -> Finding:
    port = port or (2376 if here.verifies_tls else 2375)
    where = f"DOCKER_HOST={here.host}"
    advice = "correct DOCKER_HOST, or unset it for the engine of this machine"
    try:
        plain = socket.create_connection((host, port), here.patience_sec)
    except socket.gaierror as error:
        return fail(f"{where}: unknown host ({error.strerror})", advice)
    except OSError as error:
        return fail(f"{where}: cannot connect: {error.strerror or error}", advice)
    with plain:
        try:
            context = tls_context({VERIFY: "1" if here.verifies_tls else "", CERTIFICATES: here.certificates})
        except EngineUnavailable as error:
            return fail(*str(error).rsplit("; ", 1))
        if context is None:
            return _ping(plain, here.host)
        try:
            with context.wrap_socket(plain, server_hostname=host) as secure:
                return _ping(secure, here.host)
        except (ssl.SSLError, OSError) as error:
            what = f"{where}: TLS failed: {getattr(error, 'verify_message', '') or error}"
            return fail(
                what,
                "check that ca.pem is the engine's CA and that its certificate names this host; "
                "unset DOCKER_TLS_VERIFY for plain TCP",
            )


def _ping(connection: socket.socket, where: str) -> Finding:
    """Request /_ping, which an engine always answers with 200."""
    try:
        connection.sendall(b"GET /_ping HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n")
        answer = connection.recv(4096)
    except TimeoutError:
        return fail(f"{where} takes connections but does not answer", "the engine hangs: restart it")
    except OSError as error:
        return fail(f"{where}: {error.strerror or error}", "restart the engine")
    head = answer.split(b"\r\n", 1)[0].decode("latin-1")
    if b"HTTPS" in answer or not answer.startswith(b"HTTP/"):
        what = f"{where} requires TLS" if b"HTTPS" in answer or answer[:1] == b"\x15" else f"{where} is not an engine"
        return fail(what, "set DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH, or set DOCKER_HOST to another address")
    if " 200 " not in f"{head} ":
        return fail(f"{where} answers {head!r}, unlike an engine", "set DOCKER_HOST to the engine's address")
    return ok(where)


def _no_permission(path: Path) -> Finding:
    return fail(
        f"no permission on {path}",
        "join its group ('sudo usermod -aG docker $USER', then log in again), or run as root",
    )
