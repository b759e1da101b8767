"""The configuration of a replay run: dataset, model, requests and prompts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.trajectory import Frozen
from tbench.config.setting import Option
from tbench.config.settings import EndpointConfig, RequestsConfig
from tbench.config.values import validate_shard
from tbench.proxies.replay.generation.prompts import Switch


def _as_urls(value: Any) -> Any:
    """Split URLs at white space, so that a variable may contain several."""
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
        return tuple(url for text in texts for url in text.split())
    return value


class DatasetConfig(Frozen):
    """Steps to replay"""

    path: Annotated[str, Option(argument="DATASET", is_path=True)] = ""
    """A JSONL file of recorded steps, with `messages`, or in the legacy form with `prompt`."""
    limit: Annotated[int | None, Option(("--limit", "-l"), daily=True)] = Field(default=None, ge=1)
    """Use only the first N steps."""
    shard: Annotated[str | None, Option(metavar="I/N"), AfterValidator(validate_shard)] = None
    """Use only steps whose index modulo N is I, such as 0/4."""


class ReplayModelConfig(EndpointConfig):
    """Model"""

    base_url: Annotated[tuple[str, ...], BeforeValidator(_as_urls), Option(daily=True)] = ()
    """The endpoint (repeatable: requests are distributed); the default is OPENAI_BASE_URL."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling."""
    max_tokens: int = Field(default=1024, ge=1)
    """Maximum number of tokens per reply, including thinking."""
    repetition_penalty: float = 1.0
    """vLLM's repetition penalty; always sent."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """vLLM's min_p; sent only above 0."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed to derive each request's seed from (see --seed-scheme); without it, no seed is sent."""
    stop: Annotated[tuple[str, ...], Option(("--stop-string",))] = ()
    """A string that ends a reply (repeatable)."""
    include_stop_str_in_output: bool = False
    """Keep the stop string in replies."""
    skip_special_tokens: bool = True
    """Remove special tokens from replies."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Maximum tokens of prompt and reply together, if the server allows more."""


class PromptConfig(Frozen):
    """Prompts"""

    render: Literal["server", "local"] | None = None
    """Who renders prompts: the server, or tbench (local, for /completions); local is the default only with
    --tokenizer-path."""
    tokenizer_path: Annotated[str | None, Option(is_path=True)] = None
    """Tokenizer whose template renders prompts (needs the extra tbench[tokenizer])."""
    thinking_mode: str = "auto"
    """enable_thinking of the template: on, off or auto."""
    strip_thinking_history: Switch = "auto"
    """Remove thinking from earlier replies; auto: only for Gemma 4."""
    gemma4_empty_thought_channel: Switch = "auto"
    """End prompts with an empty thought channel; auto: only for Gemma 4 26B and 31B."""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """Arguments of the chat template as JSON, such as {"enable_thinking": false}."""
    allow_raw_fallback: bool = False
    """Allow prompts without any template; the run is then not ranked."""
    allow_overflow: bool = False
    """Allow steps that do not fit the context; they remain unanswered."""


class ReplayOutputConfig(Frozen):
    """Output"""

    directory: Annotated[str | None, Option(("--output", "-o"), metavar="DIR", daily=True, is_path=True)] = None
    """The replay's directory, which must be new or empty, except with --resume."""
    model_short: str | None = None
    """Name of the result; by default the last part of the model's id."""
    metric_revision: Literal["v0", "v1", "v2"] | None = None
    """Revision of the metric for the result; v2 by default."""


class ReplayConfig(Frozen):
    """The configuration of a replay run."""

    dataset: DatasetConfig = DatasetConfig()
    model: ReplayModelConfig = ReplayModelConfig()
    prompt: PromptConfig = PromptConfig()
    schedule: RequestsConfig = RequestsConfig()
    output: ReplayOutputConfig = ReplayOutputConfig()
