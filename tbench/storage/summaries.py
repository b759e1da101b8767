"""Summary and reward table of a stored run."""

from __future__ import annotations

from pathlib import Path

from tbench.scores.final_results import FinalResults
from tbench.scores.statistics import RewardTable
from tbench.scores.summarise import ShardTrials, reward_table, summarise
from tbench.scores.summary import Summary
from tbench.storage.read_run import StoredRun, read_run


def read_summary(run_dir: Path, *, population: bool = False, intervals: bool = True) -> tuple[StoredRun, Summary]:
    """Read a run and its summary, without keeping the results. Raises RunUnreadable and MixedResults."""
    finals = FinalResults()
    run = read_run(run_dir, finals.add)
    return run, make_summary(run, finals, population=population, intervals=intervals)


def make_summary(
    run: StoredRun, finals: FinalResults | None = None, *, population: bool = False, intervals: bool = True
) -> Summary:
    """Summarise a stored run; `population` uses the population std for +-, `intervals` can be switched off.

    `finals` replace the run's results. Raises MixedResults for results of several models, agents or runs.
    """
    return summarise(
        run.results if finals is None else finals,
        run.planned_tasks,
        run.planned_seeds,
        population=population,
        overrides=run.overrides,
        lacking_limits=run.lacking_limits,
        dataset=run.dataset,
        broken_rules=run.broken_rules,
        shard=ShardTrials(run.shard.name, run.shard.trials) if run.shard is not None else None,
        intervals=intervals,
        is_bounded=run.is_bounded,
        names=run.names_of_model,
        is_sampled=run.is_sampled,
        unhealthy=run.unhealthy,
    )


def final_rewards(run: StoredRun) -> RewardTable:
    """Return the final rewards, planned tasks x planned seeds. Raises ValueError for a plan without tasks or seeds."""
    return reward_table(run.results, run.planned_tasks, run.planned_seeds, is_bounded=run.is_bounded)
