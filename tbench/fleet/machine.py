"""A machine of a fleet: its address, its engine, health checks and recovery."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol
from urllib.parse import urlsplit

from tbench.errors import UsageError
from tbench.sandbox.backend import Backend, SandboxSettings
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine, EngineError

PROBE_SEC = 10.0
"""Time limit of one health check."""
RECOVER_SEC = 600.0
"""Time limit of a recovery."""


class FleetMachine(Protocol):
    """A machine of a fleet."""

    @property
    def name(self) -> str:
        """Name in messages and results."""

    @property
    def backend(self) -> Backend:
        """Backend for sandboxes on it."""

    async def check(self) -> str:
        """Check that it answers; returns the problem, or an empty text. Bounded; never raises."""

    def give_up(self) -> None:
        """Mark the machine as lost: all calls fail at once from now on."""

    async def recover(self) -> int:
        """Prepare it again, and remove its sandboxes; returns their number. Raises TbenchError."""

    def close(self) -> None:
        """Close the connection to it. Never raises."""


class Forward:
    """A forward to an engine; this base class stands for an engine that needs none."""

    async def repair(self) -> str:
        """Start the repair of a broken forward; returns the problem, or an empty text if it works."""
        return ""

    def close(self) -> None:
        """Close the forward. Never raises."""


@dataclass(eq=False)
class EngineMachine:
    """A machine with a container engine."""

    name: str
    engine: Engine
    backend: DockerBackend
    forward: Forward

    async def check(self) -> str:
        return await self.forward.repair() or await self.engine.ping(PROBE_SEC)

    def give_up(self) -> None:
        self.engine.give_up()

    async def recover(self) -> int:
        self.engine.restore()
        try:
            async with asyncio.timeout(RECOVER_SEC):
                return await self.backend.recover()
        except BaseException as error:
            self.engine.give_up()
            if isinstance(error, EngineError | TimeoutError):
                raise UsageError(str(error) or f"recovery takes longer than {RECOVER_SEC:.0f} s") from error
            raise

    def close(self) -> None:
        self.engine.close()
        self.forward.close()


@dataclass(frozen=True)
class NamedEngine:
    """One of several engines, with the forward to it."""

    name: str
    engine: Engine
    forward: Forward = field(default_factory=Forward)
    host: str = ""
    """Local address of the engine, for the SDK."""

    def machine(self, settings: SandboxSettings) -> EngineMachine:
        """Return the engine as a machine of a fleet."""
        own = replace(settings, machine_folder=_file_name(self.name))
        return EngineMachine(self.name, self.engine, DockerBackend(self.engine, own), self.forward)

    def close(self) -> None:
        """Close the connection and the forward."""
        self.engine.close()
        self.forward.close()


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in name)


DOCKER_SOCKET = "/var/run/docker.sock"
_FORMS = "use unix:///path/of.sock, ssh://user@host or tcp://host:2376, or oci: for no engine"


@dataclass(frozen=True)
class EngineAddress:
    """Address of an engine, as given by the user: a local socket, ssh, or TCP."""

    text: str
    """The address as given, which names the machine in messages and results."""
    scheme: Literal["unix", "ssh", "tcp"]
    host: str = ""
    """Host, with the user if given."""
    port: int | None = None
    path: str = DOCKER_SOCKET
    """Path of the engine's socket on its machine."""

    @classmethod
    def parse(cls, text: str) -> EngineAddress:
        """Parse an address. Raises UsageError with the valid forms."""
        scheme, is_url, rest = text.partition("://") if "://" in text else ("", "", text)
        user, _, where = rest.rpartition("@")
        if ":" in user:
            # First, so that no other message contains the password.
            raise UsageError(f"{scheme}{is_url}{where}: must not contain a password; use an ssh key")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"{text}: {error}; {_FORMS}") from None
        host = parts.netloc.removesuffix(f":{port}") if port is not None else parts.netloc.removesuffix(":")
        match parts.scheme if is_url and not parts.query and not parts.fragment else "":
            case "unix" if not host and len(parts.path) > 1:
                return cls(text, "unix", path=parts.path)
            case "ssh" if parts.hostname and not host.startswith("-"):
                path = parts.path if len(parts.path) > 1 else DOCKER_SOCKET
                # ssh would take the brackets of an IPv6 address for a part of the name.
                return cls(text, "ssh", re.sub(r"[][]", "", host), port, path)
            case "tcp" if parts.hostname and port and parts.path in ("", "/"):
                return cls(text, "tcp", host, port)
        raise UsageError(f"{text or '(empty)'}: not the address of an engine; {_FORMS}")
