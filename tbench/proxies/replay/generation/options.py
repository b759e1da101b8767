"""Options of a replay run, and the sampling, tokenizer and endpoints made from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.endpoint.address import without_password
from harness.endpoint.chat import ChatModel
from harness.endpoint.outage import OutagePolicy
from harness.endpoint.replicas import MOVE_ON_SEC, Replicas, WaitNotice
from harness.endpoint.retry import RetryPolicy
from harness.errors import EndpointError
from harness.model import Sampling
from tbench.config.values import Shard
from tbench.errors import UsageError
from tbench.proxies.replay.generation.prompts import PromptOptions, Tokenizer, load_tokenizer
from tbench.proxies.replay.generation.settings import ReplayConfig, ReplayModelConfig
from tbench.text import one_line


@dataclass(frozen=True)
class ReplayOptions:
    """The configuration of a replay run, with the values that are derived from it."""

    config: ReplayConfig
    dataset: Path
    output: Path
    sampling: Mapping[str, Any]
    """Fields of Sampling, except `extra_body`."""
    vllm: Mapping[str, Any]
    """Sampling fields specific to vLLM that have their own options."""
    prompt: PromptOptions
    shard: Shard

    @classmethod
    def from_config(cls, config: ReplayConfig) -> ReplayOptions:
        """Return the options of a configuration. Raises UsageError."""
        model, prompt, output = config.model, config.prompt, config.output
        if not config.dataset.path:
            raise UsageError("DATASET: is missing; give a file of recorded steps")
        if output.directory is None:
            raise UsageError("--output: is missing; give a directory for the replies")
        return cls(
            config,
            dataset=Path(config.dataset.path),
            output=Path(output.directory),
            sampling=model.model_dump(include=Sampling.model_fields.keys() - {"extra_body"}),
            vllm=_vllm(model),
            prompt=PromptOptions(
                render=prompt.render or ("local" if prompt.tokenizer_path is not None else "server"),
                **prompt.model_dump(include=PromptOptions.model_fields.keys() - {"render"}),
            ),
            shard=Shard.parse(config.dataset.shard) if config.dataset.shard else Shard(0, 1),
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
    extra_body = options.config.model.extra_body
    if twice := sorted(options.vllm.keys() & extra_body.keys() - {"repetition_penalty"}):
        raise UsageError(f"--extra-body: {', '.join(twice)}: is also given by its own option; give it once")
    try:
        return Sampling(**options.sampling, extra_body={**options.vllm, **extra_body})
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
    model = options.config.model
    urls = tuple(dict.fromkeys(model.base_url))
    if "chat_template_kwargs" in model.extra_body and options.prompt.chat_template_kwargs:
        raise UsageError("--extra-body: chat_template_kwargs is also set by --chat-template-kwargs; set it once")
    budget_sec = min(model.retry_budget_sec, MOVE_ON_SEC) if len(urls) > 1 else model.retry_budget_sec
    names = {url: f"endpoint {without_password(url)}" if len(urls) > 1 else "endpoint" for url in urls}
    try:
        chats = [_chat(model, sampling, url, budget_sec, name, say) for url, name in names.items()]
    except EndpointError as error:
        raise UsageError(f"endpoint: {error}") from None
    return Replicas(chats, lambda words: say(f"endpoint {words}"), retry_budget_sec=model.retry_budget_sec)


def _chat(
    model: ReplayModelConfig, sampling: Sampling, url: str, budget_sec: float, name: str, say: Callable[[str], None]
) -> ChatModel:
    chat = ChatModel(
        url,
        model.name,
        sampling,
        api_key=os.environ.get("OPENAI_API_KEY"),
        request_timeout_sec=model.request_timeout_sec or None,
        retry=RetryPolicy(total_sec=budget_sec),
        on_wait=WaitNotice(name, say),
        max_outage=OutagePolicy(max_sec=model.max_outage_sec),
        on_outage=lambda words: say(f"{name} {words}"),
    )
    chat.model_identity.is_strict = model.other_weights == "pause"
    return chat
