"""Reads and writes the directory of a replay run: its manifest, and the raw replies, which can be scored again."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from harness.model_text import without_lone_surrogates
from harness.trajectory import Frozen
from tbench.errors import UsageError
from tbench.files import read_object_or_none, write_json
from tbench.proxies.datasets.records import Record
from tbench.storage.comparable import differences
from tbench.storage.record_directory import Layout, RecordDirectory, first_problem, read_lines
from tbench.text import one_line

# A replay run is a directory of `replay.json` (ReplayManifest), `responses.jsonl` (a ReplayResponse per line, in the
# order of arrival), `prompt_template.json` (PromptReport), and `result.json` in the format of the upstream tools. The
# last response without an error counts for its step.

REPLAY_SCHEMA_VERSION = 1
TemplateStatus = Literal[
    "chat_template", "chatml_fallback", "gemma4_patched", "gemma4_fallback", "deepseek_v4_fallback", "raw_fallback",
    "server",
]  # fmt: skip
"""How a prompt was rendered; `server`: chat messages were sent, which the server's template renders."""


class ReplayResponse(Frozen):
    """One reply, or the error instead of it."""

    schema_version: int = REPLAY_SCHEMA_VERSION
    task_id: str
    sample_idx: int = 0
    step_idx: int
    content: str | None = None
    """The raw reply; None if there is none (see `error`)."""
    reasoning: str | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    latency_sec: float | None = None
    template_status: TemplateStatus = "server"
    stripped_thinking_blocks: int = 0
    error: str | None = None
    """Why there is no complete reply: `overflow: …`, `refused: …` or `unavailable: …`."""

    @property
    def key(self) -> str:
        """The `Record.key` of the step."""
        return f"{self.task_id}/{self.step_idx}"


class ReplayManifest(Frozen):
    """Model, dataset and settings of a replay run; stored before the first request."""

    schema_version: int = REPLAY_SCHEMA_VERSION
    model: str
    model_short: str
    """Name of the result; by default the last part of the model's path, with dashes for spaces."""
    base_urls: tuple[str, ...]
    """Without user names and passwords."""
    dataset: str
    dataset_sha256: str
    records: int
    problems: tuple[str, ...] = ()
    """Skipped lines of the dataset."""
    shard_index: int = 0
    shard_count: int = 1
    limit: int | None = None
    sampling: dict[str, Any] = Field(default={})
    """Fields of the requests: temperature, top_p, max_tokens, repetition_penalty, min_p, seed and seed_scheme, stop,
    extra_body, rename_fields."""
    prompt: dict[str, Any] = Field(default={})
    """How prompts were rendered: mode, thinking mode, history stripping, tokenizer."""
    prompt_sha256: str = ""
    """Digest of all prompts (or messages) as sent, in the dataset's order."""
    served: dict[str, Any] | None = None
    tbench_version: str = ""
    created_at: str = ""


class PromptReport(Frozen):
    """How the prompts of a run were rendered: `prompt_template` of the upstream result files."""

    template_status: str
    """See `overall_status`."""
    template_status_counts: dict[str, int]
    rank_eligible: bool
    """Whether the result may be ranked, as no prompt is a raw_fallback."""
    raw_fallback_errors: tuple[str, ...] = ()
    """Why the tokenizer's template was not used, for all kinds of fallback (name as upstream)."""
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
    """Whether the `server` or the `tokenizer` counted the tokens."""
    max_model_len: int | None = None
    max_tokens: int | None = None

    def for_manifest(self) -> dict[str, Any]:
        """Return the fields that are the same for all shards and servers of a run."""
        return {
            key: value
            for key, value in self.model_dump(mode="json").items()
            if key != "max_model_len" and not key.startswith("prompt_tokens_")
        }


def overall_status(statuses: Collection[str]) -> str:
    """Return the status of a run whose prompts have these statuses.

    chat_template or server if all are; mixed_or_raw with any raw_fallback; else model_specific_or_mixed.
    """
    if "raw_fallback" in statuses:
        return "mixed_or_raw"
    only = set(statuses)
    return only.pop() if only in ({"chat_template"}, {"server"}) else "model_specific_or_mixed"


def token_quantiles(counts: Iterable[int]) -> dict[str, int]:
    """Return the prompt_tokens fields of a PromptReport, with upstream's quantiles; empty without counts."""
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


MANIFEST_NAME, RESPONSES_NAME, RESULT_NAME = "replay.json", "responses.jsonl", "result.json"
TIMING_NAME, PROMPTS_NAME = "timing.json", "prompt_template.json"
"""Files with the generation time and the PromptReport of the run so far."""


@dataclass(frozen=True)
class Responses:
    """The reply that counts for each step, and problems of other lines."""

    by_step: Mapping[str, ReplayResponse]
    problems: tuple[str, ...] = field(default=())
    """`FILE:LINE: problem`."""


def read_manifest(directory: Path) -> ReplayManifest:
    """Read the manifest of a replay run. Raises UsageError."""
    path = directory / MANIFEST_NAME
    try:
        return ReplayManifest.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        problem = f"is not a replay run ({MANIFEST_NAME} is missing); give the directory of one, or a new directory"
        raise UsageError(f"{directory}: {problem}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give the directory of a replay run") from None
    except ValidationError as error:
        raise UsageError(f"{path}: {first_problem(error)}; it is not a replay manifest of this version") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({one_line(str(error))})") from None


def read_responses(path: Path) -> Responses:
    """Read the reply that counts for each step: the last without an error, else the last. Raises UsageError.

    Bad lines (such as an incomplete last one) are reported as problems.
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
        raise UsageError(f"{path}: contains no reply of a replay run; first problem: {problems[0]}")
    return Responses(by_step, tuple(problems))


def clean(value: Any) -> Any:
    """Replace lone surrogates in the strings of an object, as they cannot be encoded."""
    if not isinstance(value, dict):
        return value
    return {key: without_lone_surrogates(item) if isinstance(item, str) else item for key, item in value.items()}


def generation_seconds(directory: Path) -> float | None:
    """Return the seconds of generation from the run's timing, else from an earlier result; None if unknown."""
    for name in (TIMING_NAME, RESULT_NAME):
        seconds = (read_object_or_none(directory / name) or {}).get("gen_time_sec")
        if isinstance(seconds, int | float):
            return float(seconds)
    return None


def planned_records(records: Sequence[Record], manifest: ReplayManifest) -> tuple[Record, ...]:
    """Return the records of a run: among the first `limit`, every `shard_count`-th from `shard_index` on."""
    return tuple(records[: manifest.limit][manifest.shard_index :: manifest.shard_count])


_MAY_DIFFER = {
    *("created_at", "tbench_version", "schema_version", "base_urls", "dataset", "problems", "served.context_tokens"),
    *("prompt.prompt_options.tokenizer_path", "prompt.max_tokens"),
}
"""Keys of the manifest that may differ when a run is resumed, as they affect neither requests nor model."""
REPLAY = Layout("run", MANIFEST_NAME, (RESPONSES_NAME,))


class ReplayDirectory:
    """A replay run's directory, open for adding replies by one process at a time."""

    def __init__(self, records: RecordDirectory) -> None:
        self.path = records.path
        responses = records.path / RESPONSES_NAME
        # Bad lines are ignored, as scoring reports them.
        lines = read_lines(responses, responses.read_bytes(), ReplayResponse, [])
        self.answered = {response.key: response for _, response in lines if response.error is None}
        """Earlier replies without errors, by `ReplayResponse.key`."""
        self._records = records

    @classmethod
    def open(cls, path: Path, manifest: ReplayManifest) -> Self:
        """Create a run, or resume the one in `path`. Raises UsageError, also if its settings differ."""
        if REPLAY.is_new(path):
            return cls(RecordDirectory.create(path, REPLAY, manifest.model_dump(mode="json")))
        _check_same(path, manifest)
        return cls(RecordDirectory.go_on(path, REPLAY))

    def append(self, response: ReplayResponse) -> None:
        """Append a reply. Raises OSError; then nothing was appended."""
        self._records.append(RESPONSES_NAME, response.model_dump_json())

    def write_report(self, report: PromptReport) -> None:
        """Write prompt_template.json. Raises OSError."""
        write_json(self.path / PROMPTS_NAME, report.model_dump(mode="json"))

    def add_time(self, seconds: float) -> None:
        """Add the generation time of one start to timing.json. Raises OSError."""
        path = self.path / TIMING_NAME
        before = read_object_or_none(path) or {}
        spent, starts = before.get("gen_time_sec", 0.0), before.get("starts", 0)
        write_json(path, {"gen_time_sec": round(spent + seconds, 3), "starts": starts + 1})

    def close(self) -> None:
        self._records.close()


def _check_same(path: Path, manifest: ReplayManifest) -> None:
    before, now = (each.model_dump(mode="json") for each in (read_manifest(path), manifest))
    if differing := differences(before, now, apart_from=_MAY_DIFFER):
        raise UsageError(f"{path}: contains a run with other settings: {differing}; use these, or a new directory")
