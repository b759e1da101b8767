"""Options of a replay run, and the sampling, tokenizer and endpoints made from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from harness.endpoint.chat import ChatModel, OutagePolicy, RetryPolicy, without_password
from harness.endpoint.replicas import MOVE_ON_SEC, Replicas, WaitNotice
from harness.errors import EndpointError
from harness.model import Sampling
from tbench.config.values import Shard
from tbench.errors import UsageError
from tbench.proxies.replay.generation.prompts import PromptOptions, Tokenizer, load_tokenizer
from tbench.proxies.replay.generation.settings import ReplayConfig, ReplayModelConfig
from tbench.text import one_line

_WHOLE = Shard(0, 1)


@dataclass(frozen=True)
class ReplayOptions:
    """Options of a replay run."""

    dataset: Path
    base_urls: tuple[str, ...]
    output: Path
    sampling: Mapping[str, Any]
    """Fields of Sampling, except `extra_body`."""
    vllm: Mapping[str, Any]
    """Sampling fields specific to vLLM that have their own options."""
    extra_body: Mapping[str, Any]
    prompt: PromptOptions
    model: str | None = None
    model_short: str | None = None
    concurrency: int = 16
    allow_raw_fallback: bool = False
    max_model_len: int | None = None
    allow_overflow: bool = False
    limit: int | None = None
    shard: Shard = _WHOLE
    request_timeout_sec: float | None = None
    retry_budget_sec: float = 900.0
    max_outage_sec: float = 3600.0
    other_weights: Literal["pause", "take"] = "pause"

    @classmethod
    def from_config(cls, config: ReplayConfig) -> ReplayOptions:
        """Return the options of a configuration. Raises UsageError."""
        model, prompt, output = config.model, config.prompt, config.output
        if not config.dataset.path:
            raise UsageError("DATASET: is missing; give a file of recorded steps")
        if output.directory is None:
            raise UsageError("--output: is missing; give a directory for the replies")
        return cls(
            dataset=Path(config.dataset.path),
            base_urls=model.base_url,
            output=Path(output.directory),
            sampling=model.model_dump(include=Sampling.model_fields.keys() - {"extra_body"}),
            vllm=_vllm(model),
            extra_body=model.extra_body,
            prompt=PromptOptions(
                render=prompt.render or ("local" if prompt.tokenizer_path is not None else "server"),
                **prompt.model_dump(include=PromptOptions.model_fields.keys() - {"render"}),
            ),
            model=model.name,
            model_short=output.model_short,
            concurrency=config.schedule.concurrency,
            allow_raw_fallback=prompt.allow_raw_fallback,
            max_model_len=model.max_model_len,
            allow_overflow=prompt.allow_overflow,
            limit=config.dataset.limit,
            shard=Shard.parse(config.dataset.shard) if config.dataset.shard else _WHOLE,
            request_timeout_sec=model.request_timeout_sec or None,
            retry_budget_sec=model.retry_budget_sec,
            max_outage_sec=model.max_outage_sec,
            other_weights=model.other_weights,
        )


def _vllm(model: ReplayModelConfig) -> dict[str, Any]:
    """Return the fields specific to vLLM; except for the penalty, only those that differ from their defaults."""
    return {
        "repetition_penalty": model.repetition_penalty,
        **({"min_p": model.min_p} if model.min_p > 0 else {}),
        **({"stop": list(model.stop)} if model.stop else {}),
        **({"include_stop_str_in_output": True} if model.include_stop_str_in_output else {}),
        **({} if model.skip_special_tokens else {"skip_special_tokens": False}),
    }


def make_sampling(options: ReplayOptions) -> Sampling:
    """Return the sampling of all requests. Raises UsageError."""
    if twice := sorted(options.vllm.keys() & options.extra_body.keys() - {"repetition_penalty"}):
        raise UsageError(f"--extra-body: {', '.join(twice)}: is also given by its own option; give it once")
    try:
        return Sampling(**options.sampling, extra_body={**options.vllm, **options.extra_body})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"])).replace("_", "-")
        message = one_line(problem["msg"].removeprefix("Value error, "))
        raise UsageError(f"--{key}: {message} (got {problem['input']!r})") from None


def make_tokenizer(options: ReplayOptions) -> Tokenizer | None:
    """Load the tokenizer for local rendering, if one is given. Raises UsageError."""
    path = options.prompt.tokenizer_path
    if path is not None and options.prompt.render == "server":
        raise UsageError("--tokenizer-path: has no effect with --render server; leave it out, or use --render local")
    return load_tokenizer(path) if path is not None else None


def make_endpoints(options: ReplayOptions, sampling: Sampling, say: Callable[[str], None]) -> Replicas:
    """Return the endpoints, not yet connected; their notices go to `say`. Raises UsageError."""
    urls = tuple(dict.fromkeys(options.base_urls))
    if "chat_template_kwargs" in options.extra_body and options.prompt.chat_template_kwargs:
        raise UsageError("--extra-body: chat_template_kwargs is also set by --chat-template-kwargs; set it once")
    budget_sec = min(options.retry_budget_sec, MOVE_ON_SEC) if len(urls) > 1 else options.retry_budget_sec
    names = {url: f"endpoint {without_password(url)}" if len(urls) > 1 else "endpoint" for url in urls}
    try:
        chats = [_chat(options, sampling, url, budget_sec, name, say) for url, name in names.items()]
    except EndpointError as error:
        raise UsageError(f"endpoint: {error}") from None
    return Replicas(chats, lambda words: say(f"endpoint {words}"), retry_budget_sec=options.retry_budget_sec)


def _chat(
    options: ReplayOptions, sampling: Sampling, url: str, budget_sec: float, name: str, say: Callable[[str], None]
) -> ChatModel:
    chat = ChatModel(
        url,
        options.model,
        sampling,
        api_key=os.environ.get("OPENAI_API_KEY"),
        request_timeout_sec=options.request_timeout_sec,
        retry=RetryPolicy(total_sec=budget_sec),
        on_wait=WaitNotice(name, say),
        max_outage=OutagePolicy(max_sec=options.max_outage_sec),
        on_outage=lambda words: say(f"{name} {words}"),
    )
    chat.model_identity.is_strict = options.other_weights == "pause"
    return chat
