"""The run.json of a run that was imported: what was planned and where it came from, but no configuration of ours.

It has no schema_version, by which it is told from a run of tbench's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.trajectory import Frozen
from tbench.origin import DatasetOrigin
from tbench.storage.record_directory import first_problem

_OVERRIDE = re.compile(r"\w*timeout_multiplier|\w+\.(?:override|max)_\w+")
"""Settings of Harbor that change what a task says: `timeout_multiplier`, `agent.max_timeout_sec` …"""
ImportFormat = Literal["harbor", "results"]
Scalar = str | int | float | bool | None


class ImportOrigin(Frozen):
    """Where an imported run came from."""

    format: ImportFormat
    """A job or trials of Harbor, or bare lines with task, seed and reward."""
    version: str | None = None
    """Version of the program that wrote it; None where it does not say."""
    source: str = ""
    """Name of the file or directory that was imported, without the way to it."""
    at: str = ""
    """When it was imported, ISO 8601."""


class ImportedTask(Frozen):
    """A task that the imported run had planned."""

    name: str
    hash: str | None = None
    """Hash of its content, as tbench computes it; None where that is not known."""
    checksum: str | None = None
    """Harbor's checksum of its directory: the same content has the same one, but it is no `hash`."""


class ImportedPlan(Frozen):
    """The content of run.json of an imported run."""

    run: str
    imported: ImportOrigin
    model: str | None = None
    agent: str | None = None
    agent_version: str | None = None
    dataset: DatasetOrigin | None = None
    seeds: tuple[int, ...]
    tasks: tuple[ImportedTask, ...]
    status: Literal["finished", "interrupted"] = "finished"
    created_at: str = ""
    ended_at: str | None = None
    settings: dict[str, Scalar] = Field(default={})
    """What it was run with, as far as it says and as it may be shown: a dotted name and a value each."""
    reported_mean: float | None = None
    """The mean reward that its own result states; None where it states none."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """What was done otherwise than the tasks say, as far as its settings tell: a name and a value each."""
        return tuple(
            f"{name} {value:g}"
            for name, value in self.settings.items()
            if isinstance(value, int | float)
            and _OVERRIDE.fullmatch(name)
            and not (value == 1 and name.endswith("multiplier"))
        )


def imported_plan(content: Mapping[str, Any]) -> ImportedPlan | None:
    """The plan in the content of a run.json; None where it was not written by an import.

    Raises ValueError with a line for one that cannot be read.
    """
    if "schema_version" in content or not isinstance(content.get("imported"), Mapping):
        return None
    try:
        return ImportedPlan.model_validate(content)
    except ValidationError as error:
        raise ValueError(first_problem(error, "file")) from None
