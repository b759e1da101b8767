"""Compares the commands of a reply with those of the reference: precision, recall and F1 of one step.

Units are lines of commands. sim(a, b) is the F1 of their multisets of shell tokens; precision is the mean over
predicted units of the best sim with any reference unit, recall the mean over reference units of the best sim with any
predicted one (TB2-lite's replay_metrics.py). The results are exact: only pairs without a common token are left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tbench.proxies.datasets.records import WAIT
from tbench.proxies.replay.scoring.parser import DEFAULT_REVISION, Revision

_BLANKS = " \t\r\n"
# Blanks, or a word: plain text, what is in quotes, single escaped characters. Possessive, so that it stays linear.
_PIECE = re.compile(r"""[ \t\r\n]+|(?:[^ \t\r\n'"\\]++|'[^']*+'|"(?:[^"\\]++|\\.)*+"|\\.)++""", re.DOTALL)
_QUOTING = re.compile(r"""['"\\]""")
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]++|\\.)*+)"|\\(.)""", re.DOTALL)
_ESCAPE_IN_QUOTES = re.compile(r'\\(["\\])')

Tokens = tuple[tuple[tuple[str, int], ...], int]
"""Distinct tokens with their counts, and the number of all tokens."""


@dataclass(frozen=True, slots=True)
class StepScore:
    """The score of one step, in fractions; `rounded` is what is stored and averaged."""

    first_exact: float
    precision: float
    recall: float
    f1: float

    @property
    def rounded(self) -> StepScore:
        """The score rounded to 4 digits, with first_exact as it is."""
        return StepScore(self.first_exact, round(self.precision, 4), round(self.recall, 4), round(self.f1, 4))


_NOTHING, _EVERYTHING = StepScore(0.0, 0.0, 0.0, 0.0), StepScore(1.0, 1.0, 1.0, 1.0)


def score_units(predicted: Sequence[str], reference: Sequence[str], revision: Revision = DEFAULT_REVISION) -> StepScore:
    """The score of one step, unrounded. Where both sides are empty it is 1 in v0, 0 since."""
    if not predicted or not reference:
        return _EVERYTHING if revision == "v0" and not predicted and not reference else _NOTHING
    predicted, reference = [normalise(unit) for unit in predicted], [normalise(unit) for unit in reference]
    best_predicted, best_reference = _best_matches(set(predicted), set(reference))
    precision = _mean([best_predicted[unit] for unit in predicted])
    recall = _mean([best_reference[unit] for unit in reference])
    first = float(predicted[0].lower() == reference[0].lower())
    return StepScore(first, precision, recall, _harmonic(precision, recall))


def normalise(unit: str) -> str:
    """The unit stripped, with one blank for each run of white space; WAIT where nothing is left."""
    return " ".join(unit.split()) or WAIT


def split_shell(text: str) -> list[str]:
    """The words that shlex.split(text) finds (POSIX, comments off), many times faster. Raises ValueError as it does."""
    pieces = _PIECE.findall(text)
    if sum(map(len, pieces)) != len(text):  # something was passed over: an open quote, a backslash at the end
        raise ValueError("no closing quotation or escaped character")
    return [_unquoted(piece) for piece in pieces if piece[0] not in _BLANKS]


def _unquoted(word: str) -> str:
    if "\\" not in word:
        if '"' not in word:
            return word.replace("'", "")
        if "'" not in word:
            return word.replace('"', "")
    return _QUOTED.sub(_content, word)


def _content(found: re.Match[str]) -> str:
    single, double, escaped = found.groups()
    if double is None:
        return str(single if escaped is None else escaped)
    # Within double quotes a backslash only escapes the quote and itself.
    return _ESCAPE_IN_QUOTES.sub(r"\1", double)


@lru_cache(maxsize=1 << 16)
def tokens_of(unit: str) -> Tokens:
    """The tokens of a normalised unit, of which there is at least one."""
    text = unit.lower()
    if text == WAIT.lower():
        words = [text]
    elif _QUOTING.search(text) is None:
        words = text.split()  # only blanks are left of its whitespace, and nothing joins words over them
    else:
        try:
            words = split_shell(text)
        except ValueError:
            words = text.split()
    if len(set(words)) == len(words):
        return tuple([(word, 1) for word in words]), len(words)
    return tuple(Counter(words).items()), len(words)


def _best_matches(predicted: set[str], reference: set[str]) -> tuple[dict[str, float], dict[str, float]]:
    """The best sim of each unit with any of the other side. Only pairs that share a token are compared."""
    units = list(reference)
    lengths, where = _index(units)
    best_reference = [0.0] * len(units)
    best_predicted: dict[str, float] = {}
    for unit in predicted:
        counted, length = tokens_of(unit)
        best = 0.0
        for at, overlap in _overlaps(counted, where).items():
            # _harmonic, written out: this line is most of the work.
            p, r = overlap / length, overlap / lengths[at]
            sim = 2 * p * r / (p + r)
            if sim > best:
                best = sim
            if sim > best_reference[at]:
                best_reference[at] = sim
        best_predicted[unit] = best
    return best_predicted, dict(zip(units, best_reference, strict=True))


def _index(units: Sequence[str]) -> tuple[list[int], dict[str, list[tuple[int, int]]]]:
    """The units' lengths in tokens, and for each token the places of the units that have it, with its count there."""
    lengths: list[int] = []
    where: dict[str, list[tuple[int, int]]] = {}
    for at, unit in enumerate(units):
        counted, length = tokens_of(unit)
        lengths.append(length)
        for token, count in counted:
            where.setdefault(token, []).append((at, count))
    return lengths, where


def _overlaps(counted: tuple[tuple[str, int], ...], where: dict[str, list[tuple[int, int]]]) -> dict[int, int]:
    """The size of the multiset intersection by place of each unit that has a token in common."""
    overlaps: dict[int, int] = {}
    for token, count in counted:
        for at, others_count in where.get(token, ()):
            shared = count if count < others_count else others_count
            overlaps[at] = overlaps[at] + shared if at in overlaps else shared
    return overlaps


def _harmonic(p: float, r: float) -> float:
    return 2 * p * r / (p + r) if p + r else 0.0


def _mean(values: Sequence[float]) -> float:
    # The correctly rounded sum: the same on every Python, and that of upstream's (sum() since 3.12 compensates).
    return math.fsum(values) / len(values)
