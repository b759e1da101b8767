"""Artifacts that a trial hands from the agent's container to a separate verifier, and commands that collect them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAIN = "main"
"""Service in which the agent works; the only service of a task without a compose file."""
LOGS = "/logs/artifacts"
"""Directory that is always an artifact."""
MANIFEST = "manifest.json"
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NOT_FILES = ("/proc", "/sys", "/dev", "/opt/tbench")
"""Directories of a container into which no files can be restored."""


def _service(name: str) -> str:
    if not _SERVICE.fullmatch(name):
        raise ValueError("must be a service name: letters, digits, '.', '_' and '-', starting with a letter or digit")
    return name


def _source(path: str) -> str:
    parts = PurePosixPath(path).parts
    if ".." in parts or "\0" in path:
        raise ValueError("must be the path of a file or directory in the container, without '..'")
    where = f"/{'/'.join(part for part in parts if part != '/')}"
    if where == "/" or any(where == each or where.startswith(f"{each}/") for each in _NOT_FILES):
        raise ValueError(f"{where} cannot be handed over; name the files or directories that the verifier needs")
    return path


def _destination(path: str | None) -> str | None:
    if not path:
        return None
    parts = PurePosixPath(path).parts
    if path.startswith("/") or "\\" in path or "\0" in path or ".." in parts or not parts:
        raise ValueError("must be a relative path below artifacts/ in the trial's directory, with '/' and without '..'")
    if parts == (MANIFEST,):
        raise ValueError(f"{MANIFEST} is reserved for the list of collected artifacts; choose another name")
    return path


Service = Annotated[str, BeforeValidator(lambda name: name.strip() if isinstance(name, str) else name)]
ServiceName = Annotated[Service, AfterValidator(_service)]


class Artifact(BaseModel):
    """An entry of `artifacts`: a path, or a table."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    source: Annotated[str, AfterValidator(_source)]
    """Path in the container, both where it is collected and where the verifier finds it."""
    destination: Annotated[str | None, AfterValidator(_destination)] = None
    """Path below artifacts/ in the trial's directory, if not the source's."""
    exclude: tuple[str, ...] = ()
    """Patterns of files in a directory that are not collected, as for GNU tar's --exclude."""
    service: ServiceName | None = None
    """Compose service from whose container it is collected; None for the agent's."""

    @model_validator(mode="before")
    @classmethod
    def _from_a_path(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _absolute_elsewhere(self) -> Artifact:
        if self.from_service != MAIN and not self.source.startswith("/"):
            raise ValueError(f"{self.source!r} of service {self.from_service!r} must be an absolute path")
        return self

    @property
    def from_service(self) -> str:
        """Name of the service from which it is collected."""
        return self.service or MAIN

    @property
    def path(self) -> str:
        """Normalised absolute path in the container."""
        return f"/{_plain(self.source)}"

    @property
    def stored_path(self) -> str:
        """Normalised path below artifacts/ in the trial's directory."""
        return str(_plain(self.destination or self.source))


class CollectHook(BaseModel):
    """An entry of [[verifier.collect]]: a command that runs after the agent, before artifacts are collected."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    command: str
    service: ServiceName = MAIN
    timeout_sec: float = Field(default=60.0, gt=0)
    user: str | int | None = None


def _plain(path: str) -> PurePosixPath:
    return PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("", "/", ".", "..")))


def with_logs(artifacts: Sequence[Artifact]) -> tuple[Artifact, ...]:
    """Return the artifacts, preceded by /logs/artifacts unless it is among them."""
    if any(each.path == LOGS and each.from_service == MAIN for each in artifacts):
        return tuple(artifacts)
    return (Artifact(source=LOGS), *artifacts)


def collection_order(artifacts: Sequence[Artifact]) -> tuple[tuple[Artifact, bool], ...]:
    """Return the artifacts in the order of collection, the agent's first, each with whether its stored path is free.

    A path is not free if it equals, contains or is within the path of an earlier artifact.
    """
    ordered = sorted(with_logs(artifacts), key=lambda each: each.from_service != MAIN)
    taken: list[PurePosixPath] = []
    found = []
    for each in ordered:
        place = PurePosixPath(each.stored_path)
        is_free = not any(place.is_relative_to(other) or other.is_relative_to(place) for other in taken)
        if is_free:
            taken.append(place)
        found.append((each, is_free))
    return tuple(found)
