"""The run.json of an imported run: plan and origin, without a tbench configuration.

Unlike the run.json of tbench's own runs, it has no schema_version.
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
"""Settings of Harbor that override tasks: `timeout_multiplier`, `agent.max_timeout_sec` …"""
ImportFormat = Literal["harbor", "results"]
Scalar = str | int | float | bool | None


class ImportOrigin(Frozen):
    """Origin of an imported run."""

    format: ImportFormat
    """`harbor`: a job or trials of Harbor; `results`: lines with task, seed and reward."""
    version: str | None = None
    """Version of the program that wrote it; None if unknown."""
    source: str = ""
    """Name of the imported file or directory, without its parent."""
    at: str = ""
    """Time of the import, ISO 8601."""


class ImportedTask(Frozen):
    """A planned task of the imported run."""

    name: str
    hash: str | None = None
    """Hash of the task's content, as computed by tbench; None if unknown."""
    checksum: str | None = None
    """Harbor's checksum of the task's directory, which is computed differently from `hash`."""


class ImportedPlan(Frozen):
    """The content of an imported run's run.json."""

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
    """Known settings of the run, without secrets, by dotted name."""
    reported_mean: float | None = None
    """Mean reward that the imported run reports itself; None if it reports none."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """Settings that override tasks, each as name and value."""
        return tuple(
            f"{name} {value:g}"
            for name, value in self.settings.items()
            if isinstance(value, int | float)
            and _OVERRIDE.fullmatch(name)
            and not (value == 1 and name.endswith("multiplier"))
        )


def imported_plan(content: Mapping[str, Any]) -> ImportedPlan | None:
    """Return the plan in the content of a run.json; None if it was not written by an import.

    Raises ValueError with a one-line message for an invalid plan.
    """
    if "schema_version" in content or not isinstance(content.get("imported"), Mapping):
        return None
    try:
        return ImportedPlan.model_validate(content)
    except ValidationError as error:
        raise ValueError(first_problem(error, "file")) from None
