"""Two runs compared, paired by task and seed: by hand, by an independent computation, and by simulation."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from statistics import fmean

import pytest
from compared_runs import PUBLISHED, a_side, drawn, published, single
from hypothesis import given, settings
from hypothesis import strategies as st

from tbench.scores.comparing.compare import Comparison, bonett_price_95, compare, compare_all, difference_interval_95
from tbench.scores.comparing.compared_run import ComparedRun, NothingInCommon

rewards = st.none() | st.sampled_from([0.0, 0.25, 1 / 3, 1.0])


@st.composite
def pairs_of_sides(draw: st.DrawFn) -> tuple[ComparedRun, ComparedRun]:
    tasks, seeds = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    row = st.tuples(*[rewards] * seeds)
    first, second = ({f"t{number}": draw(row) for number in range(tasks)} for _ in "ab")
    return a_side(first, "a"), a_side(second, "b")


# -- the published pair --------------------------------------------------------------------------


def p_by_convolution(differences: list[Fraction]) -> Fraction:
    """Return the permutation p from the exact distribution of the sum, built task by task."""
    distribution = Counter({Fraction(0): Fraction(1)})
    for each in differences:
        after: Counter[Fraction] = Counter()
        for total, chance in distribution.items():
            after[total + each] += chance / 2
            after[total - each] += chance / 2
        distribution = after
    far = abs(sum(differences))
    return sum((chance for total, chance in distribution.items() if abs(total) >= far), Fraction(0))


def test_the_published_pair_differs_as_computed_independently() -> None:
    found = compare(published("Qwen3.5-9B"), published("tmax-9b"))
    lines = [json.loads(line) for line in (PUBLISHED / "trials.jsonl").read_text().splitlines()]
    solved: dict[str, Counter[str]] = {"tmax-9b": Counter(), "Qwen3.5-9B": Counter()}
    for line in lines:
        if line["model"] in solved:
            solved[line["model"]][line["task"]] += int(line["reward"] or 0)
    tasks = sorted({line["task"] for line in lines})
    differences = [Fraction(solved["tmax-9b"][task] - solved["Qwen3.5-9B"][task], 5) for task in tasks]
    mean = sum(differences) / 89
    squared_error = sum((each - mean) ** 2 for each in differences) / 88 / 89
    expected = json.loads((PUBLISHED / "expected.json").read_text())["paired: tmax-9b minus Qwen3.5-9B"]

    assert found.difference == pytest.approx(float(mean), abs=1e-12) == pytest.approx(expected["mean_diff"], abs=5e-7)
    assert found.se == pytest.approx(math.sqrt(squared_error), abs=1e-12)
    assert found.se == pytest.approx(expected["paired_se_over_tasks"], abs=5e-7)
    assert (found.better, found.worse, found.equal) == (24, 8, 57)
    assert found.p == pytest.approx(float(p_by_convolution(differences)), rel=1e-12)
    by_trial = {(line["model"], line["task"], line["seed"]): int(line["reward"] or 0) for line in lines}
    flips = Counter(
        by_trial["tmax-9b", task, seed] - by_trial["Qwen3.5-9B", task, seed] for task in tasks for seed in range(5)
    )
    tail = sum(math.comb(flips[1] + flips[-1], k) for k in range(max(flips[1], flips[-1]), flips[1] + flips[-1] + 1))
    assert found.pairs_p == pytest.approx(2 * tail / 2 ** (flips[1] + flips[-1]), rel=1e-12)
    signs = [Fraction((each > 0) - (each < 0)) for each in differences]
    assert found.sign_p == pytest.approx(float(p_by_convolution(signs)), rel=1e-12)
    assert (round(found.p, 6), round(found.sign_p, 6), round(found.pairs_p, 6)) == (0.030883, 0.007, 0.00155)
    assert (found.test, found.p_way) == ("permutation", "exact")
    assert found.interval_95 == pytest.approx((0.0090, 0.1146), abs=0.002)


def test_single_errors_of_the_published_pair_would_read_as_noise() -> None:
    """Unpaired, the two errors over tasks make 5.59 points."""
    found = compare(published("Qwen3.5-9B"), published("tmax-9b"))
    assert found.se is not None and found.se < math.hypot(0.04267, 0.036068) / 2


def test_three_published_models_have_p_values_adjusted_by_holm() -> None:
    found = compare_all([published(model) for model in ("Qwen3.5-2B", "Qwen3.5-9B", "tmax-9b")])
    assert [(each.first, each.second) for each in found] == [
        ("Qwen3.5-2B", "Qwen3.5-9B"),
        ("Qwen3.5-2B", "tmax-9b"),
        ("Qwen3.5-9B", "tmax-9b"),
    ]
    assert [each.p_holm / each.p for each in found] == pytest.approx([2, 3, 1])


# -- by hand -------------------------------------------------------------------------------------


def test_a_difference_is_the_second_run_less_the_first() -> None:
    found = compare(single([0.0, 0.0, 1.0, 1.0]), single([1.0, 1.0, 1.0, 0.0], "b"))
    assert (found.first_score, found.second_score, found.difference) == (0.5, 0.75, 0.25)
    assert (found.better, found.worse, found.equal) == (2, 1, 1)
    assert (found.test, found.p, found.sign_p, found.pairs_p) == ("mcnemar", 1.0, 1.0, 1.0)
    assert found.se == pytest.approx(math.sqrt(11 / 12 / 4))
    assert found.variance is None


def test_mcnemar_at_a_single_seed_counts_the_flips_alone() -> None:
    found = compare(single([0.0] * 6 + [1.0] * 60), single([1.0] * 66, "b"))
    assert (found.test, found.p) == ("mcnemar", 2 / 64)


def test_fractional_rewards_are_permuted() -> None:
    found = compare(single([0.25, 0.5, 1 / 3]), single([0.5, 1.0, 2 / 3], "b"))
    assert (found.test, found.p) == ("permutation", 0.25)


def test_at_several_seeds_tasks_are_permuted_and_pairs_are_about_these_tasks_alone() -> None:
    first, second = a_side({"x": (0.0,) * 5, "y": (0.0,) * 5}), a_side({"x": (1.0,) * 5, "y": (1.0,) * 5}, "b")
    found = compare(first, second)
    assert (found.test, found.p, found.sign_p, found.pairs_p) == ("permutation", 0.5, 0.5, 2 / 1024)


def test_missing_verdicts_count_as_0_and_bounds_show_their_effect() -> None:
    first = a_side({"x": (1.0, 1.0), "y": (0.0, 0.0), "z": (1.0, None), "w": (None, None)})
    second = a_side({"x": (None, 1.0), "y": (1.0, 0.0), "z": (None, None), "w": (1.0, 1.0)}, "b")
    found = compare(first, second)
    assert (found.first_coverage, found.second_coverage) == (5 / 8, 5 / 8)
    assert found.difference == pytest.approx((-0.5 + 0.5 - 0.5 + 1.0) / 4)
    assert found.worst == pytest.approx((-0.5 + 0.5 - 1.0 + 0.0) / 4)
    assert found.best == pytest.approx((0.0 + 0.5 + 0.5 + 1.0) / 4)
    assert found.scored_only is not None
    assert (found.scored_only.tasks, found.scored_only.difference) == (2, 0.25)
    assert (found.only_first_unscored, found.only_second_unscored, found.both_unscored) == (("w",), ("z",), ())


def test_newly_solved_and_newly_failed_tasks_have_their_rates() -> None:
    first = a_side({"won": (0.0, 0.0), "lost": (1.0, 0.0), "more": (1.0, 0.0), "unknown": (None, None)})
    second = a_side({"won": (1.0, 0.0), "lost": (0.0, 0.5), "more": (1.0, 1.0), "unknown": (1.0, 1.0)}, "b")
    found = compare(first, second)
    assert [(each.task, each.first_rate, each.second_rate) for each in found.newly_solved] == [("won", 0.0, 0.5)]
    assert [(each.task, each.first_rate, each.second_rate) for each in found.newly_failed] == [("lost", 0.5, 0.25)]
    assert [each.task for each in found.changes] == ["unknown", "more", "won", "lost"]


def test_only_common_tasks_and_seeds_are_compared_and_the_others_are_named() -> None:
    first = a_side({"x": (1.0, 0.0, 0.0), "old": (1.0,) * 3, "gone": (0.0,) * 3}, hashes={"old": "1", "gone": "2"})
    second = a_side({"x": (0.0, 1.0), "new": (1.0,) * 2}, "b", first_seed=1, hashes={"new": "1"})
    found = compare(first, second)
    assert (found.tasks, found.seeds, found.paired_by, found.difference) == (1, (1, 2), "seed", 0.5)
    left = found.left_out
    assert (left.only_first, left.only_second, left.renamed) == (("old", "gone"), ("new",), (("old", "new"),))
    assert (left.first_seeds, left.second_seeds) == ((0,), ())
    assert (found.se, found.interval_95, found.p) == (None, None, 1.0)


def test_a_task_of_other_content_is_another_task() -> None:
    first = a_side({"x": (1.0,), "y": (1.0,)}, hashes={"x": "1", "y": "1"})
    second = a_side({"x": (1.0,), "y": (0.0,)}, "b", hashes={"x": "1", "y": "2"})
    found = compare(first, second)
    assert (found.tasks, found.difference, found.left_out.changed) == (1, 0.0, ("y",))


def test_without_a_common_seed_seeds_are_paired_by_position() -> None:
    found = compare(a_side({"x": (1.0, 0.0, 1.0)}), a_side({"x": (0.0, 0.0)}, "b", first_seed=7))
    assert (found.seeds, found.paired_by, found.difference) == ((0, 1), "position", -0.5)
    assert found.left_out.first_seeds == (2,)


@pytest.mark.parametrize(
    ("hashes", "words"),
    [({}, "a and b have no task in common"), ({"x": "2"}, "in common; the content of 1 task has changed")],
)
def test_runs_without_a_common_task_cannot_be_compared(hashes: dict[str, str], words: str) -> None:
    other = "x" if hashes else "z"
    with pytest.raises(NothingInCommon, match=words):
        compare(a_side({"x": (1.0,)}, hashes={"x": "1"}), a_side({other: (1.0,)}, "b", hashes=hashes))


# -- what always holds ---------------------------------------------------------------------------


@settings(max_examples=40)
@given(pairs_of_sides())
def test_the_other_way_round_everything_changes_its_sign(sides: tuple[ComparedRun, ComparedRun]) -> None:
    there, back = compare(*sides), compare(*reversed(sides))
    assert there.difference == -back.difference and (there.better, there.worse) == (back.worse, back.better)
    assert (there.p, there.sign_p, there.pairs_p, there.se) == (back.p, back.sign_p, back.pairs_p, back.se)
    assert (there.worst, there.best) == (-back.best, -back.worst)
    assert {each.task for each in there.newly_solved} == {each.task for each in back.newly_failed}


@settings(max_examples=40)
@given(pairs_of_sides())
def test_bounds_hold_the_difference_and_the_interval_holds_it_nearly_always(
    sides: tuple[ComparedRun, ComparedRun],
) -> None:
    found = compare(*sides)
    assert found.worst <= found.difference <= found.best
    assert found.better + found.worse + found.equal == found.tasks
    assert found.difference == pytest.approx(found.second_score - found.first_score)
    assert 0.0 < found.p <= 1.0 and found.p <= found.p_holm
    if found.interval_95 is not None:
        assert found.interval_95[0] < found.interval_95[1]


@settings(max_examples=40)
@given(pairs_of_sides())
def test_a_comparison_survives_json(sides: tuple[ComparedRun, ComparedRun]) -> None:
    found = compare(*sides)
    assert Comparison.model_validate_json(found.model_dump_json()) == found


def test_equal_runs_differ_by_chance_once_in_20_or_less() -> None:
    """Both tests keep their level where each task has its own chance, which is the same in both runs."""
    rng = random.Random(11)
    over_tasks = over_pairs = 0
    for _ in range(200):
        chances = [rng.betavariate(0.3, 0.5) for _ in range(20)]
        found = compare(drawn(chances, 3, rng), drawn(chances, 3, rng, "b"))
        over_tasks += found.p <= 0.05
        over_pairs += found.pairs_p <= 0.05
    # 10 of 200 are expected at most, and 2.6 standard errors are 8.
    assert max(over_tasks, over_pairs) <= 18


# Intervals of a mean difference: what they promise, also where hardly any task differs.

Draw = Callable[[random.Random], float]


def flips(better: float, worse: float) -> tuple[Draw, float]:
    def draw(rng: random.Random) -> float:
        chance = rng.random()
        return 1.0 if chance < better else -1.0 if chance < better + worse else 0.0

    return draw, better - worse


def of_three_seeds(rng: random.Random) -> float:
    chance = rng.betavariate(0.2, 0.4)
    other = chance if rng.random() < 0.5 else rng.betavariate(0.2, 0.4)
    return sum((rng.random() < other) - (rng.random() < chance) for _ in range(3)) / 3


KINDS: dict[str, tuple[Draw, float]] = {
    "two in a hundred get better": flips(0.02, 0.0),
    "one in ten gets better": flips(0.1, 0.0),
    "some get better and some worse": flips(0.3, 0.1),
    "half of the tasks get better": flips(0.5, 0.0),
    "nearly all flip": flips(0.45, 0.45),
    "nearly all get better": flips(0.95, 0.0),
    "three seeds, hard and easy tasks": (of_three_seeds, 0.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_95_percent_are_kept_whether_tasks_are_few_or_many(kind: str) -> None:
    draw, mean = KINDS[kind]
    rng = random.Random(5)
    for tasks in (2, 3, 5, 8, 15, 29, 89):
        intervals = [bonett_price_95([draw(rng) for _ in range(tasks)]) for _ in range(300)]
        covered = fmean(each.low <= mean <= each.high for each in intervals)
        assert covered >= 0.95 - 2.5 * math.sqrt(0.95 * 0.05 / 300), (tasks, covered)


def test_equal_runs_are_no_certainty() -> None:
    """Of 29 tasks without a difference, up to 1 in 10 might have one (3 / n)."""
    found = difference_interval_95((0.0,) * 29)
    assert found is not None and (found.low, found.high) == pytest.approx((-0.0933, 0.0933), abs=5e-4)


@pytest.mark.parametrize(
    ("differences", "method"),
    [
        ((1.0,) * 10 + (0.0,) * 20, "bootstrap"),
        ((1.0,) * 8 + (0.0,) * 81, "bonett-price"),
        ((1.0,) * 3 + (0.1, 0.0) * 43, "bonett-price"),  # 46 differ, but the variance comes of three
        ((1.0,) * 14 + (0.0,) * 15, "bonett-price"),
        ((5.0, -3.0) * 20, "bootstrap"),
    ],
)
def test_a_bootstrap_needs_tasks_and_some_that_the_variance_comes_of(
    differences: tuple[float, ...], method: str
) -> None:
    found = difference_interval_95(differences)
    assert found is not None and found.method == method and found.low < fmean(differences) < found.high


def test_a_single_task_and_few_tasks_with_large_rewards_have_no_interval() -> None:
    assert difference_interval_95((0.5,)) is None
    assert difference_interval_95((5.0, 0.0, 1.0)) is None


def test_the_published_example_is_near() -> None:
    """Bonett and Price's own interval has the normal quantile; Student's is a little wider."""
    found = bonett_price_95([1.0] * 11 + [-1.0] * 2 + [0.0] * 87)
    shares = (12 / 102, 3 / 102)
    half = 1.959964 * math.sqrt((sum(shares) - (shares[0] - shares[1]) ** 2) / 102)
    assert (found.low, found.high) == pytest.approx((9 / 102 - half, 9 / 102 + half), abs=0.002)
    assert found.high - found.low > 2 * half
