"""The text about limits in run.json: of one engine, of several, of shards, and of a run that was resumed."""

from __future__ import annotations

from typing import Any

import pytest

from tbench.config.limits_in_force import lacking_limits

HELD = {"memory": "in force", "cpus": "in force"}
LACKING = {"memory": "not in force", "pids": "not in force", "cpus": "cannot be seen", "swap": "in force"}
WORDS = "memory, pids not in force; cpus cannot be seen"


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({}, ()),
        ({"limits": HELD}, ()),
        ({"limits": LACKING}, (WORDS,)),
        ({"machines": [{"name": "a", "limits": HELD}, {"name": "b", "limits": LACKING}]}, (f"b: {WORDS}",)),
        ({"shards": [{"limits": LACKING}, {"limits": LACKING}, {"limits": HELD}]}, (WORDS,)),
        ({"limits": HELD, "earlier_limits": [WORDS]}, (WORDS,)),
        ({"limits": LACKING, "earlier_limits": [WORDS]}, (WORDS,)),
        ({"limits": {**HELD, "disk": "not in force"}}, ()),
    ],
)
def test_every_machine_whose_limits_do_not_hold_is_named_once(engine: dict[str, Any], words: tuple[str, ...]) -> None:
    assert lacking_limits(engine) == words


def test_a_disk_without_a_limit_is_told_to_whoever_asks() -> None:
    assert lacking_limits({"limits": {**HELD, "disk": "not in force"}}, disk=True) == ("disk not in force",)
