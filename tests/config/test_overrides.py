"""Overrides in words: what a reader of a score is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from tbench.config.overrides import override_words, timeout_factors
from tbench.config.settings import RunConfig


def words(**overrides: Any) -> tuple[str, ...]:
    return override_words(RunConfig.model_validate({"overrides": overrides}))


def test_a_run_that_takes_tasks_as_they_are_has_nothing_to_say() -> None:
    assert words() == words(agent_timeout_multiplier=1, timeout_multiplier=1) == ()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"timeout_multiplier": 2}, ("every timeout x2",)),
        ({"agent_timeout_multiplier": 1.5}, ("agent timeout x1.5",)),
        (
            {"timeout_multiplier": 2, "agent_timeout_multiplier": 1},
            ("verifier timeout x2", "build timeout x2", "healthcheck timeout x2"),
        ),
        ({"cpus": 4}, ("4 cpus instead of each task's",)),
        (
            {"cpus": 0.5, "memory_mb": 8192},
            ("0.5 cpus instead of each task's", "8192 MB of memory instead of each task's"),
        ),
    ],
)
def test_each_override_is_said_in_a_few_words(overrides: dict[str, Any], said: tuple[str, ...]) -> None:
    assert words(**overrides) == said


def test_a_factor_of_its_own_wins_over_that_of_all_timeouts() -> None:
    overrides = RunConfig.model_validate(
        {"overrides": {"timeout_multiplier": 2, "build_timeout_multiplier": 3}}
    ).overrides
    assert timeout_factors(overrides) == {"agent": 2, "verifier": 2, "build": 3, "healthcheck": 2}
