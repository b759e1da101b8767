"""What is told of an imported run: its size, its mean there and here, and why they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tbench.results import TrialResult
from tbench.scores.statistics import score
from tbench.scores.summarise import reward_table
from tbench.storage.imported_plan import ImportedPlan
from tbench.text import counted, names_shown, visible_line

_SAME = 1e-9
"""Difference of two means that is only rounding."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A run that was written, in lines for a reader."""

    directory: Path
    lines: tuple[str, ...]
    notes: tuple[str, ...] = ()


def size_line(plan: ImportedPlan, results: Sequence[TrialResult]) -> str:
    """How much a run holds, and whose it is."""
    unscored = sum(result.reward is None for result in results)
    without = f", {unscored:,} without a verdict" if unscored else ""
    by = f" by {plan.agent}" if plan.agent else ""
    of = f" with {plan.model}" if plan.model else ""
    tasks, seeds = counted(len(plan.tasks), "task"), counted(len(plan.seeds), "seed")
    return visible_line(f"{counted(len(results), 'trial')}{without}: {tasks}, {seeds}{by}{of}")


def score_of(plan: ImportedPlan, results: Sequence[TrialResult]) -> float:
    """The score as the summary prints it: a planned trial without a verdict is a 0, and all tasks weigh the same."""
    return score(reward_table(results, [task.name for task in plan.tasks], plan.seeds))


def mean_lines(
    plan: ImportedPlan, results: Sequence[TrialResult], mean: float, zeros: Sequence[TrialResult]
) -> Iterator[str]:
    """Harbor's mean beside the score here. `zeros` are the results without a verdict that are a 0 in Harbor's mean."""
    here, stated = score_of(plan, results), plan.reported_mean
    told = "its result.json states none" if stated is None else f"its result.json: {stated:.6f}"
    yield f"mean by Harbor's rule {mean:.6f} ({told}), score here {here:.6f}"
    if stated is not None and abs(stated - mean) > _SAME:
        yield "its result.json is of other trials than those that are here"
    if abs(here - mean) > _SAME:
        lost = len(plan.tasks) * len(plan.seeds) - len(results)
        yield (
            f"they differ as {counted(lost, 'planned trial')} without a result count 0 here and nothing there, "
            "and here all tasks weigh the same, there all trials"
        )
    if zeros:
        types = Counter(result.error.type for result in zeros if result.error is not None)
        why = names_shown([f"{type_} {count}" for type_, count in types.most_common()])
        yield (
            f"{counted(len(zeros), 'trial')} with a 0 there, but an error here ({why}): "
            "the score is the same, that over scored trials only is not"
        )
