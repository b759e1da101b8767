"""From the options of `tbench replay run` to a directory of replies: connects, checks, asks, tells of it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.chat import ChatModel, OutagePolicy, RetryPolicy, without_password
from harness.errors import EndpointError
from harness.model import Sampling, ServedModel
from tbench import __version__
from tbench.cli.interruption import EXIT_INTERRUPTED, interruptible
from tbench.cli.proxies.replay_live import Seldom, Telling, say, say_some
from tbench.errors import UsageError
from tbench.proxies.datasets.records import Dataset, read_dataset
from tbench.proxies.replay.asking.client import PromptedStep, ReplayProgress, ask
from tbench.proxies.replay.asking.context import ContextCheck, check_context
from tbench.proxies.replay.asking.endpoints import MOVE_ON_SEC, Endpoints
from tbench.proxies.replay.asking.prompts import PromptBuilder, PromptOptions
from tbench.proxies.replay.asking.tokenizer import Tokenizer, load_tokenizer
from tbench.proxies.replay.directory import RunDirectory
from tbench.proxies.replay.responses import PromptReport, ReplayManifest
from tbench.text import one_line

_PREFLIGHT_SEC, _PREFLIGHT_SEC_OF_SEVERAL = 20.0, 5.0
EXIT_UNANSWERED, EXIT_STOPPED = 3, 4


@dataclass(frozen=True)
class ReplayOptions:
    """What the user asked for."""

    dataset: Path
    base_urls: tuple[str, ...]
    output: Path
    sampling: Mapping[str, Any]
    """Fields of Sampling but for `extra_body`."""
    vllm: Mapping[str, Any]
    """Sampling fields of vLLM's own, with options of their own."""
    extra_body: Mapping[str, Any]
    prompt: Mapping[str, Any]
    """Fields of PromptOptions."""
    model: str | None = None
    model_short: str | None = None
    concurrency: int = 16
    allow_raw_fallback: bool = False
    max_model_len: int | None = None
    allow_overflow: bool = False
    limit: int | None = None
    shard: tuple[int, int] = (0, 1)
    request_timeout_sec: float = 600.0
    retry_budget_sec: float = 900.0
    max_outage_sec: float = 3600.0


def parse_shard(text: str | None) -> tuple[int, int]:
    """`I/N`, counted from 0. Raises UsageError."""
    if text is None:
        return 0, 1
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not found or int(found[1]) >= int(found[2]):
        raise UsageError(f"--shard {text}: must be I/N with I from 0 to N-1, e.g. 0/4 to 3/4")
    return int(found[1]), int(found[2])


def execute(options: ReplayOptions) -> int:
    """The exit code: 0 every step is answered (or left out by --allow-overflow), 3 some are not, 4 stopped, 130.

    Raises UsageError before anything is asked, for whatever the user can mend.
    """
    if not options.base_urls:
        raise UsageError("no endpoint: give --base-url http://HOST:PORT/v1 or set OPENAI_BASE_URL")
    dataset = read_dataset(options.dataset)
    say_some("left out", dataset.problems)
    prompt_options, sampling = PromptOptions(**options.prompt), _sampling(options)
    path = prompt_options.tokenizer_path
    if path is not None and prompt_options.render == "server":
        raise UsageError("--tokenizer-path: the server renders; leave it out, or use --render local")
    tokenizer = load_tokenizer(path) if path is not None else None
    return asyncio.run(_execute(options, dataset, prompt_options, sampling, tokenizer))


async def _execute(
    options: ReplayOptions,
    dataset: Dataset,
    prompt_options: PromptOptions,
    sampling: Sampling,
    tokenizer: Tokenizer | None,
) -> int:
    endpoints = _endpoints(options, sampling)
    try:
        with interruptible() as is_interrupted:
            try:
                return await _run(options, dataset, prompt_options, endpoints, tokenizer)
            except asyncio.CancelledError:
                if not is_interrupted():
                    raise
                say(f"interrupted; what was answered is kept, go on with the same command ({options.output})")
                return EXIT_INTERRUPTED
    finally:
        await endpoints.close()


async def _run(
    options: ReplayOptions,
    dataset: Dataset,
    prompt_options: PromptOptions,
    endpoints: Endpoints,
    tokenizer: Tokenizer | None,
) -> int:
    try:
        patience_sec = _PREFLIGHT_SEC if len(endpoints.chats) == 1 else _PREFLIGHT_SEC_OF_SEVERAL
        served = await endpoints.connect(min(patience_sec, options.retry_budget_sec))
    except EndpointError as error:
        raise UsageError(f"endpoint: {error}") from None
    builder = PromptBuilder(prompt_options, served.id, served.root, tokenizer)
    everything = _steps(options, dataset, builder)
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
    _tell_check(check, options)
    report = _report(builder, everything, check)
    manifest = _manifest(options, dataset, served, endpoints, report, everything)
    directory = RunDirectory.open(options.output, manifest)
    try:
        directory.write_report(report)
        return await _ask(options, directory, steps, endpoints, check)
    except OSError as error:
        raise UsageError(
            f"{options.output}: cannot be written: {error.strerror or error}; what was answered before is kept: "
            "make room, then go on with the same command"
        ) from None
    finally:
        directory.close()


async def _ask(
    options: ReplayOptions,
    directory: RunDirectory,
    steps: Sequence[PromptedStep],
    endpoints: Endpoints,
    check: ContextCheck,
) -> int:
    left = [step for step in steps if step.record.key not in directory.answered]
    known = f", {len(steps) - len(left)} answered before" if len(left) < len(steps) else ""
    say(f"{len(steps)} step{'s' * (len(steps) != 1)}{known}; {options.concurrency} requests at once")
    began = time.monotonic()
    try:
        progress = await ask(
            left,
            endpoints,
            directory.append,
            max_tokens=check.max_tokens,
            max_model_len=check.max_model_len,
            overflow=check.overflow,
            concurrency=options.concurrency,
            tell=Telling(),
        )
    finally:
        with contextlib.suppress(OSError):
            directory.add_time(time.monotonic() - began)
    return _tell_end(options, progress, len(steps) - len(left))


def _tell_end(options: ReplayOptions, progress: ReplayProgress, before: int) -> int:
    unanswered = progress.errors - progress.overflow
    words = [f"{before + progress.answered} answered"]
    words += [f"{unanswered} failed"] if unanswered else []
    words += [f"{progress.overflow} do not fit the context"] if progress.overflow else []
    words += [f"{left} not asked"] if (left := progress.planned - progress.done) else []
    rate = f"; {progress.answered / progress.seconds:.1f} per second" if progress.answered else ""
    say(f"{', '.join(words)}{rate}")
    if progress.stopped is not None:
        say(f"stopped: {progress.stopped}; go on with the same command")
        return EXIT_STOPPED
    if unanswered or (progress.overflow and not options.allow_overflow):
        say("the same command asks for the missing ones again")
        return EXIT_UNANSWERED
    return 0


def _sampling(options: ReplayOptions) -> Sampling:
    if twice := sorted(options.vllm.keys() & options.extra_body.keys() - {"repetition_penalty"}):
        raise UsageError(f"--extra-body: {', '.join(twice)}: has an option of its own that is given as well")
    try:
        return Sampling(**options.sampling, extra_body={**options.vllm, **options.extra_body})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"])).replace("_", "-")
        words = one_line(problem["msg"].removeprefix("Value error, "))
        raise UsageError(f"--{key}: {words} (got {problem['input']!r})") from None


def _endpoints(options: ReplayOptions, sampling: Sampling) -> Endpoints:
    urls = tuple(dict.fromkeys(options.base_urls))
    if "chat_template_kwargs" in options.extra_body and options.prompt.get("chat_template_kwargs"):
        raise UsageError("--extra-body: chat_template_kwargs are set twice; set them in one place")
    budget_sec = min(options.retry_budget_sec, MOVE_ON_SEC) if len(urls) > 1 else options.retry_budget_sec
    try:
        chats = [_chat(options, sampling, url, budget_sec, is_one_of_several=len(urls) > 1) for url in urls]
    except EndpointError as error:
        raise UsageError(f"endpoint: {error}") from None
    return Endpoints(chats, lambda words: say(f"endpoint {words}"), retry_budget_sec=options.retry_budget_sec)


def _chat(
    options: ReplayOptions, sampling: Sampling, url: str, budget_sec: float, *, is_one_of_several: bool
) -> ChatModel:
    name = f"endpoint {without_password(url)}" if is_one_of_several else "endpoint"
    return ChatModel(
        url,
        options.model,
        sampling,
        api_key=os.environ.get("OPENAI_API_KEY"),
        request_timeout_sec=options.request_timeout_sec,
        retry=RetryPolicy(total_sec=budget_sec),
        on_wait=Seldom(name),
        max_outage=OutagePolicy(max_sec=options.max_outage_sec),
        on_outage=lambda words: say(f"{name} {words}"),
    )


def _steps(options: ReplayOptions, dataset: Dataset, builder: PromptBuilder) -> list[PromptedStep]:
    """Of all shards: what is said of the prompts is the same in each."""
    steps = [PromptedStep(record, builder.build(record)) for record in dataset.records[: options.limit]]
    raw = [step for step in steps if step.prompt.status == "raw_fallback"]
    if raw and not options.allow_raw_fallback:
        raise UsageError(
            f"{len(raw)} of {len(steps)} prompts would have no chat template ({raw[0].prompt.error}): let the server "
            "render (--render server), give a --tokenizer-path that has one, or --allow-raw-fallback for a run "
            "without a rank"
        )
    return steps


def _of_shard(options: ReplayOptions, everything: Sequence[PromptedStep]) -> list[PromptedStep]:
    """Those whose index (mod the number of shards) is the shard's."""
    index, count = options.shard
    if steps := list(everything[index::count]):
        return steps
    raise UsageError(f"--shard {index}/{count}: holds none of the {len(everything)} steps; use fewer shards")


def _report(builder: PromptBuilder, everything: Sequence[PromptedStep], check: ContextCheck) -> PromptReport:
    return builder.report(
        [step.prompt for step in everything],
        counts=check.counts.values(),
        counted_by=check.counted_by,
        max_model_len=check.max_model_len,
        max_tokens=check.max_tokens,
    )


def _tell_check(check: ContextCheck, options: ReplayOptions) -> None:
    if check.problem:
        say(f"not every prompt could be counted: {check.problem}")
    say_some("does not fit", [f"{key}: {words}" for key, words in check.overflow.items()])
    if not options.allow_overflow:
        check.require_room()


def _manifest(
    options: ReplayOptions,
    dataset: Dataset,
    served: ServedModel,
    endpoints: Endpoints,
    report: PromptReport,
    everything: Sequence[PromptedStep],
) -> ReplayManifest:
    index, count = options.shard
    return ReplayManifest(
        model=served.id,
        model_short=options.model_short or served.id.rstrip("/").rpartition("/")[2].replace(" ", "-"),
        base_urls=tuple(chat.url for chat in endpoints.chats),
        dataset=str(options.dataset.resolve()),
        dataset_sha256=dataset.sha256,
        records=len(dataset.records),
        problems=dataset.problems,
        shard_index=index,
        shard_count=count,
        limit=options.limit,
        sampling={**_sent(options.sampling), **options.vllm, "extra_body": dict(options.extra_body)},
        prompt=report.for_manifest(),
        prompt_sha256=_hash([step.prompt.fields for step in everything]),
        served=served.model_dump(mode="json"),
        tbench_version=__version__,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _sent(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _hash(fields: Sequence[Mapping[str, Any]]) -> str:
    """Over one line of JSON per prompt, keys sorted, in the dataset's order; of all shards."""
    found = hashlib.sha256()
    for each in fields:
        found.update(json.dumps(each, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    return found.hexdigest()
