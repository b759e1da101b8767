"""Reward functions for reinforcement learning, with the signature of TRL's GRPOTrainer; they do not need torch.

Importing this is cheap. `tbench.rewards.executed`, which runs live trials, must be imported separately.
"""

from __future__ import annotations

from tbench.rewards.reward_functions import (
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
