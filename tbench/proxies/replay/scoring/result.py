"""The result of a replay: its JSON document, recomputation from stored units, and text output."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.model_text import without_lone_surrogates
from tbench import __version__
from tbench.errors import UsageError
from tbench.files import read_json, writable, write_atomically
from tbench.proxies.datasets.records import Dataset, Record, step_bucket
from tbench.proxies.replay.directory import ReplayManifest, ReplayResponse, overall_status, token_quantiles
from tbench.proxies.replay.scoring.metric import ScoredRun, ScoredStep, aggregate, ranking_score, score_units
from tbench.proxies.replay.scoring.parser import REVISIONS, Revision
from tbench.text import names_text, one_line, plain


@dataclass(frozen=True)
class ReplySource:
    """Source of scored replies. `manifest` is None for a bare file of replies."""

    dataset: Dataset
    records: Sequence[Record]
    replies: Mapping[str, ReplayResponse]
    manifest: ReplayManifest | None = None
    name: str = ""
    """Name of the result if there is no manifest."""
    problems: tuple[str, ...] = ()
    """Skipped lines of the replies."""
    gen_time_sec: float | None = None
    """Wall seconds of generation; None if unknown."""
    prompt_report: Mapping[str, Any] = field(default_factory=dict)
    """The run's stored PromptReport."""
    merged_shards: tuple[str, ...] = field(default=())


def make_result(scored: ScoredRun, source: ReplySource) -> dict[str, Any]:
    """Return the result document. `aggregate` and `per_step` are upstream's; steps without a reply score 0 in them."""
    figures = aggregate(scored.steps)
    return {
        **_run_fields(source),
        "complete": not scored.unanswered,
        "generated_steps": len(scored.steps) - len(scored.unanswered),
        "total_steps": len(scored.steps),
        "total_input_steps": len(source.dataset.records),
        **_shard_fields(source),
        "metric_revision": scored.revision,
        "dataset_sha256": source.dataset.sha256,
        "prompt_sha256": source.manifest.prompt_sha256 if source.manifest else "",
        "versions": {
            "tbench": __version__,
            "python": platform.python_version(),
            "run": source.manifest.tbench_version if source.manifest else "",
        },
        "score": ranking_score(figures),
        "coverage": scored.coverage,
        "oddities": dict(sorted(scored.oddities.items())),
        "empty_references": list(scored.empty_references),
        "problems": [*source.dataset.problems, *source.problems],
        "sampling": dict(source.manifest.sampling) if source.manifest else {},
        "prompt_template": _prompt_template(source),
        "aggregate": figures,
        "tolerant": aggregate(scored.tolerant),
        "per_step": [
            {
                **strict.model_dump(mode="json"),
                "tolerant": {"valid_json": kind.valid_json, "command_f1": kind.command_f1},
            }
            for strict, kind in zip(scored.steps, scored.tolerant, strict=True)
        ],
        "errors": [{"step": key, "reason": reason} for key, reason in scored.unanswered.items()],
    }


def read_result(path: Path) -> dict[str, Any]:
    """Read a result document of upstream or tbench. Raises UsageError."""
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
    """Write a result to a new file, or in place of one written by tbench.

    Raises UsageError, also if the file was written by another tool.
    """
    if path.exists():
        try:
            is_from_tbench = scored_revision(read_result(path)) is not None
        except UsageError:
            is_from_tbench = False
        if not is_from_tbench:
            raise UsageError(f"{path}: was not written by tbench replay; give another file with --output")
    with writable(path):
        write_result(path, result)


def _run_fields(source: ReplySource) -> dict[str, Any]:
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
        "load_time_sec": None,  # unknown: the endpoint has loaded the model
        "gen_time_sec": gen_time,
        "avg_sec_per_step": None if gen_time is None else round(gen_time / max(len(source.records), 1), 3),
        "backend": "tbench",
    }


def _naive_utc(text: str) -> str:
    """Return the time in `text`, or now if it is invalid, in UTC without offset, as in upstream's timestamps."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.now(UTC)
    return (moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment).isoformat()


def _shard_fields(source: ReplySource) -> dict[str, Any]:
    manifest = source.manifest
    if source.merged_shards:
        return {"merged_shards": list(source.merged_shards)}
    if manifest is None or manifest.shard_count == 1:
        return {"limit": manifest.limit} if manifest and manifest.limit is not None else {}
    return {"limit": manifest.limit, "shard_index": manifest.shard_index, "shard_count": manifest.shard_count}


def _prompt_template(source: ReplySource) -> dict[str, Any]:
    """Return how prompts were rendered, and whether the result may be ranked, i.e. without raw prompts."""
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
        # The run's report includes prompts without a reply.
        **{key: value for report in stored for key, value in report.items() if value is not None},
        "rank_eligible": not counts["raw_fallback"] and all(report.get("rank_eligible", True) for report in stored),
    }


def scored_revision(result: Mapping[str, Any]) -> Revision | None:
    """Return the metric revision of a result; None for upstream's, which do not store it."""
    revision = result.get("metric_revision")
    return revision if revision in ("v0", "v1", "v2") else None


@dataclass(frozen=True)
class Recomputed:
    """Figures recomputed with one revision from stored units and flags, compared with the stored figures."""

    revision: Revision
    aggregate: Mapping[str, Any]
    """The 16 figures of `aggregate`."""
    differing: Mapping[str, tuple[Any, Any]]
    """(stored, recomputed) values of each field that differs."""
    absent: tuple[str, ...]
    """Fields that the file does not have."""
    differing_steps: tuple[str, ...]
    """Steps whose stored figures differ."""

    @property
    def identical(self) -> bool:
        """Whether all fields of aggregate and steps are stored and equal."""
        return not (self.differing or self.absent or self.differing_steps)


def recompute(path: Path, document: Mapping[str, Any], revision: Revision | None = None) -> tuple[Recomputed, ...]:
    """Recompute with every possible revision: the one in the file, or `revision`, or all. Raises UsageError.

    Stored units are parsed already, so revisions differ only for steps where neither reference nor reply has a unit.
    """
    stored = scored_revision(document)
    if stored is not None and revision not in (None, stored):
        raise UsageError(
            f"{path}: its units were parsed with {stored}, and it does not contain the replies; "
            f"score the run's responses.jsonl to get {revision}"
        )
    steps = [_stored_step(path, number, entry) for number, entry in enumerate(document["per_step"])]
    revisions = [revision or stored] if revision or stored else list(REVISIONS)
    return tuple(_make_recomputed(each, steps, document["aggregate"]) for each in revisions if each)


def _make_recomputed(revision: Revision, stored: Sequence[ScoredStep], figures: Mapping[str, Any]) -> Recomputed:
    scores = [score_units(step.pred_command_units, step.ref_command_units, revision).rounded for step in stored]
    steps = [step.model_copy(update=score._asdict()) for step, score in zip(stored, scores, strict=True)]
    recomputed = aggregate(steps)
    return Recomputed(
        revision,
        recomputed,
        {key: (figures[key], value) for key, value in recomputed.items() if key in figures and figures[key] != value},
        tuple(key for key in recomputed if key not in figures),
        tuple(
            step.key
            for step, score in zip(stored, scores, strict=True)
            if any(getattr(step, name) != value for name, value in score._asdict().items())
        ),
    )


def _stored_step(path: Path, number: int, entry: object) -> ScoredStep:
    try:
        if isinstance(entry, dict) and "bucket" not in entry and isinstance(entry.get("step_idx"), int):
            entry = {**entry, "bucket": step_bucket(entry["step_idx"])}
        return ScoredStep.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, ("per_step", number, *first["loc"])))
        raise UsageError(f"{path}: {where}: {one_line(first['msg'])}; it cannot be recomputed") from None


_ODDITIES = {
    "mojibake": "replies with text that the metric mangles (scored like upstream)",
    "lone_surrogate": "replies with a lone surrogate (replaced; upstream cannot write such a result)",
    "not_an_object": "replies that are JSON but not an object (counted as invalid; upstream crashes)",
}


def result_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a result, ASCII except for names: score, coverage, both columns of figures, oddities."""
    strict, tolerant, coverage = result["aggregate"], result["tolerant"], result["coverage"]
    yield plain(f"{result['model_short']}: metric {result['metric_revision']}, dataset {result['dataset_sha256'][:12]}")
    yield f"score {result['score']:.2f}; coverage {coverage['answered']}/{coverage['steps']}"
    if coverage["unanswered"]:
        reasons = ", ".join(f"{plain(reason)} {count}" for reason, count in coverage["reasons"].items())
        over = coverage["score_over_answered"]
        yield f"score over answered steps only {'-' if over is None else f'{over:.2f}'}; without a reply: {reasons}"
        yield f"without a reply: {names_text(plain(error['step'], 60) for error in result['errors'])}"
    yield ""
    yield f"{'':26}{result['metric_revision']:>10}{'tolerant':>10}"
    for name, row in _rows(strict, tolerant):
        yield f"{name:26}" + "".join(f"{cell:>10}" for cell in row)
    yield ""
    for kind, count in result["oddities"].items():
        yield f"{_ODDITIES.get(kind, kind)}: {count}"
    if empty := result["empty_references"]:
        yield f"references without a command: {len(empty)} ({names_text(plain(key, 60) for key in empty)})"
    if problems := result["problems"]:
        yield f"lines skipped: {len(problems)}; first: {plain(problems[0])}"


def _rows(strict: Mapping[str, Any], tolerant: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    both = (strict, tolerant)

    def row(name: str, form: str, key: str) -> tuple[str, tuple[str, str]]:
        first, second = (form.format(figures[key]) for figures in both)
        return name, (first, second)

    yield "score (100 x F1)", (f"{ranking_score(dict(strict)):.2f}", f"{ranking_score(dict(tolerant)):.2f}")
    yield row("precision", "{:.4f}", "avg_command_precision")
    yield row("recall", "{:.4f}", "avg_command_recall")
    yield row("F1", "{:.4f}", "avg_command_f1")
    yield row("first command exact", "{:.1f}%", "first_cmd_exact_pct")
    yield row("valid JSON", "{:.1f}%", "valid_json_pct")
    yield row("completion recall", "{:.1f}%", "complete_true_recall_pct")
    yield row("premature completion", "{:.1f}%", "premature_complete_rate_pct")
    yield row("commands per step", "{:.2f}", "avg_pred_cmds")
    for bucket, group in strict["by_bucket"].items():
        other = tolerant["by_bucket"][bucket]
        name = f"F1 {plain(bucket, 8)} ({group['steps']} step{'s' * (group['steps'] != 1)})"
        yield name, (f"{group['avg_command_f1']:.4f}", f"{other['avg_command_f1']:.4f}")


def recomputed_lines(stored: Mapping[str, Any], found: Sequence[Recomputed]) -> Iterator[str]:
    """Yield the lines of a recomputed result: each aggregate field with its stored and recomputed value."""
    same = [each.revision for each in found if each.identical]
    if len(found) > 1:
        tried = ", ".join(each.revision for each in found)
        yield f"the file does not contain its metric revision; identical with: {', '.join(same) or 'none'} (of {tried})"
    # If none is identical, show the closest.
    best = min(found, key=lambda each: len(each.differing) + len(each.differing_steps))
    yield f"{'field (' + best.revision + ')':30}{'stored':>14}{'recomputed':>14}"
    for key, value in best.aggregate.items():
        verdict = "absent" if key in best.absent else "DIFFERS" if key in best.differing else "identical"
        if isinstance(value, dict):
            yield f"{key:30}{'':>14}{'':>14}  {verdict}"
        else:
            yield f"{key:30}{plain(str(stored.get(key, '-')), 14):>14}{value:>14}  {verdict}"
    count = len(best.aggregate) - len(best.differing) - len(best.absent)
    yield f"{count} of {len(best.aggregate)} aggregate fields identical"
    if best.differing_steps:
        names = names_text(plain(key, 60) for key in best.differing_steps)
        yield f"steps that differ: {len(best.differing_steps)} ({names})"
