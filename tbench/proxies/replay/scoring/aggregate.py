"""Figures over the scored steps of a replay: the 16 fields of the published result files, rounded as there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict


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
        _mean(values, 4)
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
        "avg_ref_cmds": _mean([len(step.ref_command_units) for step in steps], 2),
        "avg_pred_cmds": _mean([len(step.pred_command_units) for step in steps], 2),
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


def _mean(values: Sequence[float], digits: int) -> float:
    # fsum as in the step scores: the same on every Python, and what upstream's sum() gives since 3.12.
    return round(math.fsum(values) / len(values), digits) if values else 0.0


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
