"""A machine of a fleet: its address, its engine, whether it answers, and what to do when it is lost or back."""

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
"""Time limit of one look at a machine."""
RECOVER_SEC = 600.0
"""Time limit of making a machine ready again."""


class FleetMachine(Protocol):
    """A machine of a fleet."""

    @property
    def name(self) -> str:
        """Its name in messages and results."""

    @property
    def backend(self) -> Backend:
        """What makes sandboxes on it."""

    async def answers(self) -> str:
        """What is wrong with it, empty where nothing is. Bounded; raises nothing."""

    def give_up(self) -> None:
        """Take it that the machine is gone: whatever is asked of it fails at once from now on."""

    async def recover(self) -> int:
        """Get it ready again, and remove what it had; returns how many sandboxes that were. Raises TbenchError."""

    def close(self) -> None:
        """Release what leads to it. Never raises."""


class Way:
    """What leads to an engine: nothing, where its address is one that can be connected to."""

    async def mend(self) -> str:
        """Repair it where it is broken, which may take until later; why it is, empty where it is not."""
        return ""

    def close(self) -> None:
        """Take it away. Never raises."""


class EngineMachine:
    """A machine with a container engine."""

    def __init__(self, name: str, engine: Engine, backend: DockerBackend, way: Way) -> None:
        self.name = name
        self.engine = engine
        self.backend = backend
        self._way = way

    async def answers(self) -> str:
        return await self._way.mend() or await self.engine.ping(PROBE_SEC)

    def give_up(self) -> None:
        self.engine.give_up()

    async def recover(self) -> int:
        self.engine.take_up()
        try:
            async with asyncio.timeout(RECOVER_SEC):
                return await self.backend.recover()
        except BaseException as error:
            self.engine.give_up()
            if isinstance(error, EngineError | TimeoutError):
                raise UsageError(str(error) or f"it takes longer than {RECOVER_SEC:.0f} s to make it ready") from error
            raise

    def close(self) -> None:
        self.engine.close()
        self._way.close()


# One engine of several, and what leads to it.


@dataclass(frozen=True)
class NamedEngine:
    """An engine of several, and what leads to it."""

    name: str
    engine: Engine
    way: Way = field(default_factory=Way)
    host: str = ""
    """Its address on this machine, for the SDK."""

    def machine(self, settings: SandboxSettings) -> EngineMachine:
        """The machine as one of a fleet."""
        logs = settings.image_logs
        own = settings if logs is None else replace(settings, image_logs=logs / _file_name(self.name))
        return EngineMachine(self.name, self.engine, DockerBackend(self.engine, own), self.way)

    def close(self) -> None:
        """Take down the connection, and what leads to it."""
        self.engine.close()
        self.way.close()


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in name)


# Addresses of container engines, as users give them: a socket of this machine, ssh, or TCP.

DOCKER_SOCKET = "/var/run/docker.sock"
_FORMS = "give unix:///path/of.sock, ssh://user@host or tcp://host:2376"


@dataclass(frozen=True)
class EngineAddress:
    """Where an engine is."""

    text: str
    """As it was given; the machine's name in messages and results."""
    scheme: Literal["unix", "ssh", "tcp"]
    host: str = ""
    """With the user, where one is given."""
    port: int | None = None
    path: str = DOCKER_SOCKET
    """Of the engine's socket, on its machine."""

    @classmethod
    def parse(cls, text: str) -> EngineAddress:
        """Read an address. Raises UsageError with the forms that there are."""
        scheme, is_url, rest = text.partition("://") if "://" in text else ("", "", text)
        user, _, where = rest.rpartition("@")
        if ":" in user:
            # Before anything repeats it.
            raise UsageError(f"{scheme}{is_url}{where}: a password does not belong here; use a key of ssh")
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
                # ssh takes brackets for a part of the name.
                return cls(text, "ssh", re.sub(r"[][]", "", host), port, path)
            case "tcp" if parts.hostname and port and parts.path in ("", "/"):
                return cls(text, "tcp", host, port)
        raise UsageError(f"{text or '(empty)'}: is no address of an engine; {_FORMS}")
