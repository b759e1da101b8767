"""Joins replies with the records they answer, and scores them twice: as upstream does, and tolerantly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.text import without_lone_surrogates
from tbench.proxies.datasets.records import Record
from tbench.proxies.replay.responses import ReplayResponse
from tbench.proxies.replay.scoring.aggregate import ScoredStep, aggregate, score_of
from tbench.proxies.replay.scoring.metric import StepScore, normalise, score_units
from tbench.proxies.replay.scoring.parser import Oddity, ParsedReply, Revision, parse, parse_tolerant

PREVIEW_CHARACTERS = {"v0": 500, "v1": 1200, "v2": 1200}


@dataclass(frozen=True)
class ScoredRun:
    """Both scores of the same steps, in the dataset's order."""

    revision: Revision
    steps: tuple[ScoredStep, ...]
    tolerant: tuple[ScoredStep, ...]
    unanswered: Mapping[str, str]
    """Reason by key for each step without a reply, which scores 0: the type of its error, `null` or `missing`."""
    empty_references: tuple[str, ...]
    """Steps whose reference has no command, so that nothing can match it."""
    oddities: Mapping[Oddity, int]

    @property
    def coverage(self) -> dict[str, Any]:
        """The `coverage` of a result: how many steps have a reply, and the score over those alone."""
        answered = [step for step in self.steps if step.key not in self.unanswered]
        figures = aggregate(answered)
        return {
            "steps": len(self.steps),
            "answered": len(answered),
            "unanswered": len(self.unanswered),
            "answered_pct": round(len(answered) / len(self.steps) * 100, 1) if self.steps else 0.0,
            "reasons": dict(sorted(Counter(self.unanswered.values()).items())),
            "score_over_answered": score_of(figures) if answered else None,
            "first_cmd_exact_pct_over_answered": figures["first_cmd_exact_pct"] if answered else None,
        }


def score_steps(records: Sequence[Record], replies: Mapping[str, ReplayResponse], revision: Revision) -> ScoredRun:
    """Score one step per record. A missing reply is scored as an empty one, and counted in `unanswered`."""
    steps, tolerant = [], []
    unanswered: dict[str, str] = {}
    empty: list[str] = []
    odd: Counter[Oddity] = Counter()
    for record in records:
        response = replies.get(record.key)
        if reason := _why_unanswered(response):
            unanswered[record.key] = reason
        text = None if reason or response is None else response.content
        reference = _reference(record, revision)
        strict, lenient = parse(text, revision), parse_tolerant(text, revision)
        if not reference.units:
            empty.append(record.key)
        odd.update(strict.oddities)
        score = score_units(strict.units, reference.units, revision).rounded
        # Mostly the same units; matching them is most of the work.
        same = lenient.units == strict.units
        tolerant_score = score if same else score_units(lenient.units, reference.units, revision).rounded
        steps.append(_step(record, reference, strict, score, revision, _reply_fields(response, text, reason, revision)))
        tolerant.append(_step(record, reference, lenient, tolerant_score, revision, {}))
    return ScoredRun(revision, tuple(steps), tuple(tolerant), unanswered, tuple(empty), odd)


def _why_unanswered(response: ReplayResponse | None) -> str | None:
    if response is None:
        return "missing"
    if response.error is not None:
        return response.error.partition(":")[0].strip() or "error"
    return "null" if response.content is None else None


def _reference(record: Record, revision: Revision) -> ParsedReply:
    """The parsed reference: since v1 it is parsed like a reply, v0 took the units and claim stored beside it."""
    parsed = parse(record.ref_raw, revision)
    stored = record.model_extra or {}
    units = stored.get("ref_command_units")
    if revision != "v0" or not isinstance(units, list):
        return parsed
    return ParsedReply(
        units=tuple(without_lone_surrogates(str(unit)) for unit in units),
        task_complete=bool(stored.get("ref_task_complete", parsed.task_complete)),
    )


def _step(
    record: Record,
    reference: ParsedReply,
    answer: ParsedReply,
    score: StepScore,
    revision: Revision,
    more: Mapping[str, Any],
) -> ScoredStep:
    expected, claimed = bool(reference.task_complete), answer.task_complete is True
    units: Iterable[str] = map(normalise, answer.units) if revision == "v0" else answer.units
    return ScoredStep(
        task_id=record.task_id,
        sample_idx=record.sample_idx,
        step_idx=record.step_idx,
        bucket=record.bucket,
        source_group=record.source_group,
        valid_json=answer.valid_json,
        has_analysis=answer.has_analysis,
        has_plan=answer.has_plan,
        ref_task_complete=expected,
        pred_task_complete=answer.task_complete,
        pred_task_complete_true=claimed if revision == "v0" else claimed and expected,
        ref_command_units=reference.units,
        pred_command_units=tuple(units),
        first_cmd_exact=score.first_exact,
        command_precision=score.precision,
        command_recall=score.recall,
        command_f1=score.f1,
        **more,
    )


def _reply_fields(
    response: ReplayResponse | None, text: str | None, reason: str | None, revision: Revision
) -> dict[str, Any]:
    """The fields of a step that a result keeps of the reply itself; the whole of it stays in responses.jsonl."""
    return {
        "pred_preview": (text or "")[: PREVIEW_CHARACTERS[revision]],
        "finish_reason": response.finish_reason if response else None,
        "stop_reason": response.stop_reason if response else None,
        "unanswered": reason,
    }
