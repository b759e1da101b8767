"""The cost of a run: recomputed with fractions, with every attempt, and with what is not known in words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_trees import FIRST_NIGHT, a_result

from harness.trajectory import Usage
from tbench.results import UNKNOWN_TIME, Timings, TrialResult
from tbench.scores.cost import Cost, Prices, cost_ratio, gpu_seconds, run_cost
from tbench.scores.final_results import FinalResults
from tbench.scores.summarise import KnownAboutRun, summarise

TOKENS = Prices(prompt_price=0.1, cached_price=0.025, completion_price=2.0)


def cost_of(results: Sequence[TrialResult], prices: Prices, seeds: int | None = None) -> Cost:
    tasks = sorted({each.task for each in results})
    planned = range(seeds or 1 + max(each.seed for each in results))
    found = summarise(results, tasks, planned, KnownAboutRun(prices=prices)).cost
    assert found is not None
    return found


def at(begin_sec: float, agent_sec: float, seed: int = 0, **more: Any) -> TrialResult:
    """A solved trial whose agent begins and works at these seconds."""
    timings = Timings(sandbox_sec=2.0, agent_sec=agent_sec, verifier_sec=50.0, wall_sec=agent_sec + 52)
    begun = FIRST_NIGHT + timedelta(seconds=begin_sec - 2)
    return a_result("t", seed, 1.0, begun, timings=timings, **more)


counts = st.integers(0, 10**9)


@given(st.lists(st.tuples(counts, counts, counts, st.booleans()), min_size=1, max_size=20))
def test_the_price_of_tokens_is_exact_and_divided_by_the_solved_trials(
    trials: list[tuple[int, int, int, bool]],
) -> None:
    results, whole = [], Fraction()
    for seed, (fresh, cached, completion, is_solved) in enumerate(trials):
        usage = Usage(prompt_tokens=fresh + cached + 1, completion_tokens=completion, cached_tokens=cached)
        results.append(a_result("t", seed, float(is_solved), usage=usage))
        whole += (fresh + 1) * Fraction(1, 10) + cached * Fraction(25, 1000) + completion * 2
    found, solved = cost_of(results, TOKENS), sum(is_solved for *_, is_solved in trials)
    assert found.amount == float(whole / 10**6) and found.unknown == () and found.solved == solved
    assert found.per_solved == (float(whole / 10**6 / solved) if solved else None)


def test_seconds_that_trials_share_count_once() -> None:
    rng = random.Random(5)
    spans = [(rng.randrange(400), rng.randrange(1, 30)) for _ in range(60)]
    busy = {second for begin, length in spans for second in range(begin, begin + length)}
    results = [at(begin, length, seed) for seed, (begin, length) in enumerate(spans)]
    found = cost_of(results, Prices(hour_price=12.3, gpus=8))
    assert found.busy_sec == len(busy) and found.gpu_sec == 8 * len(busy)
    assert found.amount == float(Fraction(len(busy), 3600) * Fraction("12.3"))
    assert found.gpu_sec_per_solved == float(Fraction(8 * len(busy), 60))
    shares = gpu_seconds(results, 8)
    assert sum(shares.values()) == pytest.approx(8 * len(busy))
    beside = {seed: range(begin, begin + length) for seed, (begin, length) in enumerate(spans)}
    own = sum(Fraction(8, sum(second in other for other in beside.values())) for second in beside[7])
    assert shares["t", 7, 1] == pytest.approx(float(own))


def test_gpus_alone_give_seconds_and_no_money() -> None:
    found = cost_of([at(0, 10)], Prices(gpus=4))
    assert (found.amount, found.per_solved, found.gpu_sec) == (None, None, 40.0)
    assert found.line == "cost: 40 GPU-seconds; 40 GPU-seconds per solved trial"


def test_attempts_that_were_replaced_cost_as_much_as_others_and_a_regraded_one_costs_once() -> None:
    lost = at(0, 10, attempt=1, final=False)
    verified_before = at(100, 10, attempt=2, final=False)
    last = at(100, 10, attempt=2)
    found = cost_of([lost, verified_before, last], TOKENS._replace(hour_price=3600.0, cached_price=None))
    tokens = 2 * (7000 * Fraction(1, 10) + 500 * 2) / 10**6
    assert found.amount == float(20 + tokens) == found.per_solved


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([a_result("t", 0, 1.0, usage=Usage(prompt_tokens=5, uncounted=3))], "3 replies without token counts"),
        ([a_result("t", 0, 1.0, usage=Usage())], "tokens of 1 attempt"),
        ([a_result("t", 0, 1.0, attempt=3)], "2 attempts without a result"),
        ([a_result("t", 0, 1.0, timings=Timings(waited_sec=2.5, agent_sec=9))], "failed requests of 1 attempt"),
    ],
)
def test_what_is_not_known_is_named_and_the_rest_is_a_lower_bound(results: list[TrialResult], words: str) -> None:
    found = cost_of(results, TOKENS._replace(cached_price=None))
    assert len(found.unknown) == 1 and found.unknown[0].startswith(words)
    assert found.line.startswith("cost: at least ") and words in found.line


def test_trials_without_a_result_and_times_that_nobody_wrote_down_are_named() -> None:
    found = cost_of([a_result("t", 0, 1.0, UNKNOWN_TIME)], Prices(hour_price=1.0), seeds=3)
    assert found.unknown == ("2 trials without a result", "seconds of 1 attempt")


def test_cached_tokens_that_are_unknown_have_the_full_price_in_words() -> None:
    found = cost_of([a_result("t", 0, 1.0)], TOKENS)
    assert found.amount == float((7000 * Fraction(1, 10) + 1000) / 10**6)
    assert found.line.startswith("cost: at most ") and "cached tokens of 1 attempt are unknown" in found.line


def test_there_is_no_cost_without_prices_or_without_a_model() -> None:
    assert run_cost(FinalResults([at(0, 1)]), Prices(), solved=1, missing=0) is None
    oracle = FinalResults([at(0, 1, agent="oracle")])
    assert run_cost(oracle, TOKENS, solved=1, missing=0) is None


def test_a_ratio_is_of_costs_per_solved_trial_that_are_wholly_known() -> None:
    one, twice = cost_of([at(0, 10)], Prices(gpus=1)), cost_of([at(0, 20)], Prices(gpus=1))
    assert cost_ratio(one, twice) == 2.0 and cost_ratio(twice, one) == 0.5
    other_money = twice.model_copy(update={"currency": "EUR"})
    part = twice.model_copy(update={"unknown": ("something",)})
    assert [cost_ratio(one, each) for each in (None, other_money, part)] == [None] * 3
