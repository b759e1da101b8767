"""Compares the module with a slow reference that marks every minute; it runs in a process of its own."""

import json
import random
import subprocess
import sys
from typing import Any

CALLER = """
import json, sys
sys.path.insert(0, "/app")
import slots
answers = []
for name, busy, *rest in json.load(sys.stdin):
    busy = [tuple(slot) for slot in busy]
    before = list(busy)
    answer = getattr(slots, name)(busy, *rest)
    tuples = type(answer) is list and all(type(slot) is tuple for slot in answer)
    answers.append({"answer": answer, "unchanged": busy == before and answer is not busy, "tuples": tuples})
print("\\n" + json.dumps(answers))
"""

GIVEN_TESTS = '''
import sys
sys.path.insert(0, "/app")
from slots import free_slots, merge
assert free_slots([], 480, 1020) == [(480, 1020)]
assert free_slots([(600, 660)], 480, 1020) == [(480, 600), (660, 1020)]
assert merge([(600, 660), (630, 700)]) == [(600, 700)]
print("all three hold")
'''


def python(program: str, given: str = "") -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=30, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(*calls: list[Any]) -> list[Any]:
    """The answers to several calls, all made in one process."""
    answers = json.loads(python(CALLER, json.dumps(calls)).splitlines()[-1])
    assert len(answers) == len(calls)
    assert all(answer["unchanged"] and answer["tuples"] for answer in answers)
    return [answer["answer"] for answer in answers]


def runs(minutes: set[int]) -> list[list[int]]:
    """The maximal runs of consecutive minutes, as [start, end] with the end left out."""
    starts = sorted(m for m in minutes if m - 1 not in minutes)
    ends = sorted(m + 1 for m in minutes if m + 1 not in minutes)
    return [[start, end] for start, end in zip(starts, ends)]


def covered(busy: list[list[int]]) -> set[int]:
    return {minute for start, end in busy for minute in range(start, end)}


def days(seed: int) -> list[list[list[int]]]:
    source = random.Random(seed)
    return [
        [sorted((source.randint(0, 40), source.randint(0, 40))) for _ in range(source.randint(0, 7))]
        for _ in range(300)
    ]


def test_the_given_tests_hold() -> None:
    assert "all three hold" in python(GIVEN_TESTS)


def test_merge_joins_what_overlaps_touches_or_is_contained() -> None:
    busy_days = [[[5, 9], [9, 12]], [[1, 30], [4, 6]], [[3, 3]], *days(seed=1)]
    assert ask(*(["merge", busy] for busy in busy_days)) == [runs(covered(busy)) for busy in busy_days]


def test_free_slots_are_the_minutes_nobody_is_busy() -> None:
    calls, expected = [], []
    for number, busy in enumerate(days(seed=2)):
        opens, closes, minimum = 5 + number % 7, 20 + number % 17, 1 + number % 4
        calls.append(["free_slots", busy, opens, closes, minimum])
        free = runs(set(range(opens, closes)) - covered(busy))
        expected.append([slot for slot in free if slot[1] - slot[0] >= minimum])
    assert ask(*calls) == expected


def test_calls_do_not_remember_each_other_and_minimum_is_one() -> None:
    day = ["free_slots", [[1, 3], [4, 9]], 0, 10]
    assert ask(day, day, day) == [[[0, 1], [3, 4], [9, 10]]] * 3
    assert ask(["free_slots", [], 7, 7]) == [[]]
