"""One engine of several, and what leads to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tbench.fleet.machine import EngineMachine, Way
from tbench.sandbox.backend import SandboxSettings
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine


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
