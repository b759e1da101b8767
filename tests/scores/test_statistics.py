"""Statistics against published numbers, by brute force, and by properties that must hold for any rewards."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.results import LARGEST_REWARD
from tbench.scores.intervals import bootstrap_mean
from tbench.scores.statistics import (
    RewardTable,
    bounds,
    completed_seeds,
    coverage,
    expected_std,
    is_uneven,
    mean_std,
    pass_rates,
    per_seed_scores,
    per_seed_scores_scored_only,
    score,
    score_scored_only,
    scored_per_seed,
    solve_count_histogram,
    solved_rate,
    standard_error_over_tasks,
    task_means,
)

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "statistics"
MODELS = ("tmax-9b", "Qwen3.5-9B", "Qwen3.5-2B")


def table(*rows: tuple[float | None, ...]) -> RewardTable:
    tasks = [f"task-{t}" for t in range(len(rows))]
    verdicts = [(task, seed, reward) for task, row in zip(tasks, rows, strict=True) for seed, reward in enumerate(row)]
    return RewardTable.from_verdicts(verdicts, tasks, range(len(rows[0])))


def tables(rewards: st.SearchStrategy[float | None]) -> st.SearchStrategy[RewardTable]:
    def of_seeds(seeds: int) -> st.SearchStrategy[RewardTable]:
        row = st.tuples(*[rewards] * seeds)
        return st.lists(row, min_size=2, max_size=8).map(lambda rows: table(*rows))

    return st.integers(2, 5).flatmap(of_seeds)


fractional = tables(st.floats(0, 1))
with_gaps = tables(st.none() | st.floats(0, 1))
binary = tables(st.sampled_from([0.0, 1.0]))


@pytest.fixture(scope="module", params=MODELS)
def published(request: pytest.FixtureRequest) -> tuple[RewardTable, dict[str, Any]]:
    if not (PUBLISHED / "expected.json").exists():
        pytest.skip(f"published trials are not at {PUBLISHED}")
    lines = [json.loads(line) for line in (PUBLISHED / "trials.jsonl").read_text().splitlines()]
    mine = [line for line in lines if line["model"] == request.param]
    verdicts = [(line["task"], line["seed"], line["reward"]) for line in mine]
    tasks, seeds = sorted({line["task"] for line in mine}), sorted({line["seed"] for line in mine})
    expected = json.loads((PUBLISHED / "expected.json").read_text())["models"][request.param]
    return RewardTable.from_verdicts(verdicts, tasks, seeds), expected


def test_published_scores_are_reproduced(published: tuple[RewardTable, dict[str, Any]]) -> None:
    trials, expected = published
    planned = len(trials.tasks) * len(trials.seeds)
    assert (len(trials.tasks), planned) == (expected["n_tasks"], expected["n_trials"])
    assert score(trials) == pytest.approx(expected["mean"], abs=5e-9)
    assert fmean(trials.scored_rewards()) == pytest.approx(expected["mean_excluding_no_verdict"], abs=5e-9)
    assert planned - len(trials.scored_rewards()) == expected["trials_without_verdict"]
    assert coverage(trials) == 1 - expected["trials_without_verdict"] / planned
    assert round(solved_rate(trials) * planned) == expected["solved_trials"]


def test_published_spreads_are_reproduced(published: tuple[RewardTable, dict[str, Any]]) -> None:
    trials, expected = published
    per_seed, scores = expected["per_seed"], per_seed_scores(trials)
    assert scores == pytest.approx(per_seed["run_means"], abs=5e-7)
    assert mean_std(scores).std == pytest.approx(per_seed["sample_std"], abs=5e-7)
    assert mean_std(scores, population=True).std == pytest.approx(per_seed["pop_std"], abs=5e-7)
    assert mean_std(scores).sem == pytest.approx(per_seed["sem_sample"], abs=5e-7)
    assert expected_std(trials) == pytest.approx(expected["expected_run_std_permutation_invariant"], abs=5e-7)
    assert standard_error_over_tasks(trials) == pytest.approx(expected["se_over_tasks_clustered"], abs=5e-7)


def test_published_bootstrap_is_reproduced_within_its_own_noise(
    published: tuple[RewardTable, dict[str, Any]],
) -> None:
    trials, expected = published
    bootstrap = bootstrap_mean(task_means(trials))
    one_trial = 1 / (len(trials.tasks) * len(trials.seeds))
    assert bootstrap.se == pytest.approx(expected["bootstrap_tasks_se_20000"], rel=0.02)
    assert [bootstrap.low, bootstrap.high] == pytest.approx(expected["bootstrap_tasks_ci95"], abs=1.1 * one_trial)


def test_published_pass_at_k_and_solve_counts_are_reproduced(
    published: tuple[RewardTable, dict[str, Any]],
) -> None:
    trials, expected = published
    for k, value in expected["pass_at_k"].items():
        assert pass_rates(trials).pass_at[int(k)] == pytest.approx(value, abs=5e-9)
    histogram = {str(n): count for n, count in solve_count_histogram(trials).items()}
    assert histogram == expected["solve_count_hist"]


def test_a_worked_example_with_partial_rewards_and_a_gap() -> None:
    trials = table((1.0, 0.5), (0.0, None))
    assert per_seed_scores(trials) == (0.5, 0.25)
    # The first task's own deviations, around (0.75 + 0) / 2.
    assert per_seed_scores_scored_only(trials) == (0.625, 0.125)
    assert score(trials) == 0.375
    assert score_scored_only(trials) == 0.375
    assert (scored_per_seed(trials), completed_seeds(trials)) == ((2, 1), (0,))
    assert coverage(trials) == 0.75
    assert (bounds(trials).worst, bounds(trials).best) == (0.375, 0.625)
    assert mean_std(per_seed_scores(trials)).std == pytest.approx(math.sqrt(0.03125))
    assert expected_std(trials) == pytest.approx(math.sqrt(0.125) / 2)
    assert standard_error_over_tasks(trials) == pytest.approx(0.375)
    assert solved_rate(trials) == 0.25


def test_one_seed_has_no_std_and_one_task_no_standard_error() -> None:
    assert mean_std(per_seed_scores(table((1.0,), (0.0,)))).std is None
    assert mean_std(per_seed_scores(table((1.0,), (0.0,))), population=True).std is None
    assert expected_std(table((1.0,), (0.0,))) is None
    assert standard_error_over_tasks(table((1.0, 0.0))) is None


def test_without_any_verdict_there_is_no_score_over_scored_trials() -> None:
    nothing = table((None, None))
    assert score_scored_only(nothing) is None
    assert per_seed_scores_scored_only(nothing) == ()
    assert coverage(nothing) == 0


def test_an_outage_is_no_spread_over_scored_trials() -> None:
    """89 tasks of 5 equal seeds, one of which lost 69 verdicts, the hard tasks' first."""
    rows: list[tuple[float | None, ...]] = [(float(task >= 40),) * 5 for task in range(89)]
    trials = table(*[(*row[:4], None if task < 69 else row[4]) for task, row in enumerate(rows)])
    assert mean_std(per_seed_scores(trials)).std == pytest.approx(0.145, abs=0.001)
    assert per_seed_scores_scored_only(trials) == pytest.approx([49 / 89] * 5)
    assert score_scored_only(trials) == pytest.approx(49 / 89)
    assert completed_seeds(trials) == (0, 1, 2, 3)


@given(fractional)
def test_at_full_coverage_scored_trials_have_the_same_scores(trials: RewardTable) -> None:
    assert score_scored_only(trials) == pytest.approx(score(trials))
    assert per_seed_scores_scored_only(trials) == pytest.approx(per_seed_scores(trials))
    assert completed_seeds(trials) == trials.seeds


@given(with_gaps)
def test_no_score_over_scored_trials_depends_on_the_order_of_tasks_or_seeds(trials: RewardTable) -> None:
    turned = table(*[tuple(reversed(row)) for row in reversed(trials.rows)])
    assert score_scored_only(turned) == pytest.approx(score_scored_only(trials))
    scores = per_seed_scores_scored_only(trials)
    assert sorted(per_seed_scores_scored_only(turned)) == pytest.approx(sorted(scores))


def test_a_score_over_scored_trials_weighs_tasks() -> None:
    trials = table((1.0, 1.0, 1.0), (0.0, None, None), (None, None, None))
    assert score_scored_only(trials) == 0.5
    assert per_seed_scores_scored_only(trials) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("most", "total", "places", "uneven"),
    [
        (69, 69, 5, True),
        (2, 2, 5, False),
        (14, 69, 5, False),
        (5, 5, 3, True),
        (3, 4, 3, False),
        (9, 9, 3, True),
        (3, 3, 1, False),
    ],
)
def test_counts_concentrated_in_one_bin_are_uneven(most: int, total: int, places: int, uneven: bool) -> None:
    assert is_uneven(most, total, places) is uneven


def test_a_table_refuses_what_does_not_fit_its_plan() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        RewardTable.from_verdicts([], [], [0])
    with pytest.raises(ValueError, match="planned twice"):
        RewardTable.from_verdicts([], ["a", "a"], [0])
    with pytest.raises(ValueError, match="not planned"):
        RewardTable.from_verdicts([("b", 0, 1.0)], ["a"], [0])
    with pytest.raises(ValueError, match="two verdicts"):
        RewardTable.from_verdicts([("a", 0, 1.0), ("a", 0, 0.0)], ["a"], [0])
    for reward in (math.nan, math.inf, 1e308, -2e9):
        with pytest.raises(ValueError, match="finite number, or too large"):
            RewardTable.from_verdicts([("a", 0, reward)], ["a"], [0])


def test_the_largest_rewards_can_be_computed_with() -> None:
    largest = table((LARGEST_REWARD, -LARGEST_REWARD), (LARGEST_REWARD, LARGEST_REWARD))
    assert score(largest) == LARGEST_REWARD / 2
    resampled = bootstrap_mean(task_means(largest), resamples=9)
    figures = (expected_std(largest), standard_error_over_tasks(largest), resampled.se)
    assert all(figure is not None and math.isfinite(figure) for figure in figures)


@given(binary)
def test_pass_at_k_is_the_share_of_seed_subsets_with_a_solved_trial(trials: RewardTable) -> None:
    rates = pass_rates(trials)
    assert rates.pass_at.keys() == rates.pass_hat.keys() == set(range(1, len(trials.seeds) + 1))
    for k in rates.pass_at:
        draws = [draw for row in trials.rows for draw in itertools.combinations(row, k)]
        assert rates.pass_at[k] == pytest.approx(sum(any(draw) for draw in draws) / len(draws))
        assert rates.pass_hat[k] == pytest.approx(sum(all(draw) for draw in draws) / len(draws))


@given(binary)
def test_at_k_of_one_both_are_the_score_and_then_they_part(trials: RewardTable) -> None:
    rates = pass_rates(trials)
    at, hat = list(rates.pass_at.values()), list(rates.pass_hat.values())
    assert at[0] == pytest.approx(score(trials)) == pytest.approx(hat[0]) == pytest.approx(solved_rate(trials))
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(at))
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(hat))


@given(with_gaps)
def test_the_score_lies_between_its_bounds_and_is_the_mean_of_the_seeds(trials: RewardTable) -> None:
    between = bounds(trials)
    assert between.worst == score(trials) <= between.best
    assert between.best - between.worst == pytest.approx(1 - coverage(trials))
    assert mean_std(per_seed_scores(trials)).mean == pytest.approx(score(trials))
    assert solved_rate(trials) <= score(trials) + 1e-12


@given(fractional, st.randoms(use_true_random=False))
def test_expected_std_does_not_depend_on_how_seeds_are_paired(trials: RewardTable, rng: random.Random) -> None:
    shuffled = table(*[tuple(rng.sample(row, len(row))) for row in trials.rows])
    before, after = expected_std(trials), expected_std(shuffled)
    assert before is not None
    assert after == pytest.approx(before)


def test_expected_std_is_the_root_mean_square_over_all_pairings() -> None:
    trials = table((1.0, 0.0, 0.5), (0.0, 0.0, 1.0))
    pairings = [table(first, second) for first, second in itertools.product(*map(itertools.permutations, trials.rows))]
    squares = [(mean_std(per_seed_scores(paired)).std or 0.0) ** 2 for paired in pairings]
    assert expected_std(trials) == pytest.approx(math.sqrt(sum(squares) / len(squares)))


@given(fractional)
def test_population_std_is_the_smaller_by_a_known_factor(trials: RewardTable) -> None:
    scores = per_seed_scores(trials)
    sample, population = mean_std(scores).std, mean_std(scores, population=True).std
    assert sample is not None
    assert population == pytest.approx(sample * math.sqrt((len(scores) - 1) / len(scores)))
