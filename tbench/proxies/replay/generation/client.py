"""Requests replies to many steps concurrently, and passes each on as it arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from harness.endpoint.answers import RawReply, quote, shorten
from harness.errors import ContextLimitReached, EndpointError, EndpointUnavailable, ReplyTimeout
from tbench.proxies.datasets.records import Record
from tbench.proxies.replay.directory import ReplayResponse
from tbench.proxies.replay.generation.prompts import Prompt
from tbench.proxies.workers import for_each

STOP_AFTER_UNAVAILABLE = 3
"""Number of unavailable steps before any answer at which a run stops."""


class PromptedStep(NamedTuple):
    """A record with its prompt and seed."""

    record: Record
    prompt: Prompt
    seed: int | None = None


class CompletionEndpoint(Protocol):
    """The endpoint: `harness.endpoint.replicas.Replicas`, or a fake."""

    @property
    def gave_up(self) -> str | None: ...

    async def complete(self, fields: Mapping[str, object], *, seed: int | None = None) -> RawReply: ...


@dataclass
class ReplayProgress:
    """Progress of one start of a run, in steps."""

    planned: int
    answered_before: int = 0
    """Steps answered by earlier starts, which are not in `planned`."""
    answered: int = 0
    errors: int = 0
    overflow: int = 0
    """Errors because prompt and reply do not fit the context."""
    unavailable: int = 0
    """Errors because the endpoint was unavailable."""
    stopped: str | None = None
    """Why the remaining steps were not requested."""
    seconds: float = 0.0

    @property
    def done(self) -> int:
        return self.answered + self.errors

    def add(self, response: ReplayResponse) -> None:
        if response.error is None:
            self.answered += 1
            return
        self.errors += 1
        self.overflow += response.error.startswith("overflow:")
        self.unavailable += response.error.startswith("unavailable:")
        if self.unavailable >= STOP_AFTER_UNAVAILABLE and not self.answered and self.stopped is None:
            self.stopped = f"the first {STOP_AFTER_UNAVAILABLE} steps got no answer; last error: {response.error}"


async def ask(
    steps: Sequence[PromptedStep],
    endpoints: CompletionEndpoint,
    write: Callable[[ReplayResponse], None],
    *,
    max_tokens: int,
    max_model_len: int | None = None,
    overflow: Mapping[str, str] | None = None,
    concurrency: int = 16,
    answered_before: int = 0,
    on_progress: Callable[[ReplayProgress], None] = lambda _: None,
) -> ReplayProgress:
    """Request all steps, and pass each ReplayResponse, including errors, to `write` as it arrives.

    `overflow` maps keys of steps that are not requested to the reason. An exception of `write` ends all requests.
    """
    progress = ReplayProgress(len(steps), answered_before)
    began = time.monotonic()

    async def answer(step: PromptedStep) -> ReplayResponse:
        """Request one step; errors are returned in the response."""
        try:
            reply = await endpoints.complete(step.prompt.fields, seed=step.seed)
        except ContextLimitReached as error:
            return _failed_response(step, f"overflow: {error}")
        except (EndpointUnavailable, ReplyTimeout) as error:
            if isinstance(error, EndpointUnavailable) and endpoints.gave_up is not None:
                progress.stopped = endpoints.gave_up
            return _failed_response(step, f"unavailable: {error}")
        except EndpointError as error:
            return _failed_response(step, f"refused: {error}")
        return _response(step, reply, _cut_by_context(reply, max_tokens, max_model_len))

    async def unless_stopped(step: PromptedStep) -> None:
        if progress.stopped is None:
            too_long = (overflow or {}).get(step.record.key)
            response = _failed_response(step, too_long) if too_long else await answer(step)
            write(response)
            progress.add(response)
            on_progress(progress)

    try:
        await for_each(steps, unless_stopped, concurrency)
    finally:
        progress.seconds = time.monotonic() - began
    return progress


def _response(step: PromptedStep, reply: RawReply, error: str | None) -> ReplayResponse:
    return _failed_response(step, error).model_copy(
        update={
            "content": reply.content,
            "reasoning": reply.reasoning,
            "finish_reason": reply.finish_reason,
            "stop_reason": reply.stop_reason,
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "latency_sec": round(reply.latency_sec, 4),
        }
    )


def _failed_response(step: PromptedStep, error: str | None) -> ReplayResponse:
    record, prompt = step.record, step.prompt
    return ReplayResponse(
        task_id=record.task_id,
        sample_idx=record.sample_idx,
        step_idx=record.step_idx,
        template_status=prompt.status,
        stripped_thinking_blocks=prompt.stripped_thinking_blocks,
        error=None if error is None else shorten(quote(error)),
    )


def _cut_by_context(reply: RawReply, max_tokens: int, max_model_len: int | None) -> str | None:
    """Return the error of a reply that was cut by the end of the context; None for other replies.

    vLLM 0.32 silently shortens `max_tokens` to the rest of the context.
    """
    prompt, completion = reply.prompt_tokens, reply.completion_tokens
    if max_model_len is None or prompt is None or completion is None or reply.finish_reason != "length":
        return None
    if completion >= max_tokens or prompt + completion < max_model_len:
        return None
    return f"overflow: the reply was cut after {completion} tokens: {prompt} prompt tokens fill max_model_len"
