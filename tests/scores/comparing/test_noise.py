"""Number of seeds to detect a difference: against known formulas, and by simulation of the deciding tests."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from statistics import NormalDist

import pytest
from compared_runs import a_side, drawn, published

from tbench.scores.comparing.compare import VarianceParts, compare, variance_parts
from tbench.scores.comparing.exact_tests import sign_flip_test
from tbench.scores.comparing.noise import (
    MAX_SEEDS,
    PowerPlan,
    TaskScope,
    plan_from_one_run,
    pool_runs,
    task_solve_rates,
    wilson_95,
)

# Tasks that are solved sometimes.


def test_a_task_is_flaky_where_some_of_its_verdicts_are_solved_and_some_are_not() -> None:
    found = task_solve_rates(
        [a_side({"a": (1.0, 0.0, 0.0), "b": (1.0, 1.0, None), "c": (None,) * 3, "d": (0.5, 1.0, 1.0)})]
    )
    assert {each.task: each.is_flaky for each in found} == {"a": True, "b": False, "c": False, "d": True}
    by_task = {each.task: each for each in found}
    assert (by_task["b"].solved, by_task["b"].scored, by_task["b"].unscored) == (2, 2, 1)
    assert (by_task["c"].rate, by_task["c"].interval_95) == (None, None)


def test_runs_are_pooled_task_by_task_and_other_content_is_counted_apart() -> None:
    one = a_side({"a": (1.0, 1.0), "b": (0.0, 0.0)}, hashes={"b": "1"})
    two = a_side({"a": (0.0, 0.0), "b": (1.0, 1.0)}, "b", hashes={"b": "2"})
    found = task_solve_rates([one, two])
    assert [(each.task, each.hash, each.solved, each.scored) for each in found if each.is_flaky] == [("a", None, 2, 4)]
    assert len(found) == 3


def test_the_published_flaky_tasks_are_those_between_none_and_all() -> None:
    """The histogram of the published file: 12, 1, 1 and 6 tasks at 1 to 4 of 5."""
    found = [each for each in task_solve_rates([published("tmax-9b")]) if each.rate is not None]
    assert sum(0 < each.solved < 5 for each in found) == 20
    assert found[0].rate in (0.4, 0.6)


@pytest.mark.parametrize(
    ("solved", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (1, 5, 0.0362, 0.6245)],
)
def test_wilson_intervals_are_as_tabled(solved: int, trials: int, low: float, high: float) -> None:
    assert wilson_95(solved, trials) == pytest.approx((low, high), abs=5e-5)


def plan(within: float, between: float, tasks: int = 89) -> PowerPlan:
    return PowerPlan(parts=VarianceParts(tasks=tasks, seeds=5, within=within, between=between), is_pair=True)


def test_without_differences_between_tasks_it_is_the_textbook_formula() -> None:
    """n = ((z_a + z_b) / d)^2 W pairs, for a difference that is small beside the noise."""
    seeds = plan(0.2, 0.0).seeds_for(0.01, 0.8, "these tasks")
    z = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)
    assert seeds == pytest.approx(z**2 * 0.2 / 0.01**2 / 89, rel=0.02)


def test_no_number_of_seeds_helps_where_tasks_differ_too_much_but_more_tasks_do() -> None:
    found = plan(0.1, 0.04)
    assert found.seeds_for(0.03, 0.8, "other tasks") is None
    assert not found.detects(0.03, 0.8, MAX_SEEDS, "other tasks")
    needed = found.tasks_for(0.03, 0.8, MAX_SEEDS)
    assert needed is not None and found.detects(0.03, 0.8, MAX_SEEDS, "other tasks", needed)
    assert not found.detects(0.03, 0.8, MAX_SEEDS, "other tasks", needed - 1)
    assert found.seeds_for(0.03, 0.8, "these tasks") is not None


@pytest.mark.parametrize("where", ["these tasks", "other tasks"])
def test_more_seeds_see_smaller_differences(where: TaskScope) -> None:
    found = plan(0.1, 0.01)
    seen = [found.detectable_difference(seeds, 0.8, where) or math.inf for seeds in (1, 2, 5, 50)]
    assert seen == sorted(seen, reverse=True)
    assert found.seeds_for(seen[2] + 1e-9, 0.8, where) == 5


def test_the_parts_of_the_published_pair() -> None:
    found = compare(published("Qwen3.5-9B"), published("tmax-9b")).variance
    assert found is not None and found.share_within == pytest.approx(0.344, abs=5e-4)
    assert found.se() == pytest.approx(0.026817, abs=5e-7)
    assert PowerPlan(parts=found, is_pair=True).seeds_for(0.03, 0.8, "other tasks") is None


def test_variance_parts_are_estimated_without_bias() -> None:
    """Drawn with a variance of 0.16 within tasks (two of 0.08), and of 0.04 between them."""
    rng = random.Random(2)
    found = []
    for _ in range(60):
        shift = [rng.choice((-0.2, 0.2)) for _ in range(40)]
        rows = [[rng.gauss(each, 0.4) for _ in range(3)] for each in shift]
        parts = variance_parts(rows)
        assert parts is not None
        found.append((parts.within, parts.between))
    assert sum(each for each, _ in found) / 60 == pytest.approx(0.16, abs=0.01)
    assert sum(each for _, each in found) / 60 == pytest.approx(0.04, abs=0.008)


def test_one_run_predicts_the_noise_of_two_like_it() -> None:
    run = a_side({"x": (1.0, 0.0), "y": (1.0, 1.0), "z": (None, 0.0)})
    found = plan_from_one_run(run.table)
    assert (found.parts.within, found.is_pair, found.is_bound) == (pytest.approx(2 * 0.5 / 3), False, False)
    single = plan_from_one_run(a_side({"x": (1.0,), "y": (0.0,)}).table)
    assert (single.parts.within, single.is_bound) == (0.5, True)


def test_runs_of_one_configuration_are_pooled_over_their_common_tasks() -> None:
    first = a_side({"x": (1.0,), "y": (0.0,), "z": (0.0,)}, "a", hashes={"x": "1", "z": "1"})
    second = a_side({"x": (0.0,), "y": (0.0,), "z": (1.0,)}, "b", hashes={"x": "1", "z": "2"})
    found = pool_runs([first, second])
    assert (found.table.tasks, found.table.rows) == (("x", "y"), ((1.0, 0.0), (0.0, 0.0)))
    assert (found.table.seeds, found.name) == ((0, 1), "a + b")


# -- the promise, kept ---------------------------------------------------------------------------


def true_parts(chances: list[tuple[float, float]]) -> tuple[float, PowerPlan]:
    differences = [b - a for a, b in chances]
    mean = sum(differences) / len(chances)
    within = sum(a * (1 - a) + b * (1 - b) for a, b in chances) / len(chances)
    between = sum((each - mean) ** 2 for each in differences) / len(chances)
    return mean, plan(within, between, len(chances))


def p_of_a_simulated_pair(
    chances: list[tuple[float, float]], seeds: int, where: TaskScope, rng: random.Random
) -> float:
    """Return p of the deciding test, as computed by `compare`."""
    rows = [[(rng.random() < b) - (rng.random() < a) for _ in range(seeds)] for a, b in chances]
    if where == "these tasks":
        return sign_flip_test(Fraction(each) for row in rows for each in row).p
    return sign_flip_test(Fraction(sum(row)) for row in rows).p


def shifted(count: int, gain: float, lost: float, rng: random.Random) -> list[tuple[float, float]]:
    """Return tasks, mostly hard or easy, some of which get better and some worse."""
    found = []
    for _ in range(count):
        chance = rng.betavariate(0.4, 0.6)
        change = rng.random()
        other = rng.betavariate(2, 1) if change < gain else rng.betavariate(1, 3) if change < gain + lost else chance
        found.append((chance, other))
    return found


def promise_is_kept(seen: list[bool], power: float) -> bool:
    """Within three standard errors of the draws."""
    return sum(seen) / len(seen) >= power - 3 * math.sqrt(power * (1 - power) / len(seen))


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.8, 0.9])
def test_the_promised_power_over_the_same_tasks_is_met(power: float) -> None:
    rng = random.Random(17)
    chances = shifted(40, 0.3, 0.0, rng)
    difference, known = true_parts(chances)
    seeds = known.seeds_for(difference, power, "these tasks")
    assert seeds is not None and seeds > 1
    seen = [p_of_a_simulated_pair(chances, seeds, "these tasks", rng) <= 0.05 for _ in range(300)]
    assert promise_is_kept(seen, power), (seeds, sum(seen))


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.8, 0.9])
@pytest.mark.parametrize("seeds", [1, 3])
def test_the_promised_power_over_other_tasks_is_met(seeds: int, power: float) -> None:
    rng = random.Random(17)
    kind = shifted(4000, 0.2, 0.02, rng)
    difference, known = true_parts(kind)
    tasks = known.tasks_for(difference, power, seeds)
    assert tasks is not None and tasks < 2000
    seen = [p_of_a_simulated_pair(rng.choices(kind, k=tasks), seeds, "other tasks", rng) <= 0.05 for _ in range(300)]
    assert promise_is_kept(seen, power), (tasks, sum(seen))


def test_the_simulation_uses_the_same_test_as_compare() -> None:
    rng = random.Random(4)
    first, second = drawn([0.4] * 9, 4, rng), drawn([0.7] * 9, 4, rng, "b")
    rows = [
        [Fraction(int((b or 0) - (a or 0))) for a, b in zip(old, new, strict=True)]
        for old, new in zip(first.table.rows, second.table.rows, strict=True)
    ]
    found = compare(first, second)
    assert found.p == sign_flip_test(map(sum, rows)).p
    assert found.pairs_p == sign_flip_test(each for row in rows for each in row).p
