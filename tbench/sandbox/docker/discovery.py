"""Finds this machine's container engine when no address is given.

Uses only the standard library, since its code is also sent to the nodes of a Ray cluster.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

DEFAULT = "unix:///var/run/docker.sock"
"""Default address of the engine."""
NO_ENGINE = "--engine oci:"
"""Option with which a run needs no engine, for messages about missing engines."""
_PATIENCE_SEC = 20.0
"""Time limit of an answer. Long, since on a busy machine the run must not move on to another engine."""
_PING = b"GET /_ping HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n"
_MISSING, _NO_PERMISSION = "does not exist", "no permission"


@dataclass(frozen=True)
class Place:
    """An address at which an engine may answer."""

    kind: str
    """Kind of engine, such as `rootless Docker`, or the name of Docker's context."""
    host: str
    certificates: str = ""
    """Directory of the TLS files; empty without TLS."""
    verifies: bool = True
    """Whether the engine's certificate is verified."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that lead a client to this engine."""
        tls = {"DOCKER_CERT_PATH": self.certificates, "DOCKER_TLS_VERIFY": "1" if self.verifies else ""}
        return {"DOCKER_HOST": self.host, **(tls if self.certificates else {})}


@dataclass(frozen=True)
class Search:
    """The first engine that answers, and the places before it."""

    found: Place | None
    silent: Mapping[Place, str]
    """Places where no engine answers, with the reasons."""

    @property
    def notice(self) -> str:
        """Line for the user about an unexpected engine; empty if it is the default one."""
        skipped = next((place.kind for place in self.silent if place.kind.startswith("Docker's context")), "")
        if self.found is None or (self.found.host == DEFAULT and not skipped):
            return ""
        return f"engine: {self.found.kind} at {self.found.host}{f'; {skipped} does not answer' if skipped else ''}"


def find_engine(
    variables: Mapping[str, str] | None = None, root: Path = Path("/"), patience_sec: float = _PATIENCE_SEC
) -> Search:
    """Return the first engine of this machine that answers, apart from DOCKER_HOST; `root` is for tests."""
    # Not as the parameter's default: Ray would send this process's environment to the nodes, with the function.
    variables = os.environ if variables is None else variables
    silent: dict[Place, str] = {}
    for place in _places(variables, root):
        if any(place.host == other.host for other in silent):
            continue
        why = _why_silent(place, patience_sec)
        if not why:
            return Search(place, silent)
        silent[place] = why
    return Search(None, silent)


def _places(variables: Mapping[str, str], root: Path) -> Iterator[Place]:
    """Yield the places where engines of this machine usually listen, in order of preference."""
    home = Path(variables.get("HOME") or Path.home())
    user = os.getuid()
    runtime = Path(variables.get("XDG_RUNTIME_DIR") or root / f"run/user/{user}")
    if context := _context(Path(variables.get("DOCKER_CONFIG") or home / ".docker"), variables):
        yield context
    colima = sorted(home.glob(".colima/*/docker.sock")) or [home / ".colima/default/docker.sock"]
    for kind, path in (
        ("Docker", root / "var/run/docker.sock"),
        ("rootless Docker", runtime / "docker.sock"),
        ("Docker Desktop", home / ".docker/run/docker.sock"),
        ("Docker Desktop", home / ".docker/desktop/docker.sock"),
        *(("colima", path) for path in colima),
        ("Podman", root / "run/podman/podman.sock"),
        ("rootless Podman", runtime / "podman/podman.sock"),
        *((("rootless Podman", own),) if user != 0 and (own := own_socket(user, variables, root)).exists() else ()),
    ):
        yield Place(kind, f"unix://{path}")


def own_socket(user: int, variables: Mapping[str, str], root: Path = Path("/")) -> Path:
    """Return the path at which a user's own Podman listens."""
    if user == 0:
        return root / "run/podman/podman.sock"
    given, usual = variables.get("XDG_RUNTIME_DIR"), root / f"run/user/{user}"
    # As Podman itself does in sessions without systemd.
    runtime = Path(given) if given else usual if usual.is_dir() else root / f"tmp/podman-run-{user}"
    return runtime / "podman/podman.sock"


def _context(folder: Path, variables: Mapping[str, str]) -> Place | None:
    """Return the current context of Docker's command line; None for the default one, or if it cannot be read."""
    try:
        name = variables.get("DOCKER_CONTEXT") or _read(folder / "config.json").get("currentContext", "")
        if name in ("", "default"):
            return None
        key = hashlib.sha256(name.encode()).hexdigest()
        endpoint = _read(folder / f"contexts/meta/{key}/meta.json")["Endpoints"]["docker"]
        certificates = folder / f"contexts/tls/{key}/docker"
        return Place(
            f"Docker's context {name}",
            str(endpoint["Host"]),
            str(certificates) if certificates.is_dir() else "",
            not endpoint.get("SkipTLSVerify"),
        )
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None  # a broken configuration is reported when an engine is connected


def _read(file: Path) -> Any:
    return json.loads(file.read_bytes())


def _why_silent(place: Place, patience_sec: float) -> str:
    """Return the reason why no engine answers at a place; empty if one does."""
    parts = urlsplit(place.host)
    if parts.scheme not in ("unix", "tcp"):
        return f"not tried; give it as --engine {place.host}"
    try:
        with _connected(parts, patience_sec) as connection:
            if place.certificates:
                return ""
            connection.sendall(_PING)
            return "" if b" 200 " in connection.recv(4096).split(b"\r\n", 1)[0] else "not an engine"
    except FileNotFoundError:
        return _MISSING
    except PermissionError:
        return _NO_PERMISSION
    except ConnectionRefusedError:
        return "nothing listens there"
    except TimeoutError:
        return f"no answer within {patience_sec:.0f} s"
    except OSError as error:
        return error.strerror or str(error)


def _connected(parts: SplitResult, patience_sec: float) -> socket.socket:
    if parts.scheme == "tcp":
        return socket.create_connection((parts.hostname or "", parts.port or 2375), patience_sec)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(patience_sec)
    try:
        connection.connect(parts.path)
    except OSError:
        connection.close()
        raise
    return connection


# Advice where no engine answers.


@dataclass(frozen=True)
class Machine:
    """The facts about a machine that decide how an engine is started on it."""

    is_mac: bool
    is_root: bool
    has_systemd: bool
    has: Callable[[str], object]
    """Whether a program is installed."""

    @classmethod
    def of_this_process(cls) -> Machine:
        return cls(sys.platform == "darwin", os.geteuid() == 0, Path("/run/systemd/system").is_dir(), shutil.which)


def start_commands(silent: Mapping[Place, str], machine: Machine) -> tuple[str, ...]:
    """Return one or two commands, each of which gives the machine an engine that answers."""
    sudo = "" if machine.is_root else "sudo "
    if machine.is_mac:
        return "open -a Docker", f"{'' if machine.has('colima') else 'brew install colima docker && '}colima start"
    if _NO_PERMISSION in (why for place, why in silent.items() if place.host == DEFAULT):
        docker = "sudo usermod -aG docker $USER && newgrp docker"
    elif machine.has("dockerd") and machine.has_systemd:
        docker = f"{sudo}systemctl start docker"
    elif machine.has("dockerd") or machine.has("apt-get"):
        docker = "tbench setup" if machine.is_root else 'sudo "$(command -v tbench)" setup'
    else:
        docker = "curl -fsSL https://get.docker.com | " + (sudo + "sh")
    # Starts Podman's service, if that is what the machine has.
    podman = "tbench setup"
    installer = next((each for each in ("apt-get", "dnf", "zypper") if machine.has(each)), None)
    if machine.has("podman"):
        return (docker, podman) if machine.has("dockerd") and docker != podman else (podman,)
    return (docker, f"{sudo}{installer} install podman && {podman}") if installer else (docker,)
