"""Plans a replay run (its prompts, whether they fit, its manifest), then asks for the replies that are missing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from harness.endpoint.chat import ChatModel
from harness.endpoint.replicas import Replicas
from harness.errors import ContextLimitReached, EndpointError
from harness.model import Seeds, ServedModel
from tbench import __version__
from tbench.errors import UsageError
from tbench.proxies.datasets.records import Dataset, Record
from tbench.proxies.replay.asking.client import PromptedStep, ReplayProgress, ask
from tbench.proxies.replay.asking.options import ReplayOptions
from tbench.proxies.replay.asking.prompts import Prompt, PromptBuilder, Tokenizer
from tbench.proxies.replay.directory import PromptReport, ReplayDirectory, ReplayManifest
from tbench.proxies.workers import work_through

# Checks that every prompt and its reply fit the model's context, before anything is asked.

TOO_LONG_TO_COUNT = "the server refuses to count so much"


@dataclass(frozen=True)
class ContextCheck:
    """The prompts' token counts, and the context that they have to fit."""

    max_tokens: int
    max_model_len: int | None
    counts: Mapping[str, int] = field(default_factory=dict)
    counted_by: str | None = None
    """`server` or `tokenizer`; None where nobody could count."""
    refused: frozenset[str] = frozenset()
    """Steps whose prompt the server refused to count because of its length."""
    problem: str | None = None
    """Why some prompts could not be counted."""

    @property
    def overflow(self) -> dict[str, str]:
        """Error by key of each step that does not fit."""
        if self.max_model_len is None:
            return {}
        words = f"+ {self.max_tokens} max_tokens > max_model_len {self.max_model_len}"
        found = {
            key: f"overflow: {count} prompt tokens {words}"
            for key, count in self.counts.items()
            if count + self.max_tokens > self.max_model_len
        }
        return found | dict.fromkeys(self.refused, f"overflow: {TOO_LONG_TO_COUNT}")

    def require_room(self) -> None:
        """Refuse steps that do not fit, as nothing may be cut silently. Raises UsageError."""
        overflow = self.overflow
        if not overflow:
            return
        known = {key: self.counts[key] for key in overflow if key in self.counts}
        longest = f" (longest: {max(known, key=known.__getitem__)}, {max(known.values())} tokens)" if known else ""
        total = len(self.counts) + len(self.refused)
        raise UsageError(
            f"{len(overflow)} of {total} steps do not fit: prompt{longest} and --max-tokens {self.max_tokens} exceed "
            f"the context of {self.max_model_len} tokens; serve the model with a longer one, lower --max-tokens, or "
            "leave these steps without an answer with --allow-overflow"
        )


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
    """Count with the first server that can, else with the tokenizer, else not at all.

    Raises UsageError for a `max_tokens` that leaves no room for any prompt.
    """
    if max_model_len is not None and max_tokens >= max_model_len:
        raise UsageError(
            f"--max-tokens {max_tokens}: the whole context has {max_model_len} tokens; nothing is left for a prompt"
        )
    counting = _Counting(prompts, max_tokens, max_model_len)
    for chat in chats:
        if (check := await counting.by_server(chat, concurrency)) is not None:
            return check
    if tokenizer is not None:
        return counting.by_tokenizer(tokenizer)
    say(f"no /tokenize at the server: that prompts fit its context ({max_model_len or 'unknown'}) is not checked")
    return counting.check()


class _Counting:
    """The state of one `check_context`."""

    def __init__(self, prompts: Mapping[str, Prompt], max_tokens: int, max_model_len: int | None) -> None:
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._limit = max_model_len
        self._counts: dict[str, int] = {}
        self._refused: set[str] = set()
        self._problem: str | None = None

    async def by_server(self, chat: ChatModel, concurrency: int) -> ContextCheck | None:
        """Count all prompts with one server; None where it cannot count."""
        keys = list(self._prompts)
        if not keys or not await self._count(chat, keys[0]):
            return None

        async def count(key: str) -> None:
            await self._count(chat, key)

        await work_through(keys[1:], count, concurrency)
        return self.check("server")

    def by_tokenizer(self, tokenizer: Tokenizer) -> ContextCheck:
        self._problem = None
        for key, prompt in self._prompts.items():
            if "prompt" in prompt.fields:
                self._counts[key] = len(tokenizer.encode(prompt.fields["prompt"], add_special_tokens=False))
        return self.check("tokenizer")

    async def _count(self, chat: ChatModel, key: str) -> bool:
        try:
            counted = await chat.count_tokens(self._prompts[key].fields)
        except ContextLimitReached:
            self._refused.add(key)
            return True
        except EndpointError as error:
            self._problem = str(error)
            return False
        if counted is None:
            return False
        self._counts[key] = counted.count
        if counted.max_model_len is not None:
            self._limit = min(self._limit or counted.max_model_len, counted.max_model_len)
        return True

    def check(self, by: str | None = None) -> ContextCheck:
        refused = frozenset(self._refused)
        return ContextCheck(self._max_tokens, self._limit, self._counts, by, refused, self._problem)


_CONNECT_SEC, _CONNECT_SEC_OF_SEVERAL = 20.0, 5.0


@dataclass(frozen=True)
class ReplayPlan:
    """Everything that is settled before the first request."""

    steps: Sequence[PromptedStep]
    """The steps of this shard."""
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
    """Ask the endpoints what they serve, then make the prompts and count them. Raises UsageError."""
    served = await _connect(options, endpoints)
    builder = PromptBuilder(options.prompt, served.id, served.root, tokenizer)
    everything = _prompted(options, dataset, builder)
    steps = _of_shard(options, everything)
    lengths = [length for length in (options.max_model_len, served.context_tokens) if length is not None]
    check = await check_context(
        {step.record.key: step.prompt for step in steps},
        endpoints.connected,
        max_tokens=options.sampling["max_tokens"],
        max_model_len=min(lengths, default=None),
        tokenizer=tokenizer,
        concurrency=options.concurrency,
        say=say,
    )
    report = builder.report(
        [step.prompt for step in everything],
        counts=check.counts.values(),
        counted_by=check.counted_by,
        max_model_len=check.max_model_len,
        max_tokens=check.max_tokens,
    )
    return ReplayPlan(steps, check, report, _manifest(options, dataset, served, endpoints, report, everything))


async def ask_for_missing(
    options: ReplayOptions,
    plan: ReplayPlan,
    endpoints: Replicas,
    say: Callable[[str], None],
    on_progress: Callable[[ReplayProgress], None],
) -> ReplayProgress:
    """Ask for the steps that no earlier start has brought an answer to, each written down as it comes.

    Raises UsageError, also where a reply cannot be written.
    """
    directory = ReplayDirectory.open(options.output, plan.manifest)
    try:
        directory.write_report(plan.report)
        return await _ask(options, plan, endpoints, directory, say, on_progress)
    except OSError as error:
        raise UsageError(
            f"{options.output}: cannot be written: {error.strerror or error}; what was answered before is kept: "
            "make room, then go on with --resume"
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
    steps, check = plan.steps, plan.check
    missing = [step for step in steps if step.record.key not in directory.answered]
    before = len(steps) - len(missing)
    known = f", {before} answered before" if before else ""
    say(f"{len(steps)} step{'s' * (len(steps) != 1)}{known}; {options.concurrency} requests at once")
    began = time.monotonic()
    try:
        return await ask(
            missing,
            endpoints,
            directory.append,
            max_tokens=check.max_tokens,
            max_model_len=check.max_model_len,
            overflow=check.overflow,
            concurrency=options.concurrency,
            answered_before=before,
            on_progress=on_progress,
        )
    finally:
        with contextlib.suppress(OSError):
            directory.add_time(time.monotonic() - began)


async def _connect(options: ReplayOptions, endpoints: Replicas) -> ServedModel:
    budget_sec = _CONNECT_SEC if len(endpoints.chats) == 1 else _CONNECT_SEC_OF_SEVERAL
    try:
        return await endpoints.connect(min(budget_sec, options.retry_budget_sec), same_context=False)
    except EndpointError as error:
        raise UsageError(f"endpoint: {error}") from None


def _prompted(options: ReplayOptions, dataset: Dataset, builder: PromptBuilder) -> list[PromptedStep]:
    """The steps of all shards, as each shard's manifest describes the prompts of all."""
    steps = [
        PromptedStep(record, builder.build(record), _seed(options, record))
        for record in dataset.records[: options.limit]
    ]
    raw = [step for step in steps if step.prompt.status == "raw_fallback"]
    if raw and not options.allow_raw_fallback:
        raise UsageError(
            f"{len(raw)} of {len(steps)} prompts would have no chat template ({raw[0].prompt.error}): let the server "
            "render (--render server), give a --tokenizer-path that has one, or --allow-raw-fallback for a run "
            "without a rank"
        )
    return steps


def _seed(options: ReplayOptions, record: Record) -> int | None:
    seed, scheme = options.sampling["seed"], options.sampling["seed_scheme"]
    return None if seed is None else Seeds(record.task_id, seed, scheme).at(record.step_idx)


def _of_shard(options: ReplayOptions, everything: Sequence[PromptedStep]) -> list[PromptedStep]:
    """The steps whose index modulo the number of shards is the shard's."""
    shard = options.shard
    if steps := list(everything[shard.index :: shard.count]):
        return steps
    raise UsageError(f"--shard {shard}: holds none of the {len(everything)} steps; use fewer shards")


def _manifest(
    options: ReplayOptions,
    dataset: Dataset,
    served: ServedModel,
    endpoints: Replicas,
    report: PromptReport,
    everything: Sequence[PromptedStep],
) -> ReplayManifest:
    return ReplayManifest(
        model=served.id,
        model_short=options.model_short or served.id.rstrip("/").rpartition("/")[2].replace(" ", "-"),
        base_urls=tuple(chat.url for chat in endpoints.chats),
        dataset=str(options.dataset.resolve()),
        dataset_sha256=dataset.sha256,
        records=len(dataset.records),
        problems=dataset.problems,
        shard_index=options.shard.index,
        shard_count=options.shard.count,
        limit=options.limit,
        sampling={**_sent(options.sampling), **options.vllm, "extra_body": dict(options.extra_body)},
        prompt=report.for_manifest(),
        prompt_sha256=_hash([step.prompt.fields for step in everything]),
        served=served.model_dump(mode="json"),
        tbench_version=__version__,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _sent(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """What the requests say of the sampling, without what says nothing."""
    silent = {"seed_scheme"} if sampling["seed"] is None else set()
    said = {name: value for name, value in sampling.items() if name not in silent}
    return {name: value for name, value in said.items() if value not in (None, {}) and value is not False}


def _hash(prompts: Sequence[Mapping[str, Any]]) -> str:
    """sha256 over one line of JSON per prompt, keys sorted, in the dataset's order."""
    digest = hashlib.sha256()
    for fields in prompts:
        digest.update(json.dumps(fields, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    return digest.hexdigest()
