"""Counts and seconds of a trial of Harbor, as ours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from harness.trajectory import Trajectory, Usage
from tbench.exchange.importing.harbor.records import Context, HarborTrial, Span
from tbench.results import UNKNOWN_TIME, TaskStepResult, Timings

_REPLIES, _REQUEST_TIMES = "n_episodes", "api_request_times_msec"
USED_METADATA = (_REPLIES, _REQUEST_TIMES)
"""What Terminus-2 tells in the metadata of its context, as far as it is used here."""


def count_of(contexts: Sequence[Context], trajectory: Trajectory | None) -> int:
    """Replies of the model."""
    if trajectory is not None:
        return len(trajectory.steps)
    counts = [(context.metadata or {}).get(_REPLIES) for context in contexts]
    return sum(count for count in counts if type(count) is int and count > 0)


def usage_of(contexts: Sequence[Context], trajectory: Trajectory | None) -> Usage:
    """The agent's own counts, which have what went into summaries; else those of the steps."""
    told = [context for context in contexts if context.n_input_tokens or context.n_output_tokens]
    if not told:
        return trajectory.usage if trajectory is not None else Usage()
    counts = (
        Usage(
            prompt_tokens=context.n_input_tokens or 0,
            completion_tokens=context.n_output_tokens or 0,
            cached_tokens=context.n_cache_tokens,
        )
        for context in told
    )
    return sum(counts, Usage())


def timings_of(record: HarborTrial, steps: Sequence[TaskStepResult], trajectory: Trajectory | None) -> Timings:
    """Seconds by phase. The agent's installation is part of the sandbox's time, as nothing was tried yet."""
    whole = Span(started_at=record.started_at, finished_at=record.finished_at).seconds
    of_steps = [step.timings for step in steps]
    sandbox = seconds_of(record.environment_setup) + seconds_of(record.agent_setup)
    agent = sum(each.agent_sec for each in of_steps) if of_steps else seconds_of(record.agent_execution)
    verifier = sum(each.verifier_sec for each in of_steps) if of_steps else seconds_of(record.verifier)
    return Timings(
        sandbox_sec=sandbox,
        agent_sec=agent,
        model_sec=min(agent, model_sec(record.contexts) or (trajectory.model_sec if trajectory is not None else 0.0)),
        command_sec=min(agent, trajectory.command_sec if trajectory is not None else 0.0),
        verifier_sec=verifier,
        wall_sec=whole or sandbox + agent + verifier,
    )


def model_sec(contexts: Sequence[Context]) -> float:
    """Seconds of requests, which Terminus-2 records."""
    times = [time for context in contexts for time in _list((context.metadata or {}).get(_REQUEST_TIMES))]
    return sum(time for time in times if isinstance(time, int | float) and 0 <= time < 1e9) / 1000


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def seconds_of(span: Span | None) -> float:
    """Seconds of a phase, 0 where it is not recorded."""
    return span.seconds if span is not None else 0.0


def times_of(record: HarborTrial) -> tuple[datetime, datetime]:
    """When the trial began and ended; 1970 where that is not recorded."""
    spans = (record.environment_setup, record.agent_setup, record.agent_execution, record.verifier)
    ends = [span.finished_at for span in spans if span is not None and span.finished_at is not None]
    begun = record.started_at or UNKNOWN_TIME
    return begun, record.finished_at or max(ends, default=begun)
