"""Summary and reward table of a stored run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tbench.config.settings import CostConfig
from tbench.scores.cost import Prices
from tbench.scores.final_results import FinalResults
from tbench.scores.statistics import RewardTable
from tbench.scores.summarise import KnownAboutRun, ShardTrials, reward_table, summarise
from tbench.scores.summary import Summary
from tbench.storage.read_run import StoredRun, read_run


def read_summary(run_dir: Path, *, intervals: bool = True) -> tuple[StoredRun, Summary]:
    """Read a run and its summary, without keeping the results. Raises RunUnreadable and MixedResults."""
    finals = FinalResults()
    run = read_run(run_dir, finals.add)
    return run, make_summary(run, finals, intervals=intervals)


def make_summary(
    run: StoredRun,
    finals: FinalResults | None = None,
    *,
    population: bool = False,
    intervals: bool = True,
    without: Sequence[str] = (),
    cost: CostConfig | None = None,
) -> Summary:
    """Summarise a stored run; `population` uses the population std for +-, `intervals` can be switched off.

    `finals` replace the run's results. `without` names tags whose trials a second score leaves out. Prices in `cost`
    replace the run's own. Raises MixedResults for results of several models, agents or runs.
    """
    known = KnownAboutRun(
        overrides=run.overrides,
        lacking_limits=run.lacking_limits,
        dataset=run.dataset,
        broken_rules=run.broken_rules,
        shard=ShardTrials(run.shard.name, run.shard.trials) if run.shard is not None else None,
        is_bounded=run.is_bounded,
        is_sampled=run.is_sampled,
        names=run.names_of_model,
        unhealthy=run.unhealthy,
        tags=run.tags,
        prices=prices_of(run, cost),
    )
    how: dict[str, Any] = {"population": population, "intervals": intervals, "without": without}
    results = run.results if finals is None else finals
    return summarise(results, run.planned_tasks, run.planned_seeds, known, **how)


def prices_of(run: StoredRun, cost: CostConfig | None = None) -> Prices:
    """Return the prices of a run; those in `cost` replace its own."""
    # By name: a field that only one of the two classes has raises TypeError.
    return Prices(**(cost or stored_cost(run)).model_dump())


def stored_cost(run: StoredRun) -> CostConfig:
    """Return the settings of [cost] that are stored with a run."""
    return CostConfig() if run.document is None else run.document.config.cost


def final_rewards(run: StoredRun) -> RewardTable:
    """Return the final rewards, planned tasks x planned seeds. Raises ValueError for a plan without tasks or seeds."""
    return reward_table(run.results, run.planned_tasks, run.planned_seeds, is_bounded=run.is_bounded)
