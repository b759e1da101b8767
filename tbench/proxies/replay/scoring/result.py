"""The result of a replay as one JSON document: the fields of the upstream tools, and those they lack."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.text import without_lone_surrogates
from tbench import __version__
from tbench.errors import UsageError
from tbench.files import write_atomically
from tbench.proxies.datasets.records import Dataset, Record
from tbench.proxies.json_files import read_json
from tbench.proxies.replay.responses import ReplayManifest, ReplayResponse, overall_status, token_quantiles
from tbench.proxies.replay.scoring.aggregate import ScoredStep, aggregate, score_of
from tbench.proxies.replay.scoring.parser import Revision
from tbench.proxies.replay.scoring.scored_steps import ScoredRun


@dataclass(frozen=True)
class ReplySource:
    """Where scored replies come from. `manifest` is None for a bare file of replies."""

    dataset: Dataset
    records: Sequence[Record]
    replies: Mapping[str, ReplayResponse]
    manifest: ReplayManifest | None = None
    name: str = ""
    """The result's name where there is no manifest."""
    problems: tuple[str, ...] = ()
    """Lines of the replies that were left out."""
    gen_time_sec: float | None = None
    """Wall seconds of generation; None where it is not known."""
    prompt_report: Mapping[str, Any] = field(default_factory=dict)
    """What the run itself has stored about its prompts."""
    merged_shards: tuple[str, ...] = field(default=())


def result_of(scored: ScoredRun, source: ReplySource) -> dict[str, Any]:
    """The result document. `aggregate` and `per_step` are upstream's; steps without a reply score 0 in them."""
    figures = aggregate(scored.steps)
    return {
        **_about_the_run(source),
        "complete": not scored.unanswered,
        "generated_steps": len(scored.steps) - len(scored.unanswered),
        "total_steps": len(scored.steps),
        "total_input_steps": len(source.dataset.records),
        **_shards(source),
        "metric_revision": scored.revision,
        "dataset_sha256": source.dataset.sha256,
        "prompt_sha256": source.manifest.prompt_sha256 if source.manifest else "",
        "versions": {
            "tbench": __version__,
            "python": platform.python_version(),
            "run": source.manifest.tbench_version if source.manifest else "",
        },
        "score": score_of(figures),
        "coverage": scored.coverage,
        "oddities": dict(sorted(scored.oddities.items())),
        "empty_references": list(scored.empty_references),
        "problems": [*source.dataset.problems, *source.problems],
        "sampling": dict(source.manifest.sampling) if source.manifest else {},
        "prompt_template": _prompt_template(source),
        "aggregate": figures,
        "tolerant": aggregate(scored.tolerant),
        "per_step": [_entry(strict, kind) for strict, kind in zip(scored.steps, scored.tolerant, strict=True)],
        "errors": [{"step": key, "reason": reason} for key, reason in scored.unanswered.items()],
    }


def read_result(path: Path) -> dict[str, Any]:
    """Read a result document, upstream's or ours. Raises UsageError."""
    document = read_json(path, "give a result file")
    if not isinstance(document, dict) or not isinstance(document.get("per_step"), list):
        raise UsageError(f"{path}: per_step: is missing; give the result file of a replay")
    if not isinstance(document.get("aggregate"), dict):
        raise UsageError(f"{path}: aggregate: is missing; give the result file of a replay")
    return document


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result in upstream's format: indented by two, no escapes, no final newline. Raises OSError."""
    text = json.dumps(result, ensure_ascii=False, indent=2)
    write_atomically(path, without_lone_surrogates(text).encode())


def replace_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result where there is none, or one of ours.

    Raises UsageError: what another tool has written is not ours to overwrite.
    """
    if path.exists() and not _is_ours(path):
        raise UsageError(f"{path}: was not written by tbench replay; name another file with --output")
    try:
        write_result(path, result)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def _is_ours(path: Path) -> bool:
    try:
        return scored_revision(read_result(path)) is not None
    except UsageError:
        return False


def _about_the_run(source: ReplySource) -> dict[str, Any]:
    manifest, seconds = source.manifest, source.gen_time_sec
    gen_time = None if seconds is None else round(seconds, 1)
    return {
        "model": manifest.model if manifest else source.name,
        "model_path": manifest.model if manifest else "",
        "lora_path": None,
        "lora_name": None,
        "model_short": manifest.model_short if manifest else source.name,
        "gpu": "",
        "eval_path": str(source.dataset.path),
        "timestamp": _naive_utc(manifest.created_at if manifest else ""),
        "scored_at": _naive_utc(""),
        "load_time_sec": None,  # the endpoint had loaded it before
        "gen_time_sec": gen_time,
        "avg_sec_per_step": None if gen_time is None else round(gen_time / max(len(source.records), 1), 3),
        "backend": "tbench",
    }


def _naive_utc(text: str) -> str:
    """The time in `text`, or now if it is none, in UTC without an offset: upstream's form of a timestamp."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.now(UTC)
    return (moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment).isoformat()


def _shards(source: ReplySource) -> dict[str, Any]:
    manifest = source.manifest
    if source.merged_shards:
        return {"merged_shards": list(source.merged_shards)}
    if manifest is None or manifest.shard_count == 1:
        return {"limit": manifest.limit} if manifest and manifest.limit is not None else {}
    return {"limit": manifest.limit, "shard_index": manifest.shard_index, "shard_count": manifest.shard_count}


def _entry(strict: ScoredStep, tolerant: ScoredStep) -> dict[str, Any]:
    kind = {"valid_json": tolerant.valid_json, "command_f1": tolerant.command_f1}
    return {**strict.model_dump(mode="json"), "tolerant": kind}


def _prompt_template(source: ReplySource) -> dict[str, Any]:
    """How prompts were rendered, and whether the result may be ranked: not with a raw prompt among them."""
    replies = [source.replies[record.key] for record in source.records if record.key in source.replies]
    counts: Counter[str] = Counter(reply.template_status for reply in replies)
    stored = (source.manifest.prompt if source.manifest else {}, source.prompt_report)
    return {
        "template_status": overall_status(counts),
        "template_status_counts": dict(sorted(counts.items())),
        "stripped_thinking_blocks": sum(reply.stripped_thinking_blocks for reply in replies),
        "row_count": len(source.records),
        "messages_rows": sum(bool(record.messages) for record in source.records),
        **token_quantiles(reply.prompt_tokens for reply in replies if reply.prompt_tokens is not None),
        # The run knows of all its prompts, of those without a reply too.
        **{key: value for report in stored for key, value in report.items() if value is not None},
        "rank_eligible": not counts["raw_fallback"] and all(report.get("rank_eligible", True) for report in stored),
    }


def scored_revision(result: Mapping[str, Any]) -> Revision | None:
    """The revision that a result was scored with; None for upstream's, which do not say it."""
    revision = result.get("metric_revision")
    return revision if revision in ("v0", "v1", "v2") else None
