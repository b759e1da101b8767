"""The directory of a replay run, written and read: its manifest, and the raw replies, which can be scored again."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from harness.text import without_lone_surrogates
from harness.trajectory import Frozen
from tbench.errors import UsageError
from tbench.files import write_json
from tbench.proxies.datasets.records import Record
from tbench.storage.comparable import differences
from tbench.storage.record_directory import Layout, RecordDirectory, first_problem, read_lines
from tbench.text import one_line

# The data of a replay run: above all the raw replies, which any revision of the metric can score again.
#
# A run of replay is a directory: `replay.json` (ReplayManifest), `responses.jsonl` (one ReplayResponse per line,
# appended as they come; of several for one step the last without an error counts), `prompt_template.json`
# (PromptReport), and `result.json` in the form of the upstream tools.

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


# Reads what a replay run has left behind: its manifest, its replies, and which steps it was about.

MANIFEST_NAME, RESPONSES_NAME, RESULT_NAME = "replay.json", "responses.jsonl", "result.json"
TIMING_NAME, PROMPTS_NAME = "timing.json", "prompt_template.json"
"""Written beside them while a run goes on: how long it has generated, how its prompts were made."""


@dataclass(frozen=True)
class Responses:
    """The reply that counts for each step, and what was wrong with other lines."""

    by_step: Mapping[str, ReplayResponse]
    problems: tuple[str, ...] = field(default=())
    """`FILE:LINE: what is wrong`."""


def read_manifest(directory: Path) -> ReplayManifest:
    """Raises UsageError."""
    path = directory / MANIFEST_NAME
    try:
        return ReplayManifest.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        words = f"is no replay run ({MANIFEST_NAME} is missing); give the directory of one, or name a new directory"
        raise UsageError(f"{directory}: {words}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give the directory of a replay run") from None
    except ValidationError as error:
        raise UsageError(f"{path}: {first_problem(error)}; it is no manifest of a replay run of this version") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({one_line(str(error))})") from None


def read_responses(path: Path) -> Responses:
    """Read the reply that counts for each step: the last without an error, else the last. Raises UsageError.

    Lines that are no reply (a torn last one, say) are reported, not fatal.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give a file of replies (responses.jsonl)") from None
    problems: list[str] = []
    by_step: dict[str, ReplayResponse] = {}
    for _, response in read_lines(path, raw, ReplayResponse, problems, clean):
        if response.error is None or by_step.get(response.key, response).error is not None:
            by_step[response.key] = response
    if problems and not by_step:
        raise UsageError(f"{path}: holds no reply of a replay run; first: {problems[0]}")
    return Responses(by_step, tuple(problems))


def clean(value: Any) -> Any:
    """The strings of an object without halves of surrogate pairs, which no file can hold."""
    if not isinstance(value, dict):
        return value
    return {key: without_lone_surrogates(item) if isinstance(item, str) else item for key, item in value.items()}


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none: these files only add to what is known."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def generation_seconds(directory: Path) -> float | None:
    """Seconds of generation as the run has timed itself, else as an earlier result says; None where neither does."""
    for name in (TIMING_NAME, RESULT_NAME):
        seconds = json_object(directory / name).get("gen_time_sec")
        if isinstance(seconds, int | float):
            return float(seconds)
    return None


def planned(records: Sequence[Record], manifest: ReplayManifest) -> tuple[Record, ...]:
    """The records a run is about: the first `limit`, of those every `shard_count`-th from `shard_index` on."""
    return tuple(records[: manifest.limit][manifest.shard_index :: manifest.shard_count])


_MAY_DIFFER = {
    *("created_at", "tbench_version", "schema_version", "base_urls", "dataset", "problems", "served.context_tokens"),
    *("prompt.prompt_options.tokenizer_path", "prompt.max_tokens"),
}
"""Keys of the manifest that may differ between two starts of one run: they change neither what is asked nor whom."""
REPLAY = Layout("run", MANIFEST_NAME, (RESPONSES_NAME,))


class ReplayDirectory:
    """Open for adding replies to it, by one process at a time."""

    def __init__(self, records: RecordDirectory) -> None:
        self.path = records.path
        self.answered: Mapping[str, ReplayResponse] = read_answered(records.path / RESPONSES_NAME)
        """What earlier starts brought, without errors, by `ReplayResponse.key`."""
        self._records = records

    @classmethod
    def open(cls, path: Path, manifest: ReplayManifest) -> Self:
        """A new run, or the one in `path` again. Raises UsageError, also for one of other settings."""
        if REPLAY.is_new(path):
            return cls(RecordDirectory.create(path, REPLAY, manifest.model_dump(mode="json")))
        _check_same(path, manifest)
        return cls(RecordDirectory.go_on(path, REPLAY))

    def append(self, response: ReplayResponse) -> None:
        """Raises OSError; then nothing was appended."""
        self._records.append(RESPONSES_NAME, response.model_dump_json())

    def write_report(self, report: PromptReport) -> None:
        """prompt_template.json: how the prompts were made, and how long they are. Raises OSError."""
        write_json(self.path / PROMPTS_NAME, report.model_dump(mode="json"))

    def add_time(self, seconds: float) -> None:
        """timing.json: how long all starts of the run asked for replies. Raises OSError."""
        path = self.path / TIMING_NAME
        before = json_object(path)
        spent, starts = before.get("gen_time_sec", 0.0), before.get("starts", 0)
        write_json(path, {"gen_time_sec": round(spent + seconds, 3), "starts": starts + 1})

    def close(self) -> None:
        self._records.close()


def read_answered(path: Path) -> dict[str, ReplayResponse]:
    """The steps of a responses.jsonl that have an answer; lines that are none are left to whoever scores them."""
    lines = read_lines(path, path.read_bytes(), ReplayResponse, [])
    return {response.key: response for _, response in lines if response.error is None}


def _check_same(path: Path, manifest: ReplayManifest) -> None:
    before, now = (each.model_dump(mode="json") for each in (read_manifest(path), manifest))
    if words := differences(before, now, apart_from=_MAY_DIFFER):
        raise UsageError(f"{path}: holds a run of other settings: {words}; use the same, or name a new directory")
