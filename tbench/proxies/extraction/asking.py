"""Asks a model for one reply per task and seed, by a manifest made before. Nothing is executed."""

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
from tbench.proxies.workers import work_through
from tbench.tasks.sources import TaskSet
from tbench.text import one_line

SINGLE_TURN_PROMPT = Path(__file__).with_name("single_turn.jinja")
"""The bare request of thinking-bash's training: no sentence about the end of a run, no screen."""


def default_prompt(protocol: str) -> Path | None:
    """The prompt file where the user gives none."""
    return SINGLE_TURN_PROMPT if protocol == ThinkingBash.name else None


def entries(tasks: TaskSet) -> tuple[TaskEntry, ...]:
    """All tasks by name, those that cannot be read too."""
    known = {task.name: TaskEntry(name=task.name, hash=task.hash, instruction=task.instruction) for task in tasks.tasks}
    broken = {name: TaskEntry(name=name, invalid=one_line(why)) for name, why in tasks.invalid.items()}
    both = known | broken
    return tuple(both[name] for name in tasks.names)


def still_open(manifest: ExtractionManifest, answered: Iterable[tuple[str, int]]) -> list[tuple[TaskEntry, int]]:
    """What has no reply yet, seed by seed: an extraction cut short has whole seeds first."""
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
    """Hand a record for each of `wanted` to `append` as it comes, errors as well. What that raises ends the asking."""

    async def one(item: tuple[TaskEntry, int]) -> None:
        append(await ask(model, protocol, *item))

    await work_through(wanted, one, concurrency)


async def ask(model: Model, protocol: ActionProtocol, task: TaskEntry, seed: int) -> ReplyRecord:
    """One reply, or why there is none."""
    try:
        reply = await model.query(
            protocol.first_messages(task.instruction, ""),
            seed=Seeds(task.name, seed, model.sampling.seed_scheme).at(1),
            max_tokens=model.sampling.max_tokens,
            tools=protocol.tools,
        )
    except ContextLimitReached as error:
        return ReplyRecord(task=task.name, seed=seed, error=f"overflow: {one_line(str(error))}")
    except RequestRefused as error:
        return ReplyRecord(task=task.name, seed=seed, error=f"refused: {one_line(str(error))}")
    except (EndpointUnavailable, ReplyTimeout) as error:
        return ReplyRecord(task=task.name, seed=seed, error=f"unavailable: {one_line(str(error))}")
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


# Prepares an extraction: its manifest, made before the first request, and the name of its directory.


def make_manifest(
    source: str, tasks: TaskSet, seeds: Sequence[int], protocol: ActionProtocol, chat: Endpoint, served: ServedModel
) -> ExtractionManifest:
    """The manifest of an extraction that begins now; `source` is what the user named the tasks by."""
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
    """The directory of an extraction for which the user named none."""
    slug = re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"
    return Path(f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_{slug}_extract")
