"""What Harbor's result.json says of a trial, in versions 0.6 to 0.25.

Every further key is let through, so that a later version can be read as well. The form is that of
harbor/models/trial/result.py, agent/context.py and verifier/result.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _in_utc(time: datetime) -> datetime:
    """Harbor's own times have a zone but for a few, which are told apart from UTC by nothing."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


Time = Annotated[datetime, AfterValidator(_in_utc)]


class HarborRecord(BaseModel):
    """An object of Harbor's, whose further keys are kept aside."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())


class Span(HarborRecord):
    """When a phase began and ended."""

    started_at: Time | None = None
    finished_at: Time | None = None

    @property
    def seconds(self) -> float:
        if self.started_at is None or self.finished_at is None:
            return 0.0
        return max(0.0, (self.finished_at - self.started_at).total_seconds())


class Raised(HarborRecord):
    """An exception that ended a trial, or a step of its task."""

    exception_type: str
    exception_message: str = ""
    exception_traceback: Any = None
    occurred_at: Any = None


class Context(HarborRecord):
    """What the agent counted; input tokens include the cached ones."""

    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_usd: float | None = None
    model_usage: Any = None
    rollout_details: Any = None
    metadata: dict[str, Any] | None = None


class Verified(HarborRecord):
    """The verifier's rewards by name."""

    rewards: dict[str, Any] | None = None


class ModelName(HarborRecord):
    """A model; the provider stood before its name, with a slash between them."""

    name: str
    provider: str | None = None


class AgentName(HarborRecord):
    """The agent of a trial."""

    name: str
    version: str = ""
    model_info: ModelName | None = None


class StepRecord(HarborRecord):
    """What became of a step of a task that has several."""

    step_name: str
    agent_result: Context | None = None
    verifier_result: Verified | None = None
    exception_info: Raised | None = None
    agent_execution: Span | None = None
    verifier: Span | None = None


class HarborTrial(HarborRecord):
    """The content of a trial's result.json."""

    id: str = ""
    task_name: str
    trial_name: str
    trial_uri: Any = None
    task_id: dict[str, Any] = Field(default={})
    source: str | None = None
    task_checksum: str | None = None
    config: dict[str, Any] = Field(default={})
    agent_info: AgentName
    agent_result: Context | None = None
    verifier_result: Verified | None = None
    verifier_environment_mode: Any = None
    exception_info: Raised | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    environment_setup: Span | None = None
    agent_setup: Span | None = None
    agent_execution: Span | None = None
    verifier: Span | None = None
    step_results: tuple[StepRecord, ...] | None = None

    @property
    def model(self) -> str | None:
        """The model's name, without its provider."""
        return self.agent_info.model_info.name if self.agent_info.model_info is not None else None

    @property
    def contexts(self) -> tuple[Context, ...]:
        """What was counted: for the trial, or for each step of its task."""
        if self.agent_result is not None:
            return (self.agent_result,)
        return tuple(step.agent_result for step in self.step_results or () if step.agent_result is not None)

    @property
    def rewards(self) -> dict[str, Any] | None:
        return self.verifier_result.rewards if self.verifier_result is not None else None


def unknown_keys(record: HarborRecord, at: str = "") -> Iterator[str]:
    """Dotted names of the keys of a record that no version so far had."""
    yield from (f"{at}{key}" for key in record.model_extra or ())
    for name in type(record).model_fields:
        value = getattr(record, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, HarborRecord):
                yield from unknown_keys(part, f"{at}{name}.")
