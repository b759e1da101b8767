"""Advantages of GRPO: how much better a completion is than the others of its prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev, stdev

from tbench.reward import canonical

GROUP_SIZE = 4


def group_advantages(
    rewards: Sequence[float], group_size: int = GROUP_SIZE, *, ddof: int = 1, eps: float = 1e-8
) -> list[float]:
    """Advantages A_i = (R_i - mean R) / (std R + eps) within each group of `group_size` successive rewards.

    std divides by n - ddof: 1 as TRL's (torch's default), or 0. Where all rewards of a group are equal, and in a
    group of one, every advantage is 0. Raises ValueError for a size that does not divide the number of rewards, a
    reward that is not a finite number, and another ddof.
    """
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, not {ddof}")
    if group_size < 1 or len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards cannot be split into groups of {group_size}")
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError("a reward is not a finite number: there is no advantage over it")
    advantages: list[float] = []
    for start in range(0, len(rewards), group_size):
        advantages += _advantages(rewards[start : start + group_size], ddof, eps)
    return advantages


def _advantages(group: Sequence[float], ddof: int, eps: float) -> list[float]:
    if len(set(map(canonical, group))) == 1:  # not left to arithmetic: a rounding error over eps is no longer small
        return [0.0] * len(group)
    mean, std = fmean(group), (stdev if ddof else pstdev)(group)
    return [(reward - mean) / (std + eps) for reward in group]
