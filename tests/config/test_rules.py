"""Which rules of its leaderboard a run breaks, and that a run without a leaderboard breaks none."""

from __future__ import annotations

from typing import Any

import pytest
from run_plans import a_plan

from tbench.config.document import PlannedTask, RunDocument
from tbench.config.rules import broken_rules, describe_overrides
from tbench.config.settings import RunConfig
from tbench.origin import DatasetOrigin

NAMES = ("alpha", "beta")


def broken(*, names: tuple[str, ...] = NAMES, seeds: int = 5, invalid: str | None = None, **known: Any) -> str:
    of_dataset = {name: known.pop(name) for name in DatasetOrigin.model_fields.keys() & known.keys()}
    origin = DatasetOrigin(**({"name": "tb", "source": "tbench", "tasks": 2, "trials_per_task": 5} | of_dataset))
    tasks = tuple(PlannedTask(name=name, invalid=invalid) for name in names)
    plan = a_plan(seeds=tuple(range(seeds)), **known)
    return "; ".join(broken_rules(RunDocument(**dict(plan), dataset=origin, tasks=tasks)))


def test_a_run_by_the_rules_breaks_none_and_one_without_a_leaderboard_has_none() -> None:
    assert broken() == broken(seeds=8, concurrency=9) == ""
    assert broken(seeds=1, trials_per_task=None) == ""
    assert broken_rules(RunDocument(**dict(a_plan()), tasks=())) == ()


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"seeds": 1}, "1 trial per task instead of 5"),
        ({"seeds": 4}, "4 trials per task instead of 5"),
        ({"names": ("alpha",)}, "1 of 2 tasks"),
        ({"invalid": "no test.sh"}, "unreadable tasks: alpha, beta"),
        ({"differing": ("beta",), "compared": 2}, "changed tasks: beta"),
        ({"commit": "b" * 40, "listed_commit": "a" * 40}, f"tasks not from the listed commit {'a' * 12}"),
        ({"commit": "a" * 40, "listed_commit": "a" * 40}, ""),
        ({"network": "none"}, "container settings changed: --network none"),
        ({"block_host": True, "cap_add": ("SYS_PTRACE",)}, "container settings changed: --block-host, --cap-add"),
        ({"verify": "isolated"}, "verifier not in the agent's container: --verify isolated"),
        ({"verify": "both"}, ""),
    ],
)
def test_each_rule_that_is_broken_has_its_words(known: dict[str, Any], words: str) -> None:
    assert broken(**known).startswith(words) and bool(broken(**known)) == bool(words)


# Overrides in words: what a reader of a score is told of them.


def words(**overrides: Any) -> tuple[str, ...]:
    return describe_overrides(RunConfig.model_validate({"overrides": overrides}))


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
        ({"resume_trajectory": True}, ("one conversation over all steps of a task",)),
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
    assert overrides.timeout_factors == {"agent": 2, "verifier": 2, "build": 3, "healthcheck": 2}
