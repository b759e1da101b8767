"""Recomputes a stored result from its own units: upstream's files, which keep no raw replies, and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tbench.errors import UsageError
from tbench.proxies.datasets.records import bucket_of
from tbench.proxies.replay.scoring.aggregate import ScoredStep, aggregate
from tbench.proxies.replay.scoring.metric import score_units
from tbench.proxies.replay.scoring.parser import REVISIONS, Revision
from tbench.proxies.replay.scoring.result import scored_revision
from tbench.text import one_line

_SCORES = ("first_cmd_exact", "command_precision", "command_recall", "command_f1")


@dataclass(frozen=True)
class Recomputed:
    """One revision's figures from the stored units and flags, beside the stored figures."""

    revision: Revision
    aggregate: Mapping[str, Any]
    """The 16 figures of `aggregate`."""
    differing: Mapping[str, tuple[Any, Any]]
    """(stored, recomputed) value of each field that is not identical."""
    absent: tuple[str, ...]
    """Fields that the file does not have."""
    differing_steps: tuple[str, ...]
    """Steps whose own stored figures are not identical."""

    @property
    def identical(self) -> bool:
        """Whether all fields of aggregate and steps are stored, and the same."""
        return not (self.differing or self.absent or self.differing_steps)


def recompute(path: Path, document: Mapping[str, Any], revision: Revision | None = None) -> tuple[Recomputed, ...]:
    """Recompute by every revision that the file may be of: the one it names, or `revision`, or all. Raises UsageError.

    As stored units are parsed already, revisions differ only where both reference and reply have none.
    """
    named = scored_revision(document)
    if named is not None and revision not in (None, named):
        raise UsageError(
            f"{path}: its units were parsed by {named}, and its replies are not in it; "
            f"score the run's responses.jsonl to get {revision}"
        )
    steps = [_stored_step(path, number, entry) for number, entry in enumerate(document["per_step"])]
    revisions = [revision or named] if revision or named else list(REVISIONS)
    return tuple(_recomputed(each, steps, document["aggregate"]) for each in revisions if each)


def _recomputed(revision: Revision, stored: Sequence[ScoredStep], figures: Mapping[str, Any]) -> Recomputed:
    steps = [_rescored(step, revision) for step in stored]
    again = aggregate(steps)
    return Recomputed(
        revision,
        again,
        {key: (figures[key], value) for key, value in again.items() if key in figures and figures[key] != value},
        tuple(key for key in again if key not in figures),
        tuple(
            old.key
            for old, new in zip(stored, steps, strict=True)
            if any(getattr(old, name) != getattr(new, name) for name in _SCORES)
        ),
    )


def _rescored(step: ScoredStep, revision: Revision) -> ScoredStep:
    score = score_units(step.pred_command_units, step.ref_command_units, revision).rounded
    figures = (score.first_exact, score.precision, score.recall, score.f1)
    return step.model_copy(update=dict(zip(_SCORES, figures, strict=True)))


def _stored_step(path: Path, number: int, entry: object) -> ScoredStep:
    try:
        if isinstance(entry, dict) and "bucket" not in entry and isinstance(entry.get("step_idx"), int):
            entry = {**entry, "bucket": bucket_of(entry["step_idx"])}
        return ScoredStep.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, ("per_step", number, *first["loc"])))
        raise UsageError(f"{path}: {where}: {one_line(first['msg'])}; it cannot be recomputed") from None
