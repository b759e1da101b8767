"""model: the seeds of requests, of which every trial has its own."""

from __future__ import annotations

import hashlib
import random

from hypothesis import given
from hypothesis import strategies as st

from harness.model import Seeds, hashed_seed

NAMES = [f"task-{number}" for number in range(6)]


def test_the_hash_is_the_documented_one() -> None:
    digest = hashlib.sha256(b'[3,"caf\\u00e9",12]').hexdigest()
    assert hashed_seed(3, "café", 12) == int(digest[:8], 16) // 2
    assert hashed_seed(0, "hello-world", 1) == 2145133587


@given(st.integers(0, 2**63), st.text(), st.integers(1, 10**6))
def test_every_server_takes_it(seed: int, task: str, step: int) -> None:
    assert 0 <= hashed_seed(seed, task, step) < 2**31
    assert Seeds(task, seed, "bare").for_step(step) == seed


def test_no_two_requests_of_a_run_have_the_same() -> None:
    wanted = [(seed, task, step) for seed in range(10) for task in NAMES for step in range(1, 51)]
    assert len({hashed_seed(*each) for each in wanted}) == len(wanted)


def test_tasks_rise_and_fall_apart_where_a_server_seeds_its_noise_by_request() -> None:
    def passes(task: str, seed: int, scheme: str) -> bool:
        sent = Seeds(task, seed, scheme).for_step(1)  # type: ignore[arg-type]
        return random.Random(sent).random() < 0.6

    def spread(scheme: str) -> float:
        scores = [sum(passes(task, seed, scheme) for task in NAMES) / len(NAMES) for seed in range(200)]
        mean = sum(scores) / len(scores)
        return (sum((score - mean) ** 2 for score in scores) / (len(scores) - 1)) ** 0.5

    # sqrt(0.24) with one draw for all six, sqrt(0.24 / 6) with six.
    assert 0.45 < spread("bare") < 0.53
    assert 0.17 < spread("hashed") < 0.23
