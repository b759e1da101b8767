"""Artifacts of an agent as stored in the trial's directory: an archive, its manifest, and files for people to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tbench.errors import TrialError
from tbench.files import write_json
from tbench.tasks.artifacts import MANIFEST, Artifact

ARCHIVE_NAME = "artifacts.tar"
FOLDER = "artifacts"


class ArtifactEntry(BaseModel):
    """Outcome of collecting one artifact: an entry of artifacts/manifest.json, with Harbor's keys."""

    model_config = ConfigDict(frozen=True)

    source: str
    destination: str
    """Path in the trial's directory."""
    type: Literal["file", "directory"]
    status: Literal["ok", "failed", "empty", "skipped"]
    service: str | None = None
    exclude: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Absolute path in the container."""
        return Artifact(source=self.source).path


_ENTRIES = TypeAdapter(tuple[ArtifactEntry, ...])


@dataclass(frozen=True)
class HandedOver:
    """The artifacts of one trial."""

    archive: Path
    """Archive whose entries belong to root and have the paths at which they were collected."""
    entries: tuple[ArtifactEntry, ...]
    remarks: tuple[str, ...] = ()
    """Problems, each as `kind: description`."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files of /logs/agent, by path below the trial's directory."""

    @property
    def to_restore(self) -> tuple[ArtifactEntry, ...]:
        """Entries that are in the archive."""
        return tuple(entry for entry in self.entries if entry.status in ("ok", "empty"))


def write_manifest(directory: Path, entries: tuple[ArtifactEntry, ...]) -> None:
    """Write the manifest of a trial's artifacts. Raises OSError."""
    write_json(directory / FOLDER / MANIFEST, _ENTRIES.dump_python(entries, mode="json"))


def is_stored(directory: Path) -> bool:
    """Whether a trial's directory has the archive and the manifest that a fresh container needs."""
    return (directory / ARCHIVE_NAME).is_file() and (directory / FOLDER / MANIFEST).is_file()


def read_handover(directory: Path) -> HandedOver:
    """Read the artifacts of the trial in `directory`. Raises TrialError (verifier_failed) if they cannot be read."""
    manifest = directory / FOLDER / MANIFEST
    try:
        entries = _ENTRIES.validate_python(json.loads(manifest.read_bytes()))
    except (OSError, ValueError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise TrialError("verifier_failed", f"{manifest}: cannot be read: {reason}") from None
    return HandedOver(directory / ARCHIVE_NAME, entries)
