"""The step score against its definition, written out the slow way; the shell splitting against shlex itself."""

from __future__ import annotations

import math
import random
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tbench.proxies.replay.scoring.metric import StepScore, normalise, score_units, split_shell, tokens_of

# -- as the definition reads ---------------------------------------------------------------------


def plain_tokens(unit: str) -> list[str]:
    text = unit.strip().lower()
    if text == "<wait>":
        return [text]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def plain_sim(left: str, right: str) -> float:
    a, b = Counter(plain_tokens(left)), Counter(plain_tokens(right))
    overlap = (a & b).total()
    if not overlap:
        return 1.0 if not a and not b else 0.0
    p, r = overlap / a.total(), overlap / b.total()
    return 2 * p * r / (p + r)


def plain_score(predicted: list[str], reference: list[str]) -> StepScore:
    predicted = [re.sub(r"\s+", " ", unit.strip()) or "<WAIT>" for unit in predicted]
    reference = [re.sub(r"\s+", " ", unit.strip()) or "<WAIT>" for unit in reference]
    if not predicted or not reference:
        return StepScore(0.0, 0.0, 0.0, 0.0)
    first = float(predicted[0].lower() == reference[0].lower())
    p = math.fsum(max(plain_sim(unit, other) for other in reference) for unit in predicted) / len(predicted)
    r = math.fsum(max(plain_sim(unit, other) for other in predicted) for unit in reference) / len(reference)
    return StepScore(first, p, r, 2 * p * r / (p + r) if p + r else 0.0)


SHELL = " \t\r\n'\"\\ab#éİ\x1c\u2028;|$"
WORDS = ["ls", "LS", "-la", "cat", "x", "=", "=", "'a b'", "'a", '"b"', '"', "\\", "\\ ", "#", "<WAIT>", "''", "İ", "é"]
UNIT = st.lists(st.sampled_from([*WORDS, "  ", "\t", "\N{NO-BREAK SPACE}", "\x1c"]), max_size=6).map(" ".join)
UNITS = st.lists(UNIT, max_size=7)


@given(UNITS, UNITS)
@example(["<wait>"], [" "])
def test_scores_are_those_of_the_definition(predicted: list[str], reference: list[str]) -> None:
    assert score_units(predicted, reference) == plain_score(predicted, reference)


@given(st.text(alphabet=SHELL, max_size=12), st.text(alphabet=SHELL, max_size=12))
def test_scores_of_odd_text_are_those_of_the_definition(one: str, other: str) -> None:
    assert score_units([one], [other, one + " x"]) == plain_score([one], [other, one + " x"])


# -- tokens --------------------------------------------------------------------------------------


@given(st.text(alphabet=SHELL, max_size=14))
@example("a\\\nb")
@example("\"a\\x\\\"\\\\'b\"''")
def test_text_is_split_as_shlex_splits_it(text: str) -> None:
    try:
        expected = shlex.split(text)
    except ValueError:
        with pytest.raises(ValueError, match="no closing quotation"):
            split_shell(text)
    else:
        assert split_shell(text) == expected


@given(st.text(alphabet=SHELL, max_size=14) | UNIT)
def test_tokens_of_a_normalised_unit_are_those_of_shlex_or_of_whitespace(text: str) -> None:
    unit = normalise(text)
    counted, length = tokens_of(unit)
    assert Counter(dict(counted)) == Counter(plain_tokens(unit))
    assert length == len(plain_tokens(unit)) > 0


EVERY = "".join(map(chr, range(sys.maxunicode + 1)))


def test_no_character_becomes_whitespace_or_a_quote_by_being_lowered() -> None:
    """What lets units without quoting be split at blanks."""
    odd = re.compile(r"""[\s'"\\]""")
    assert len(odd.findall(EVERY.lower())) == len(odd.findall(EVERY))


def test_whitespace_is_the_same_for_normalising_by_split_and_by_expression() -> None:
    assert "".join(EVERY.split()) == re.sub(r"\s", "", EVERY)


# -- what the numbers do -------------------------------------------------------------------------


@pytest.mark.parametrize(("revision", "both_empty"), [("v0", 1.0), ("v1", 0.0), ("v2", 0.0)])
def test_nothing_for_nothing_scores_by_revision(revision: str, both_empty: float) -> None:
    assert score_units([], [], revision) == StepScore(*[both_empty] * 4)  # type: ignore[arg-type]
    assert score_units(["ls"], [], revision) == score_units([], ["ls"], revision) == StepScore(0.0, 0.0, 0.0, 0.0)  # type: ignore[arg-type]


def test_repeating_a_right_command_costs_no_precision() -> None:
    assert score_units(["ls", "ls", "ls"], ["ls", "pwd"]) == StepScore(1.0, 1.0, 0.5, 2 / 3)


def test_only_the_first_command_and_its_words_count_for_the_first_exact() -> None:
    assert score_units(["LS  -la", "x"], ["ls -la"]).first_exact == 1.0
    assert score_units(["x", "ls -la"], ["ls -la"]).first_exact == 0.0


def test_what_is_stored_has_four_digits() -> None:
    score = score_units(["ls -la /app/"], ["ls -la", "cat a b"])
    assert score.rounded == StepScore(0.0, 0.8, 0.4, 0.5333)


def test_scoring_is_many_times_faster_than_the_definition() -> None:
    """On 38 units either side, no two alike; some three hundred times.

    The least CPU time of several tries counts: a collection of other tests' garbage may fall into any one of them.
    """
    rng = random.Random(5)
    shapes = ("{} = {}", "for {} in {}:", "print('{}', {})", "if not {}.{}:", 'return {}[{}] + "x"', "cat {} {}")

    def units() -> list[str]:
        return [rng.choice(shapes).format(rng.randrange(300), rng.randrange(300)) for _ in range(38)]

    def seconds_per_step(score: Callable[[list[str], list[str]], StepScore], count: int) -> float:
        steps = [(units(), units()) for _ in range(count)]
        started = time.process_time()
        for predicted, reference in steps:
            score(predicted, reference)
        return (time.process_time() - started) / count

    least = min(seconds_per_step(score_units, 12) for _ in range(5))
    assert min(seconds_per_step(plain_score, 1) for _ in range(2)) > 30 * least
