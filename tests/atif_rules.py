"""The rules of ATIF 1.8 as a model: what Harbor 0.25.0's own validator asks of a document, but for images and audio."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
Extra = dict[str, Any] | None


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class AtifAgent(Strict):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: Extra = None


class AtifCall(Strict):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: Extra = None


class AtifResult(Strict):
    source_call_id: str | None = None
    content: str | None = None
    extra: Extra = None


class AtifObservation(Strict):
    results: list[AtifResult]


class AtifMetrics(Strict):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: Extra = None


class AtifTotals(Strict):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = Field(default=None, ge=0)
    extra: Extra = None


class AtifStep(Strict):
    step_id: int = Field(ge=1)
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    message: str
    reasoning_content: str | None = None
    tool_calls: list[AtifCall] | None = None
    observation: AtifObservation | None = None
    metrics: AtifMetrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = Field(default=None, ge=0)
    extra: Extra = None

    @model_validator(mode="after")
    def _fields_fit_the_source(self) -> Self:
        if self.timestamp is not None:
            datetime.fromisoformat(self.timestamp.replace("Z", "+00:00"))
        given = [name for name in AGENT_ONLY if getattr(self, name) is not None]
        if given and self.source != "agent":
            raise ValueError(f"{given} on a step of {self.source}")
        if self.llm_call_count == 0 and (self.metrics or self.reasoning_content):
            raise ValueError("metrics or reasoning without a call of a model")
        calls = {call.tool_call_id for call in self.tool_calls or ()}
        answered = {each.source_call_id for each in self.observation.results} if self.observation else set()
        if unknown := answered - calls - {None}:
            raise ValueError(f"results of calls that are not there: {unknown}")
        return self


class AtifDocument(Strict):
    schema_version: Literal["ATIF-v1.8"]
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AtifAgent
    steps: list[AtifStep] = Field(min_length=1)
    notes: str | None = None
    final_metrics: AtifTotals | None = None
    continued_trajectory_ref: str | None = None
    extra: Extra = None

    @model_validator(mode="after")
    def _steps_are_numbered(self) -> Self:
        if [step.step_id for step in self.steps] != list(range(1, len(self.steps) + 1)):
            raise ValueError("steps are not numbered from 1")
        if self.final_metrics and self.final_metrics.total_steps != len(self.steps) and not self.notes:
            raise ValueError("another number of steps without a note")
        return self
