"""The metric as its definition reads: every pair of units, shlex for every token list. Slow, and plainly right."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence


def tokens(unit: str) -> list[str]:
    text = unit.strip().lower()
    if text == "<wait>":
        return [text]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def sim(left: str, right: str) -> float:
    a, b = Counter(tokens(left)), Counter(tokens(right))
    overlap = (a & b).total()
    if not overlap:
        return 1.0 if not a and not b else 0.0
    p, r = overlap / a.total(), overlap / b.total()
    return 2 * p * r / (p + r)


def scores(predicted: Sequence[str], reference: Sequence[str]) -> tuple[float, float, float, float]:
    predicted = [re.sub(r"\s+", " ", unit.strip()) or "<WAIT>" for unit in predicted]
    reference = [re.sub(r"\s+", " ", unit.strip()) or "<WAIT>" for unit in reference]
    if not predicted or not reference:
        return 0.0, 0.0, 0.0, 0.0
    first = float(predicted[0].lower() == reference[0].lower())
    precision = math.fsum(max(sim(p, r) for r in reference) for p in predicted) / len(predicted)
    recall = math.fsum(max(sim(r, p) for p in predicted) for r in reference) / len(reference)
    return first, precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0
