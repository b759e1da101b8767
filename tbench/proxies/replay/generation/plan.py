"""Plans a replay run (prompts, check of the context, manifest), then requests the missing replies."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from harness.endpoint.chat import ChatModel
from harness.endpoint.replicas import Replicas
from harness.errors import ContextLimitReached, EndpointError
from harness.model import Seeds, ServedModel
from tbench import __version__
from tbench.errors import UsageError
from tbench.proxies.datasets.records import Dataset, Record
from tbench.proxies.replay.directory import PromptReport, ReplayDirectory, ReplayManifest
from tbench.proxies.replay.generation.client import PromptedStep, ReplayProgress, ask
from tbench.proxies.replay.generation.options import ReplayOptions
from tbench.proxies.replay.generation.prompts import Prompt, PromptBuilder, Tokenizer
from tbench.proxies.workers import for_each

TOO_LONG_TO_COUNT = "the prompt is too long for the server to count"


@dataclass
class ContextCheck:
    """Token counts of the prompts, and the context that they have to fit."""

    max_tokens: int
    max_model_len: int | None
    counts: dict[str, int] = field(default_factory=dict)
    counted_by: str | None = None
    """`server` or `tokenizer`; None if tokens could not be counted."""
    refused: set[str] = field(default_factory=set)
    """Steps whose prompt is too long for the server to count."""
    problem: str | None = None
    """Why some prompts could not be counted."""

    @property
    def overflow(self) -> dict[str, str]:
        """Error of each step that does not fit, by key."""
        if self.max_model_len is None:
            return {}
        rest = f"+ {self.max_tokens} max_tokens > max_model_len {self.max_model_len}"
        found = {
            key: f"overflow: {count} prompt tokens {rest}"
            for key, count in self.counts.items()
            if count + self.max_tokens > self.max_model_len
        }
        return found | dict.fromkeys(self.refused, f"overflow: {TOO_LONG_TO_COUNT}")

    def require_room(self) -> None:
        """Raise UsageError if steps do not fit, as replies must not be cut silently."""
        overflow = self.overflow
        if not overflow:
            return
        known = {key: self.counts[key] for key in overflow if key in self.counts}
        longest = f" (longest: {max(known, key=known.__getitem__)}, {max(known.values())} tokens)" if known else ""
        total = len(self.counts) + len(self.refused)
        raise UsageError(
            f"{len(overflow)} of {total} steps do not fit: prompt{longest} and --max-tokens {self.max_tokens} exceed "
            f"the context of {self.max_model_len} tokens; serve the model with a longer one, lower --max-tokens, or "
            "skip these steps with --allow-overflow"
        )

    async def count(self, chat: ChatModel, prompts: Mapping[str, Prompt], key: str) -> bool:
        """Count a prompt with a server; False if it cannot count."""
        try:
            counted = await chat.count_tokens(prompts[key].fields)
        except ContextLimitReached:
            self.refused.add(key)
            return True
        except EndpointError as error:
            self.problem = str(error)
            return False
        if counted is None:
            return False
        self.counts[key] = counted.count
        if counted.max_model_len is not None:
            self.max_model_len = min(self.max_model_len or counted.max_model_len, counted.max_model_len)
        return True


async def check_context(
    prompts: Mapping[str, Prompt],
    chats: Sequence[ChatModel],
    *,
    max_tokens: int,
    max_model_len: int | None,
    tokenizer: Tokenizer | None = None,
    concurrency: int = 16,
    say: Callable[[str], None] = lambda _: None,
) -> ContextCheck:
    """Count tokens with the first server that can, else with the tokenizer, else not at all.

    Raises UsageError if `max_tokens` leaves no room for any prompt.
    """
    if max_model_len is not None and max_tokens >= max_model_len:
        raise UsageError(
            f"--max-tokens {max_tokens}: the context has only {max_model_len} tokens, which leaves none for a prompt"
        )
    check = ContextCheck(max_tokens, max_model_len)
    keys = list(prompts)
    for chat in chats:
        if keys and await check.count(chat, prompts, keys[0]):
            await for_each(keys[1:], partial(check.count, chat, prompts), concurrency)
            check.counted_by = "server"
            return check
    if tokenizer is not None:
        for key, prompt in prompts.items():
            if "prompt" in prompt.fields:
                check.counts[key] = len(tokenizer.encode(prompt.fields["prompt"], add_special_tokens=False))
        check.counted_by, check.problem = "tokenizer", None
        return check
    why = check.problem or "the server has no /tokenize"
    say(f"not checked if prompts fit the context ({max_model_len or 'unknown'} tokens): {why}")
    return check


_CONNECT_SEC, _CONNECT_SEC_EACH = 20.0, 5.0


@dataclass(frozen=True)
class ReplayPlan:
    """Everything fixed before the first request."""

    steps: Sequence[PromptedStep]
    """Steps of this shard."""
    check: ContextCheck
    report: PromptReport
    manifest: ReplayManifest


async def make_plan(
    options: ReplayOptions,
    dataset: Dataset,
    endpoints: Replicas,
    tokenizer: Tokenizer | None,
    say: Callable[[str], None],
) -> ReplayPlan:
    """Connect the endpoints, then render the prompts and count their tokens. Raises UsageError."""
    served = await _connect(options, endpoints)
    builder = PromptBuilder(options.prompt, served.id, served.root, tokenizer)
    all_steps, shard = _render_steps(options, dataset, builder), options.shard
    if not (steps := all_steps[shard.index :: shard.count]):
        raise UsageError(f"--shard {shard}: contains none of the {len(all_steps)} steps; use fewer shards")
    lengths = [each for each in (options.config.model.max_model_len, served.context_tokens) if each is not None]
    check = await check_context(
        {step.record.key: step.prompt for step in steps},
        endpoints.connected,
        max_tokens=options.sampling["max_tokens"],
        max_model_len=min(lengths, default=None),
        tokenizer=tokenizer,
        concurrency=options.config.schedule.concurrency,
        say=say,
    )
    report = builder.report(
        [step.prompt for step in all_steps],
        counts=check.counts.values(),
        counted_by=check.counted_by,
        max_model_len=check.max_model_len,
        max_tokens=check.max_tokens,
    )
    return ReplayPlan(steps, check, report, _manifest(options, dataset, served, endpoints, report, all_steps))


async def ask_for_missing(
    options: ReplayOptions,
    plan: ReplayPlan,
    endpoints: Replicas,
    say: Callable[[str], None],
    on_progress: Callable[[ReplayProgress], None],
) -> ReplayProgress:
    """Request the steps that have no answer yet; each reply is stored as it arrives.

    Raises UsageError, also if a reply cannot be written.
    """
    directory = ReplayDirectory.open(options.output, plan.manifest)
    try:
        directory.write_report(plan.report)
        return await _ask(options, plan, endpoints, directory, say, on_progress)
    except OSError as error:
        raise UsageError(
            f"{options.output}: cannot be written: {error.strerror or error}; earlier replies are kept; "
            "free some space, then continue with --resume"
        ) from None
    finally:
        directory.close()


async def _ask(
    options: ReplayOptions,
    plan: ReplayPlan,
    endpoints: Replicas,
    directory: ReplayDirectory,
    say: Callable[[str], None],
    on_progress: Callable[[ReplayProgress], None],
) -> ReplayProgress:
    steps, check, concurrency = plan.steps, plan.check, options.config.schedule.concurrency
    missing = [step for step in steps if step.record.key not in directory.answered]
    before = len(steps) - len(missing)
    earlier = f", {before} already answered" if before else ""
    say(f"{len(steps)} step{'s' * (len(steps) != 1)}{earlier}; {concurrency} concurrent requests")
    began = time.monotonic()
    try:
        return await ask(
            missing,
            endpoints,
            directory.append,
            max_tokens=check.max_tokens,
            max_model_len=check.max_model_len,
            overflow=check.overflow,
            concurrency=concurrency,
            answered_before=before,
            on_progress=on_progress,
        )
    finally:
        with contextlib.suppress(OSError):
            directory.add_time(time.monotonic() - began)


async def _connect(options: ReplayOptions, endpoints: Replicas) -> ServedModel:
    budget_sec = _CONNECT_SEC if len(endpoints.chats) == 1 else _CONNECT_SEC_EACH
    try:
        return await endpoints.connect(min(budget_sec, options.config.model.retry_budget_sec), same_context=False)
    except EndpointError as error:
        raise UsageError(f"endpoint: {error}") from None


def _render_steps(options: ReplayOptions, dataset: Dataset, builder: PromptBuilder) -> list[PromptedStep]:
    """Render the steps of all shards, because each shard's manifest describes all prompts."""
    steps = [
        PromptedStep(record, builder.build(record), _seed(options, record))
        for record in dataset.records[: options.config.dataset.limit]
    ]
    raw = [step for step in steps if step.prompt.status == "raw_fallback"]
    if raw and not options.config.prompt.allow_raw_fallback:
        raise UsageError(
            f"{len(raw)} of {len(steps)} prompts would have no chat template ({raw[0].prompt.error}): "
            "use --render server, give a --tokenizer-path with a template, or use --allow-raw-fallback (not ranked)"
        )
    return steps


def _seed(options: ReplayOptions, record: Record) -> int | None:
    seed, scheme = options.sampling["seed"], options.sampling["seed_scheme"]
    return None if seed is None else Seeds(record.task_id, seed, scheme).for_step(record.step_idx)


def _manifest(
    options: ReplayOptions,
    dataset: Dataset,
    served: ServedModel,
    endpoints: Replicas,
    report: PromptReport,
    all_steps: Sequence[PromptedStep],
) -> ReplayManifest:
    config, sampling = options.config, options.sampling
    unused = {"seed_scheme"} if sampling["seed"] is None else set()
    given = {name: value for name, value in sampling.items() if name not in unused}
    sent = {name: value for name, value in given.items() if value not in (None, {}) and value is not False}
    return ReplayManifest(
        model=served.id,
        model_short=config.output.model_short or served.id.rstrip("/").rpartition("/")[2].replace(" ", "-"),
        base_urls=tuple(chat.url for chat in endpoints.chats),
        dataset=str(options.dataset.resolve()),
        dataset_sha256=dataset.sha256,
        records=len(dataset.records),
        problems=dataset.problems,
        shard_index=options.shard.index,
        shard_count=options.shard.count,
        limit=config.dataset.limit,
        sampling={**sent, **options.vllm, "extra_body": dict(config.model.extra_body)},
        prompt=report.for_manifest(),
        prompt_sha256=_hash([step.prompt.fields for step in all_steps]),
        served=served.model_dump(mode="json"),
        tbench_version=__version__,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _hash(prompts: Sequence[Mapping[str, Any]]) -> str:
    """Return the sha256 of one line of JSON per prompt, keys sorted, in the dataset's order."""
    digest = hashlib.sha256()
    for fields in prompts:
        digest.update(json.dumps(fields, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    return digest.hexdigest()
