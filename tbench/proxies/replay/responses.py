"""The data of a replay run: above all the raw replies, which any revision of the metric can score again.

A run of replay is a directory: `replay.json` (ReplayManifest), `responses.jsonl` (one ReplayResponse per line, appended
as they come; of several for one step the last without an error counts), `prompt_template.json` (PromptReport), and
`result.json` in the form of the upstream tools.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal

from pydantic import Field

from harness.trajectory import Frozen

REPLAY_SCHEMA_VERSION = 1
TemplateStatus = Literal[
    "chat_template", "chatml_fallback", "gemma4_patched", "gemma4_fallback", "deepseek_v4_fallback", "raw_fallback",
    "server",
]  # fmt: skip
"""How a prompt was rendered; `server` stands for chat messages in the server's own template."""


class ReplayResponse(Frozen):
    """One reply, or why there is none."""

    schema_version: int = REPLAY_SCHEMA_VERSION
    task_id: str
    sample_idx: int = 0
    step_idx: int
    content: str | None = None
    """The raw reply; None where there is none (`error` says why)."""
    reasoning: str | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    latency_sec: float | None = None
    template_status: TemplateStatus = "server"
    stripped_thinking_blocks: int = 0
    error: str | None = None
    """Why there is no whole reply: `overflow: …`, `refused: …` or `unavailable: …`."""

    @property
    def key(self) -> str:
        """The `Record.key` of the step that was asked for."""
        return f"{self.task_id}/{self.step_idx}"


class ReplayManifest(Frozen):
    """Everything about a replay run that is not in its replies: stored before the first request."""

    schema_version: int = REPLAY_SCHEMA_VERSION
    model: str
    model_short: str
    """The result's name; by default the last part of the model's path, with dashes for blanks."""
    base_urls: tuple[str, ...]
    """Without user names and passwords."""
    dataset: str
    dataset_sha256: str
    records: int
    problems: tuple[str, ...] = ()
    """Lines of the dataset that were left out."""
    shard_index: int = 0
    shard_count: int = 1
    limit: int | None = None
    sampling: dict[str, Any] = Field(default={})
    """What the requests say: temperature, top_p, max_tokens, repetition_penalty, min_p, seed and seed_scheme, stop,
    extra_body, rename_fields."""
    prompt: dict[str, Any] = Field(default={})
    """How prompts were rendered: mode, thinking mode, history stripping, tokenizer."""
    prompt_sha256: str = ""
    """The digest of all prompts (or messages) as sent, in the dataset's order."""
    served: dict[str, Any] | None = None
    tbench_version: str = ""
    created_at: str = ""


class PromptReport(Frozen):
    """How the prompts of a run were made: `prompt_template` of the upstream result files."""

    template_status: str
    """See `overall_status`."""
    template_status_counts: dict[str, int]
    rank_eligible: bool
    """Whether the result may be ranked: no prompt is a raw_fallback."""
    raw_fallback_errors: tuple[str, ...] = ()
    """Why the tokenizer's template was not used, for fallbacks of any kind: the name is upstream's."""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    prompt_options: dict[str, Any] = Field(default={})
    stripped_thinking_blocks: int = 0
    row_count: int = 0
    messages_rows: int = 0
    prompt_tokens_min: int | None = None
    prompt_tokens_max: int | None = None
    prompt_tokens_p50: int | None = None
    prompt_tokens_p95: int | None = None
    prompt_tokens_p99: int | None = None
    prompt_tokens_rows: int = 0
    """Number of prompts whose tokens were counted."""
    prompt_tokens_by: str | None = None
    """Who counted: `server` or `tokenizer`."""
    max_model_len: int | None = None
    max_tokens: int | None = None

    def for_manifest(self) -> dict[str, Any]:
        """The fields that are the same for all shards and servers of a run."""
        return {
            key: value
            for key, value in self.model_dump(mode="json").items()
            if key != "max_model_len" and not key.startswith("prompt_tokens_")
        }


def overall_status(statuses: Collection[str]) -> str:
    """The status of a run whose prompts have these statuses.

    chat_template or server where all are; mixed_or_raw with any raw_fallback; else model_specific_or_mixed.
    """
    if "raw_fallback" in statuses:
        return "mixed_or_raw"
    only = set(statuses)
    return only.pop() if only in ({"chat_template"}, {"server"}) else "model_specific_or_mixed"


def token_quantiles(counts: Iterable[int]) -> dict[str, int]:
    """The prompt_tokens fields of a PromptReport, by upstream's definition of quantiles; empty without counts."""
    known = sorted(counts)
    if not known:
        return {}
    return {
        "prompt_tokens_min": known[0],
        "prompt_tokens_max": known[-1],
        "prompt_tokens_p50": known[len(known) // 2],
        "prompt_tokens_p95": known[int(0.95 * len(known)) - 1],
        "prompt_tokens_p99": known[int(0.99 * len(known)) - 1],
        "prompt_tokens_rows": len(known),
    }
