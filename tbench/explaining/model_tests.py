"""Tests whether two sides were the same model: lengths, faults and shapes of their replies, compared within tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean

from harness.trajectory import Frozen, Step
from tbench.explaining.exact import Stratum, TwoSample, ranks_test
from tbench.explaining.sameness import see_thinking
from tbench.explaining.trials import Side, Trial
from tbench.scores.comparing.exact_tests import holm

SURE = 0.05
"""Largest adjusted p with which a measure counts as different."""
_LEAST = 5
"""Fewest trials of a side for a test."""


class ModelTest(Frozen):
    """A measure of a model's replies on both sides."""

    measure: str
    before: float
    """Mean over the trials of the first side."""
    after: float
    p: float
    """Two-sided p of rank sums within tasks."""
    p_holm: float
    """`p` adjusted for all measures."""
    trials: tuple[int, int]
    """Number of trials of each side."""
    usual: float | None = None
    """Largest difference of the measure between successive runs of the first side; None for fewer than three runs."""

    @property
    def differs(self) -> bool:
        return self.p_holm <= SURE


Values = Callable[[Trial], float | None]
StepValues = Callable[[Sequence[Step]], float | None]


def _per_reply(value: Callable[[Trial], float]) -> Values:
    return lambda trial: value(trial) / trial.replies if trial.replies else None


_OF_RESULTS: dict[str, Values] = {
    "tokens a reply": _per_reply(lambda trial: trial.completion_tokens),
    "replies a trial": lambda trial: float(trial.replies) if trial.replies else None,
    "share of replies cut": _per_reply(lambda trial: trial.signs.get("cut", 0)),
    "share of replies with other signs": _per_reply(
        lambda trial: sum(trial.signs.values()) - trial.signs.get("cut", 0)
    ),
}
"""Measures from results, for all trials."""


def _share(value: Callable[[Step], object]) -> StepValues:
    return lambda steps: fmean(bool(value(step)) for step in steps) if steps else None


_OF_STEPS: dict[str, StepValues] = {
    "characters of thinking a reply": lambda steps: (
        fmean(len(step.reply.reasoning or "") for step in steps) if see_thinking(steps).thinking else None
    ),
    "share of replies with format errors": _share(lambda step: step.format_error),
    "actions a reply": lambda steps: fmean(len(step.actions) for step in steps) if steps else None,
    "share of replies with tool calls": _share(lambda step: step.reply.tool_calls),
    "share of replies that end with stop": _share(lambda step: step.reply.finish_reason == "stop"),
}
"""Measures that need the steps, for a sample of the trials."""


def model_tests(first: Side, second: Side, tasks: Sequence[str]) -> tuple[ModelTest, ...]:
    """Return all measures that both sides have and that vary, with Holm's adjustment over all of them."""
    found: list[tuple[str, Stratum, TwoSample, float | None]] = []
    for measure, value in _OF_RESULTS.items():
        rows = [[[value(each) for each in side.trials[task]] for task in tasks] for side in (first, second)]
        found += _tested(measure, rows[0], rows[1], _usual(first, tasks, value))
    steps = [_sampled_steps(side, tasks) for side in (first, second)]
    for measure, of_steps in _OF_STEPS.items():
        seen = [[[of_steps(each) for each in row] for row in some] for some in steps]
        found += _tested(measure, seen[0], seen[1], None)
    adjusted = holm([test.p for _, _, test, _ in found])
    return tuple(
        ModelTest(
            measure=measure,
            before=fmean(values.first),
            after=fmean(values.second),
            p=test.p,
            p_holm=p,
            trials=(len(values.first), len(values.second)),
            usual=usual,
        )
        for (measure, values, test, usual), p in zip(found, adjusted, strict=True)
    )


def _sampled_steps(side: Side, tasks: Sequence[str]) -> list[list[Sequence[Step]]]:
    found: dict[str, list[Sequence[Step]]] = {task: [] for task in tasks}
    for trial, steps in side.sample:
        if trial.task in found and steps:
            found[trial.task].append(steps)
    return list(found.values())


def _tested(
    measure: str, old: list[list[float | None]], new: list[list[float | None]], usual: float | None
) -> Iterator[tuple[str, Stratum, TwoSample, float | None]]:
    """Yield the test of a measure, unless too few trials have it or it never varies."""
    rows = [[[each for each in row if each is not None] for row in some] for some in (old, new)]
    strata = [Stratum(*both) for both in zip(*rows, strict=True)]
    both = Stratum(*([each for row in some for each in row] for some in rows))
    if min(len(both.first), len(both.second)) >= _LEAST and len({*both.first, *both.second}) > 1:
        yield measure, both, ranks_test(strata), usual


def _usual(side: Side, tasks: Sequence[str], value: Values) -> float | None:
    """Return the largest difference of a measure between successive runs; None for fewer than three."""
    by_run: list[list[float]] = [[] for _ in side.runs]
    for task in tasks:
        for trial in side.trials[task]:
            if (known := value(trial)) is not None:
                by_run[trial.run].append(known)
    means = [fmean(values) for values in by_run if values]
    return max((abs(after - before) for before, after in pairwise(means)), default=None) if len(means) > 2 else None


def equal_first_replies(first: Side, second: Side, tasks: Sequence[str]) -> tuple[int, int]:
    """Return the number of pairs of trials, by task and seed, with equal first replies, and the number of all pairs.

    Short first replies have no digest and are not compared.
    """
    equal = pairs = 0
    for task in tasks:
        digests = {each.seed: each.first for each in first.trials[task] if each.first}
        for each in second.trials[task]:
            if each.first and each.seed in digests:
                pairs += 1
                equal += each.first == digests[each.seed]
    return equal, pairs
