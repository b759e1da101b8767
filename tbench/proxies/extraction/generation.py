"""Prepares an extraction and requests one reply per task and seed. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness.endpoint.replicas import Endpoint
from harness.errors import ContextLimitReached, EndpointUnavailable, ReplyTimeout, RequestRefused
from harness.model import Model, Seeds, ServedModel
from harness.protocols.base import ActionProtocol
from harness.protocols.thinking_bash import ThinkingBash
from tbench import __version__
from tbench.datasets.reference import stored_source
from tbench.proxies.extraction.records import ExtractionManifest, ReplyRecord, TaskEntry
from tbench.proxies.workers import for_each
from tbench.tasks.sources import TaskSet
from tbench.text import one_line

SINGLE_TURN_PROMPT = Path(__file__).with_name("single_turn.jinja")
"""The bare request of thinking-bash's training, without instructions on ending a run and without a screen."""


def default_prompt(protocol: str) -> Path | None:
    """Return the prompt file that is used by default; None for the protocol's own prompts."""
    return SINGLE_TURN_PROMPT if protocol == ThinkingBash.name else None


def entries(tasks: TaskSet) -> tuple[TaskEntry, ...]:
    """Return all tasks by name, including unreadable ones."""
    known = {task.name: TaskEntry(name=task.name, hash=task.hash, instruction=task.instruction) for task in tasks.tasks}
    broken = {name: TaskEntry(name=name, invalid=one_line(why)) for name, why in tasks.invalid.items()}
    both = known | broken
    return tuple(both[name] for name in tasks.names)


def missing_replies(manifest: ExtractionManifest, answered: Iterable[tuple[str, int]]) -> list[tuple[TaskEntry, int]]:
    """Return tasks and seeds without a reply, seed by seed, so that interrupted extractions have complete seeds."""
    done = set(answered)
    return [
        (task, seed)
        for seed in manifest.seeds
        for task in manifest.tasks
        if task.invalid is None and (task.name, seed) not in done
    ]


async def ask_all(
    model: Model,
    protocol: ActionProtocol,
    wanted: Sequence[tuple[TaskEntry, int]],
    append: Callable[[ReplyRecord], None],
    *,
    concurrency: int,
) -> None:
    """Pass each reply, or error, of `wanted` to `append` as it arrives; an exception of `append` ends the requests."""

    async def one(item: tuple[TaskEntry, int]) -> None:
        append(await _ask(model, protocol, *item))

    await for_each(wanted, one, concurrency)


async def _ask(model: Model, protocol: ActionProtocol, task: TaskEntry, seed: int) -> ReplyRecord:
    """Request one reply; errors are returned in the record."""
    try:
        reply = await model.query(
            protocol.first_messages(task.instruction, ""),
            seed=Seeds(task.name, seed, model.sampling.seed_scheme).for_step(1),
            max_tokens=model.sampling.max_tokens,
            tools=protocol.tools,
        )
    except (ContextLimitReached, RequestRefused, EndpointUnavailable, ReplyTimeout) as error:
        kinds = {ContextLimitReached: "overflow", RequestRefused: "refused"}
        kind = next((kind for type_, kind in kinds.items() if isinstance(error, type_)), "unavailable")
        return ReplyRecord(task=task.name, seed=seed, error=f"{kind}: {one_line(str(error))}")
    return ReplyRecord(
        task=task.name,
        seed=seed,
        content=reply.content,
        reasoning=reply.reasoning,
        tool_calls=reply.tool_calls,
        finish_reason=reply.finish_reason,
        cut=reply.cut,
        prompt_tokens=reply.usage.prompt_tokens,
        completion_tokens=reply.usage.completion_tokens,
        latency_sec=round(reply.latency_sec, 4),
    )


def make_manifest(
    source: str, tasks: TaskSet, seeds: Sequence[int], protocol: ActionProtocol, chat: Endpoint, served: ServedModel
) -> ExtractionManifest:
    """Return the manifest of an extraction that begins now; `source` is the tasks as named by the user."""
    return ExtractionManifest(
        source=stored_source(source),
        tasks=entries(tasks),
        seeds=tuple(seeds),
        protocol=protocol.name,
        prompt_hash=protocol.prompt_hash,
        sampling=chat.sampling.model_dump(mode="json"),
        rendering=chat.rendering.model_dump(mode="json"),
        model=served.id,
        base_url=chat.url,
        served=served.model_dump(),
        tbench_version=__version__,
        created_at=datetime.now(UTC).isoformat(),
    )


def default_directory(model: str) -> Path:
    """Return the default directory of an extraction."""
    slug = re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"
    return Path(f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_{slug}_extract")
