"""Harbor's own mean of a job, computed by its rule and compared with what the job states.

The rule is that of harbor/metrics/base.py: over all trials that ended, with 0 for one without a reward. Where no trial
has more than one reward, that one counts whatever its name; else each name has a mean, with 0 where a trial lacks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tbench.errors import UsageError
from tbench.exchange.importing.harbor.records import HarborTrial
from tbench.exchange.importing.harbor.verdict import name_that_counts
from tbench.text import names_shown, visible_line

_NO_DATASET = "adhoc"


def metric_that_counts(records: Iterable[HarborTrial], metric: str | None, where: str) -> str | None:
    """The name of the reward that counts; None where there is no more than one. Raises UsageError."""
    names = sorted({name for record in records for name in record.rewards or ()})
    if metric is not None and metric not in names:
        raise UsageError(
            f"{where}: no trial has a reward {metric!r}; there are: {visible_line(names_shown(names)) or 'none'}"
        )
    if len(names) <= 1:
        return metric
    if (name := name_that_counts(names, metric)) is None:
        raise UsageError(f"{where}: rewards {visible_line(names_shown(names))}: say which counts with --metric NAME")
    return name


def mean_by_rule(records: Sequence[HarborTrial], metric: str | None) -> float:
    """The mean reward of trials, as Harbor computes it; `metric` is None where there is but one."""
    return sum(value_by_rule(record.rewards, metric) for record in records) / len(records)


def value_by_rule(rewards: Mapping[str, Any] | None, metric: str | None) -> float:
    """What a trial adds to Harbor's mean."""
    value = (rewards or {}).get(metric) if metric is not None else next(iter((rewards or {}).values()), 0)
    return float(value) if isinstance(value, int | float) else 0.0


def stated_mean(job: Mapping[str, Any], records: Sequence[HarborTrial], metric: str | None) -> float | None:
    """The mean that a job's result.json states of these trials; None where it does not.

    It states one per agent, model and dataset: of several datasets the mean is that over all their trials.
    """
    stats = job.get("stats")
    evals = stats.get("evals") if isinstance(stats, Mapping) else None
    by_key: dict[str, int] = {}
    for record in records:
        by_key[_key(record)] = by_key.get(_key(record), 0) + 1
    total = 0.0
    for key, count in by_key.items():
        stated = _stated(evals.get(key) if isinstance(evals, Mapping) else None, metric)
        if stated is None:
            return None
        total += stated * count
    return total / len(records)


def _key(record: HarborTrial) -> str:
    """The name of a group of trials in a job's `stats.evals` (harbor/models/job/result.py)."""
    dataset = record.source or _NO_DATASET
    parts = (record.agent_info.name, record.model, dataset) if record.model else (record.agent_info.name, dataset)
    return "__".join(map(str, parts))


def _stated(group: object, metric: str | None) -> float | None:
    metrics = group.get("metrics") if isinstance(group, Mapping) else None
    for means in metrics if isinstance(metrics, list) else ():
        value = means.get("mean", means.get(metric)) if isinstance(means, Mapping) else None
        if isinstance(value, int | float):
            return float(value)
    return None
