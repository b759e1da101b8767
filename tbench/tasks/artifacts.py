"""What a task hands from the agent's container to its verifier: artifacts, and the commands that collect them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAIN = "main"
"""The service in which the agent works; a task without services has only this one."""
LOGS = "/logs/artifacts"
"""Directory that is always an artifact."""
MANIFEST = "manifest.json"
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NOT_FILES = ("/proc", "/sys", "/dev", "/opt/tbench")
"""Directories of a container in which nothing can be restored."""


def _service(name: str) -> str:
    if not _SERVICE.fullmatch(name):
        raise ValueError("is no name of a service: letters, digits, '.', '_' and '-', beginning with a letter or digit")
    return name


def _source(path: str) -> str:
    parts = PurePosixPath(path).parts
    if ".." in parts or "\0" in path:
        raise ValueError("must not contain '..': it is the path of a file or directory in the container")
    where = f"/{'/'.join(part for part in parts if part != '/')}"
    if where == "/" or any(where == each or where.startswith(f"{each}/") for each in _NOT_FILES):
        raise ValueError(f"{where} cannot be handed over: name the files or directories that are to be judged")
    return path


def _destination(path: str | None) -> str | None:
    if not path:
        return None
    parts = PurePosixPath(path).parts
    if path.startswith("/") or "\\" in path or "\0" in path or ".." in parts or not parts:
        raise ValueError("is a path below artifacts/ of the trial's directory: relative, with '/', without '..'")
    if parts == (MANIFEST,):
        raise ValueError(f"{MANIFEST} is the list of what was collected; choose another name")
    return path


Service = Annotated[str, BeforeValidator(lambda name: name.strip() if isinstance(name, str) else name)]


class Artifact(BaseModel):
    """One of `artifacts`: a path, or a table."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    source: Annotated[str, AfterValidator(_source)]
    """Path in the container: where it is collected, and where the verifier finds it."""
    destination: Annotated[str | None, AfterValidator(_destination)] = None
    """Path below artifacts/ of the trial's directory, in place of the source's."""
    exclude: tuple[str, ...] = ()
    """Patterns of what stays behind of a directory, as GNU tar's --exclude has them."""
    service: Annotated[Service, AfterValidator(_service)] | None = None
    """Service of a compose file whose container it is in; None for the agent's."""

    @model_validator(mode="before")
    @classmethod
    def _from_a_path(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _absolute_elsewhere(self) -> Artifact:
        if self.of != MAIN and not self.source.startswith("/"):
            raise ValueError(f"{self.source!r} of service {self.of!r} must be an absolute path")
        return self

    @property
    def of(self) -> str:
        """Name of the service it is collected from."""
        return self.service or MAIN

    @property
    def path(self) -> str:
        """Absolute path in the container, without what is superfluous in it."""
        return f"/{_plain(self.source)}"

    @property
    def place(self) -> str:
        """Path below artifacts/ of the trial's directory."""
        return str(_plain(self.destination or self.source))


class CollectHook(BaseModel):
    """One of [[verifier.collect]]: a command that runs when the agent has ended, before artifacts are collected."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    command: str
    service: Annotated[Service, AfterValidator(_service)] = MAIN
    timeout_sec: float = Field(default=60.0, gt=0)
    user: str | int | None = None


def _plain(path: str) -> PurePosixPath:
    return PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("", "/", ".", "..")))


def with_logs(artifacts: Sequence[Artifact]) -> tuple[Artifact, ...]:
    """The artifacts and, first where none of them is it, the directory that is always one."""
    if any(each.path == LOGS and each.of == MAIN for each in artifacts):
        return tuple(artifacts)
    return (Artifact(source=LOGS), *artifacts)


def in_order(artifacts: Sequence[Artifact]) -> tuple[tuple[Artifact, bool], ...]:
    """The artifacts in the order of collecting, the agent's first; and whether nothing before lies in its place."""
    ordered = sorted(with_logs(artifacts), key=lambda each: each.of != MAIN)
    taken: list[PurePosixPath] = []
    found = []
    for each in ordered:
        place = PurePosixPath(each.place)
        is_free = not any(place.is_relative_to(other) or other.is_relative_to(place) for other in taken)
        if is_free:
            taken.append(place)
        found.append((each, is_free))
    return tuple(found)
