"""Scores of steps: replies joined with their records, their commands compared, and the figures over all steps.

Units are lines of commands. sim(a, b) is the F1 of their multisets of shell tokens; precision is the mean over
predicted units of the best sim with any reference unit, recall the mean over reference units of the best sim with any
predicted one (TB2-lite's replay_metrics.py). The results are exact: only pairs without a common token are left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from harness.text import without_lone_surrogates
from tbench.proxies.datasets.records import WAIT, Record
from tbench.proxies.replay.directory import ReplayResponse
from tbench.proxies.replay.scoring.parser import DEFAULT_REVISION, Oddity, ParsedReply, Revision, parse, parse_tolerant

_BLANKS = " \t\r\n"
# Blanks, or a word: plain text, what is in quotes, single escaped characters. Possessive, so that it stays linear.
_PIECE = re.compile(r"""[ \t\r\n]+|(?:[^ \t\r\n'"\\]++|'[^']*+'|"(?:[^"\\]++|\\.)*+"|\\.)++""", re.DOTALL)
_QUOTING = re.compile(r"""['"\\]""")
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]++|\\.)*+)"|\\(.)""", re.DOTALL)
_ESCAPE_IN_QUOTES = re.compile(r'\\(["\\])')

Tokens = tuple[tuple[tuple[str, int], ...], int]
"""Distinct tokens with their counts, and the number of all tokens."""


@dataclass(frozen=True, slots=True)
class StepScore:
    """The score of one step, in fractions; `rounded` is what is stored and averaged."""

    first_exact: float
    precision: float
    recall: float
    f1: float

    @property
    def rounded(self) -> StepScore:
        """The score rounded to 4 digits, with first_exact as it is."""
        return StepScore(self.first_exact, round(self.precision, 4), round(self.recall, 4), round(self.f1, 4))


_NOTHING, _EVERYTHING = StepScore(0.0, 0.0, 0.0, 0.0), StepScore(1.0, 1.0, 1.0, 1.0)


def score_units(predicted: Sequence[str], reference: Sequence[str], revision: Revision = DEFAULT_REVISION) -> StepScore:
    """The score of one step, unrounded. Where both sides are empty it is 1 in v0, 0 since."""
    if not predicted or not reference:
        return _EVERYTHING if revision == "v0" and not predicted and not reference else _NOTHING
    predicted, reference = [normalise(unit) for unit in predicted], [normalise(unit) for unit in reference]
    best_predicted, best_reference = _best_matches(set(predicted), set(reference))
    precision = _mean([best_predicted[unit] for unit in predicted])
    recall = _mean([best_reference[unit] for unit in reference])
    first = float(predicted[0].lower() == reference[0].lower())
    return StepScore(first, precision, recall, _harmonic(precision, recall))


def normalise(unit: str) -> str:
    """The unit stripped, with one blank for each run of white space; WAIT where nothing is left."""
    return " ".join(unit.split()) or WAIT


def split_shell(text: str) -> list[str]:
    """The words that shlex.split(text) finds (POSIX, comments off), many times faster. Raises ValueError as it does."""
    pieces = _PIECE.findall(text)
    if sum(map(len, pieces)) != len(text):  # something was passed over: an open quote, a backslash at the end
        raise ValueError("no closing quotation or escaped character")
    return [_unquoted(piece) for piece in pieces if piece[0] not in _BLANKS]


def _unquoted(word: str) -> str:
    if "\\" not in word:
        if '"' not in word:
            return word.replace("'", "")
        if "'" not in word:
            return word.replace('"', "")
    return _QUOTED.sub(_content, word)


def _content(found: re.Match[str]) -> str:
    single, double, escaped = found.groups()
    if double is None:
        return str(single if escaped is None else escaped)
    # Within double quotes a backslash only escapes the quote and itself.
    return _ESCAPE_IN_QUOTES.sub(r"\1", double)


@lru_cache(maxsize=1 << 16)
def tokens_of(unit: str) -> Tokens:
    """The tokens of a normalised unit, of which there is at least one."""
    text = unit.lower()
    if text == WAIT.lower():
        words = [text]
    elif _QUOTING.search(text) is None:
        words = text.split()  # only blanks are left of its whitespace, and nothing joins words over them
    else:
        try:
            words = split_shell(text)
        except ValueError:
            words = text.split()
    if len(set(words)) == len(words):
        return tuple([(word, 1) for word in words]), len(words)
    return tuple(Counter(words).items()), len(words)


def _best_matches(predicted: set[str], reference: set[str]) -> tuple[dict[str, float], dict[str, float]]:
    """The best sim of each unit with any of the other side. Only pairs that share a token are compared."""
    units = list(reference)
    lengths, where = _index(units)
    best_reference = [0.0] * len(units)
    best_predicted: dict[str, float] = {}
    for unit in predicted:
        counted, length = tokens_of(unit)
        best = 0.0
        for at, overlap in _overlaps(counted, where).items():
            # _harmonic, written out: this line is most of the work.
            p, r = overlap / length, overlap / lengths[at]
            sim = 2 * p * r / (p + r)
            if sim > best:
                best = sim
            if sim > best_reference[at]:
                best_reference[at] = sim
        best_predicted[unit] = best
    return best_predicted, dict(zip(units, best_reference, strict=True))


def _index(units: Sequence[str]) -> tuple[list[int], dict[str, list[tuple[int, int]]]]:
    """The units' lengths in tokens, and for each token the places of the units that have it, with its count there."""
    lengths: list[int] = []
    where: dict[str, list[tuple[int, int]]] = {}
    for at, unit in enumerate(units):
        counted, length = tokens_of(unit)
        lengths.append(length)
        for token, count in counted:
            where.setdefault(token, []).append((at, count))
    return lengths, where


def _overlaps(counted: tuple[tuple[str, int], ...], where: dict[str, list[tuple[int, int]]]) -> dict[int, int]:
    """The size of the multiset intersection by place of each unit that has a token in common."""
    overlaps: dict[int, int] = {}
    for token, count in counted:
        for at, others_count in where.get(token, ()):
            shared = count if count < others_count else others_count
            overlaps[at] = overlaps[at] + shared if at in overlaps else shared
    return overlaps


def _harmonic(p: float, r: float) -> float:
    return 2 * p * r / (p + r) if p + r else 0.0


def _mean(values: Sequence[float]) -> float:
    # The correctly rounded sum: the same on every Python, and that of upstream's (sum() since 3.12 compensates).
    return math.fsum(values) / len(values)


# Figures over the scored steps of a replay: the 16 fields of the published result files, rounded as there.


class ScoredStep(BaseModel):
    """One entry of a result's `per_step`. Keys that only some tools write are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    task_id: str
    sample_idx: int = 0
    step_idx: int
    bucket: str
    source_group: str = ""
    valid_json: bool
    has_analysis: bool = False
    has_plan: bool = False
    ref_task_complete: bool = False
    pred_task_complete: bool | None = None
    pred_task_complete_true: bool = False
    """Whether reply and reference both claim completion (in v0: whether the reply does)."""
    ref_command_units: tuple[str, ...]
    pred_command_units: tuple[str, ...]
    first_cmd_exact: float
    command_precision: float
    command_recall: float
    command_f1: float
    """A fraction rounded to 4 digits, as the three before it."""

    @property
    def key(self) -> str:
        """The `Record.key` of the step."""
        return f"{self.task_id}/{self.step_idx}"


def aggregate(steps: Sequence[ScoredStep]) -> dict[str, Any]:
    """The 16 figures in upstream's order (TB2-lite's replay_metrics.py); zeros where there are no steps.

    Means are over steps, not over tasks, and over the rounded step values; percentages have one digit.
    """
    precision, recall, f1 = (
        _rounded_mean(values, 4)
        for values in (
            [step.command_precision for step in steps],
            [step.command_recall for step in steps],
            [step.command_f1 for step in steps],
        )
    )
    first = _percent(steps, lambda step: step.first_cmd_exact)
    claimed = [step for step in steps if step.ref_task_complete]
    unclaimed = [step for step in steps if not step.ref_task_complete]
    return {
        "steps": len(steps),
        "tasks": len({step.task_id for step in steps}),
        "avg_ref_cmds": _rounded_mean([len(step.ref_command_units) for step in steps], 2),
        "avg_pred_cmds": _rounded_mean([len(step.pred_command_units) for step in steps], 2),
        "valid_json_pct": _percent(steps, lambda step: step.valid_json),
        "has_analysis_pct": _percent(steps, lambda step: step.has_analysis),
        "has_plan_pct": _percent(steps, lambda step: step.has_plan),
        "first_cmd_exact_pct": first,
        "avg_command_precision": precision,
        "avg_command_recall": recall,
        "avg_command_f1": f1,
        "complete_true_recall_pct": _percent(claimed, lambda step: step.pred_task_complete_true),
        "premature_complete_rate_pct": _percent(unclaimed, lambda step: bool(step.pred_task_complete)),
        "by_bucket": {
            name: {"steps": len(group), "avg_command_f1": _group_f1(group)}
            for name, group in _groups(steps, lambda step: step.bucket)
        },
        "by_source_group": {
            name: {
                "steps": len(group),
                "avg_command_f1": _group_f1(group),
                "first_cmd_exact_pct": _percent(group, lambda step: step.first_cmd_exact),
            }
            for name, group in _groups(steps, lambda step: step.source_group)
        },
        "next_action_score": round(100.0 * (0.7 * f1 + 0.3 * (first / 100.0)), 2),
    }


def score_of(figures: dict[str, Any]) -> float:
    """The score that results are ranked by: 100 x mean F1, two digits. (`next_action_score` is an earlier one.)"""
    return round(100.0 * float(figures["avg_command_f1"]), 2)


def _rounded_mean(values: Sequence[float], digits: int) -> float:
    return round(_mean(values), digits) if values else 0.0


def _percent(steps: Sequence[ScoredStep], value: Callable[[ScoredStep], float]) -> float:
    return round(math.fsum(map(value, steps)) / len(steps) * 100, 1) if steps else 0.0


def _group_f1(group: Sequence[ScoredStep]) -> float:
    total = 0.0
    for step in group:  # one by one, as upstream: sum() compensates on newer Pythons
        total += step.command_f1
    return round(total / len(group), 4)


def _groups(
    steps: Iterable[ScoredStep], name: Callable[[ScoredStep], str]
) -> Iterable[tuple[str, Sequence[ScoredStep]]]:
    groups: dict[str, list[ScoredStep]] = {}
    for step in steps:
        groups.setdefault(name(step), []).append(step)
    return sorted(groups.items())


# Joins replies with the records they answer, and scores them twice: as upstream does, and tolerantly.

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
