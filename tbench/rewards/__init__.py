"""Reward functions for reinforcement learning, in the signature that TRL's GRPOTrainer calls; torch is not needed.

Importing this is cheap. `tbench.rewards.executed`, which runs live trials, has to be imported by itself.
"""

from __future__ import annotations

from tbench.rewards.texts import (
    VERBS,
    RewardFunction,
    combine,
    combined,
    conciseness,
    execution_relevance,
    formatting,
    group_advantages,
    has_strict_form,
    make_conciseness,
    make_execution_relevance,
)

__all__ = [
    "VERBS",
    "RewardFunction",
    "combine",
    "combined",
    "conciseness",
    "execution_relevance",
    "formatting",
    "group_advantages",
    "has_strict_form",
    "make_conciseness",
    "make_execution_relevance",
]
