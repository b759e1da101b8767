"""Scores replayed steps by comparing their commands with the recorded ones, and aggregates the scores.

Units are lines of commands. sim(a, b) is the F1 of their multisets of shell tokens; precision is the mean over
predicted units of the best sim with any reference unit, recall the mean over reference units of the best sim with any
predicted one (TB2-lite's replay_metrics.py). The results are exact: only pairs without a common token are skipped.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from harness.model_text import without_lone_surrogates
from tbench.proxies.datasets.records import WAIT, Record
from tbench.proxies.replay.directory import ReplayResponse
from tbench.proxies.replay.scoring.parser import DEFAULT_REVISION, Oddity, ParsedReply, Revision, parse, parse_tolerant

_BLANKS = " \t\r\n"
# White space, or a word: plain text, quoted text, escaped characters. Possessive, so that it stays linear.
_PIECE = re.compile(r"""[ \t\r\n]+|(?:[^ \t\r\n'"\\]++|'[^']*+'|"(?:[^"\\]++|\\.)*"|\\.)+""", re.DOTALL)
_QUOTING = re.compile(r"""['"\\]""")
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]++|\\.)*)"|\\(.)""", re.DOTALL)
_ESCAPE_IN_QUOTES = re.compile(r'\\(["\\])')

Tokens = tuple[tuple[tuple[str, int], ...], int]
"""Distinct tokens with their counts, and the number of all tokens."""


class StepScore(NamedTuple):
    """Score of one step, in fractions, named as in `ScoredStep`; `rounded` is stored and averaged."""

    first_cmd_exact: float
    """0 or 1."""
    command_precision: float
    command_recall: float
    command_f1: float

    @property
    def rounded(self) -> StepScore:
        """The score rounded to 4 digits."""
        return StepScore(*(round(value, 4) for value in self))


_ALL_ZERO, _ALL_ONE = StepScore(0.0, 0.0, 0.0, 0.0), StepScore(1.0, 1.0, 1.0, 1.0)


def score_units(predicted: Sequence[str], reference: Sequence[str], revision: Revision = DEFAULT_REVISION) -> StepScore:
    """Return the unrounded score of one step. If both sides are empty it is 1 in v0, and 0 in later revisions."""
    if not predicted or not reference:
        return _ALL_ONE if revision == "v0" and not predicted and not reference else _ALL_ZERO
    predicted, reference = [normalise(unit) for unit in predicted], [normalise(unit) for unit in reference]
    best_predicted, best_reference = _best_matches(set(predicted), set(reference))
    precision = _mean([best_predicted[unit] for unit in predicted])
    recall = _mean([best_reference[unit] for unit in reference])
    first = float(predicted[0].lower() == reference[0].lower())
    return StepScore(first, precision, recall, _harmonic(precision, recall))


def normalise(unit: str) -> str:
    """Strip the unit and collapse white space; return WAIT if nothing is left."""
    return " ".join(unit.split()) or WAIT


def split_shell(text: str) -> list[str]:
    """Split like shlex.split(text) (POSIX, comments off), but many times faster. Raises ValueError like it."""
    pieces = _PIECE.findall(text)
    if sum(map(len, pieces)) != len(text):  # skipped text: an open quote, or a backslash at the end
        raise ValueError("no closing quotation or escaped character")
    return [_unquote(piece) for piece in pieces if piece[0] not in _BLANKS]


def _unquote(word: str) -> str:
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
    # In double quotes a backslash escapes only the quote and itself.
    return _ESCAPE_IN_QUOTES.sub(r"\1", double)


@lru_cache(maxsize=1 << 16)
def tokenise(unit: str) -> Tokens:
    """Return the tokens of a normalised unit, at least one."""
    text = unit.lower()
    if text == WAIT.lower():
        words = [text]
    elif _QUOTING.search(text) is None:
        words = text.split()  # normalised: words are separated by single spaces
    else:
        try:
            words = split_shell(text)
        except ValueError:
            words = text.split()
    if len(set(words)) == len(words):
        return tuple([(word, 1) for word in words]), len(words)
    return tuple(Counter(words).items()), len(words)


def _best_matches(predicted: set[str], reference: set[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the best sim of each unit with any unit of the other side; compares only pairs that share a token."""
    units = list(reference)
    lengths, where = _index(units)
    best_reference = [0.0] * len(units)
    best_predicted: dict[str, float] = {}
    for unit in predicted:
        counted, length = tokenise(unit)
        best = 0.0
        for at, overlap in _overlaps(counted, where).items():
            # _harmonic, inlined: this line takes most of the time.
            p, r = overlap / length, overlap / lengths[at]
            sim = 2 * p * r / (p + r)
            if sim > best:
                best = sim
            if sim > best_reference[at]:
                best_reference[at] = sim
        best_predicted[unit] = best
    return best_predicted, dict(zip(units, best_reference, strict=True))


def _index(units: Sequence[str]) -> tuple[list[int], dict[str, list[tuple[int, int]]]]:
    """Return the units' lengths in tokens, and for each token (index of unit, count) of the units that contain it."""
    lengths: list[int] = []
    where: dict[str, list[tuple[int, int]]] = {}
    for at, unit in enumerate(units):
        counted, length = tokenise(unit)
        lengths.append(length)
        for token, count in counted:
            where.setdefault(token, []).append((at, count))
    return lengths, where


def _overlaps(counted: tuple[tuple[str, int], ...], where: dict[str, list[tuple[int, int]]]) -> dict[int, int]:
    """Return the size of the multiset intersection by index of each unit with a common token."""
    overlaps: dict[int, int] = {}
    for token, count in counted:
        for at, others_count in where.get(token, ()):
            shared = count if count < others_count else others_count
            overlaps[at] = overlaps[at] + shared if at in overlaps else shared
    return overlaps


def _harmonic(p: float, r: float) -> float:
    return 2 * p * r / (p + r) if p + r else 0.0


def _mean(values: Sequence[float]) -> float:
    # fsum is correctly rounded: the same on every Python, and as upstream (sum() compensates since 3.12).
    return math.fsum(values) / len(values)


class ScoredStep(BaseModel):
    """One entry of a result's `per_step`. Unknown keys are kept."""

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
    """Fraction rounded to 4 digits, as are `command_precision` and `command_recall`."""

    @property
    def key(self) -> str:
        """The `Record.key` of the step."""
        return f"{self.task_id}/{self.step_idx}"


def aggregate(steps: Sequence[ScoredStep]) -> dict[str, Any]:
    """Return the 16 figures in upstream's order (TB2-lite's replay_metrics.py); zeros if there are no steps.

    Means are over steps, not over tasks, and over the rounded step values; percentages have one digit.
    """
    f1 = _rounded_mean([step.command_f1 for step in steps], 4)
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
        "avg_command_precision": _rounded_mean([step.command_precision for step in steps], 4),
        "avg_command_recall": _rounded_mean([step.command_recall for step in steps], 4),
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


def ranking_score(figures: dict[str, Any]) -> float:
    """Return the score for ranking: 100 x mean F1, two digits (`next_action_score` is an earlier one)."""
    return round(100.0 * float(figures["avg_command_f1"]), 2)


def _rounded_mean(values: Sequence[float], digits: int) -> float:
    return round(_mean(values), digits) if values else 0.0


def _percent(steps: Sequence[ScoredStep], value: Callable[[ScoredStep], float]) -> float:
    return round(math.fsum(map(value, steps)) / len(steps) * 100, 1) if steps else 0.0


def _group_f1(group: Sequence[ScoredStep]) -> float:
    total = 0.0
    for step in group:  # a loop, like upstream: sum() compensates on newer Pythons
        total += step.command_f1
    return round(total / len(group), 4)


def _groups(
    steps: Iterable[ScoredStep], name: Callable[[ScoredStep], str]
) -> Iterable[tuple[str, Sequence[ScoredStep]]]:
    groups: dict[str, list[ScoredStep]] = {}
    for step in steps:
        groups.setdefault(name(step), []).append(step)
    return sorted(groups.items())


PREVIEW_CHARACTERS = {"v0": 500, "v1": 1200, "v2": 1200}


@dataclass(frozen=True)
class ScoredRun:
    """Scores of the same steps by both parsers, in the dataset's order."""

    revision: Revision
    steps: tuple[ScoredStep, ...]
    tolerant: tuple[ScoredStep, ...]
    unanswered: Mapping[str, str]
    """Reason for each step without a reply, which scores 0, by key: the type of its error, `null` or `missing`."""
    empty_references: tuple[str, ...]
    """Steps whose reference has no command, so that no reply can match it."""
    oddities: Mapping[Oddity, int]

    @property
    def coverage(self) -> dict[str, Any]:
        """The `coverage` of a result: numbers of steps with and without a reply, and the score over steps with one."""
        answered = [step for step in self.steps if step.key not in self.unanswered]
        figures = aggregate(answered)
        return {
            "steps": len(self.steps),
            "answered": len(answered),
            "unanswered": len(self.unanswered),
            "answered_pct": round(len(answered) / len(self.steps) * 100, 1) if self.steps else 0.0,
            "reasons": dict(sorted(Counter(self.unanswered.values()).items())),
            "score_over_answered": ranking_score(figures) if answered else None,
            "first_cmd_exact_pct_over_answered": figures["first_cmd_exact_pct"] if answered else None,
        }


def score_steps(records: Sequence[Record], replies: Mapping[str, ReplayResponse], revision: Revision) -> ScoredRun:
    """Score one step per record. A missing reply is scored as an empty one, and listed in `unanswered`."""
    steps, tolerant = [], []
    unanswered: dict[str, str] = {}
    empty: list[str] = []
    odd: Counter[Oddity] = Counter()
    for record in records:
        response = replies.get(record.key)
        if reason := _unanswered_reason(response):
            unanswered[record.key] = reason
        text = None if reason or response is None else response.content
        reference = _reference(record, revision)
        # The complete reply stays in responses.jsonl.
        about_reply = {
            "pred_preview": (text or "")[: PREVIEW_CHARACTERS[revision]],
            "finish_reason": response.finish_reason if response else None,
            "stop_reason": response.stop_reason if response else None,
            "unanswered": reason,
        }
        strict, lenient = parse(text, revision), parse_tolerant(text, revision)
        if not reference.units:
            empty.append(record.key)
        odd.update(strict.oddities)
        score = score_units(strict.units, reference.units, revision).rounded
        # Units are mostly the same, and matching them takes most of the time.
        same = lenient.units == strict.units
        tolerant_score = score if same else score_units(lenient.units, reference.units, revision).rounded
        steps.append(_step(record, reference, strict, score, revision, about_reply))
        tolerant.append(_step(record, reference, lenient, tolerant_score, revision, {}))
    return ScoredRun(revision, tuple(steps), tuple(tolerant), unanswered, tuple(empty), odd)


def _unanswered_reason(response: ReplayResponse | None) -> str | None:
    if response is None:
        return "missing"
    if response.error is not None:
        return response.error.partition(":")[0].strip() or "error"
    return "null" if response.content is None else None


def _reference(record: Record, revision: Revision) -> ParsedReply:
    """Return the parsed reference: since v1 parsed like a reply; v0 uses the units and claim stored with it."""
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
        **score._asdict(),
        **more,
    )
