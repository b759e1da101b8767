"""The schema of task.yaml: what is asked for, by which limits, and how the output of the tests is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tbench.errors import TaskInvalid
from tbench.tasks.format import first_problem
from tbench.tasks.terminal_bench_1.yaml_file import read_yaml

Parser = Literal["pytest", "swebench", "sweperf", "mlebench"]
"""How the output of run-tests.sh becomes a verdict; verdict.sh has the rules."""
_METADATA = (
    *("author_name", "author_email", "difficulty", "category", "tags"),
    *("estimated_duration_sec", "expert_time_estimate_min", "junior_time_estimate_min"),
)


class Description(BaseModel):
    """The content of task.yaml; defaults are those of Terminal-Bench 1. Other keys have no effect there either."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    instruction: str = Field(min_length=1)
    parser_name: Parser = "pytest"
    max_agent_timeout_sec: float = Field(default=360.0, gt=0)
    max_test_timeout_sec: float = Field(default=60.0, gt=0)
    run_tests_in_same_shell: bool = False
    metadata: dict[str, Any] = {}
    """What is told of the task and has no effect."""


def read_description(path: Path) -> Description:
    """The content of the task.yaml at `path`. Raises TaskInvalid, naming file and line or key, and OSError."""
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise TaskInvalid(f"{path}: is no table of keys and values, such as `instruction: ...`")
    told = {key: raw[key] for key in _METADATA if raw.get(key) is not None}
    try:
        return Description.model_validate({**{str(key): value for key, value in raw.items()}, "metadata": told})
    except ValidationError as error:
        raise TaskInvalid(f"{path}: {first_problem(error)}") from None
