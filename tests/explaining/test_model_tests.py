"""Tests whether two runs had the same model: measures of results and steps, and equal first replies."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run_trees import a_result, write_run
from written_trials import Exchange, WrittenTrial, write_files_of

from harness.reply_stats import ReplyStats
from harness.trajectory import Usage
from tbench.explaining.model_tests import ModelTest, equal_first_replies, model_tests
from tbench.explaining.trials import read_side

TASKS = ("one", "two", "three")


def a_run(folder: Path, name: str, tokens: Callable[[random.Random], int], **more: Any) -> Path:
    rng = random.Random(name)
    results = [
        a_result(
            task,
            seed,
            1.0,
            usage=Usage(completion_tokens=tokens(rng)),
            replies=ReplyStats(total=5, first=f"{task}{seed}{more.get('first', '')}"),
        )
        for task in TASKS
        for seed in range(8)
    ]
    return write_run(folder / name, results, dict.fromkeys(TASKS, "h"), range(8))


def found(old: list[Path], new: Path) -> dict[str, ModelTest]:
    return {each.measure: each for each in model_tests(read_side(old), read_side([new]), TASKS)}


def test_longer_replies_are_seen_and_equal_ones_are_not(tmp_path: Path) -> None:
    short, same = (a_run(tmp_path, name, lambda rng: rng.randint(900, 1500)) for name in "ab")
    longer = a_run(tmp_path, "c", lambda rng: rng.randint(1500, 2500))
    assert found([short], longer)["tokens a reply"].differs
    assert not found([short], same)["tokens a reply"].differs
    assert found([short], longer)["tokens a reply"].usual is None


def test_what_is_usual_between_nights_is_said_for_three_runs_or_more(tmp_path: Path) -> None:
    nights = [a_run(tmp_path, name, lambda rng: rng.randint(900, 1500)) for name in "abcd"]
    usual = found(nights[:3], nights[3])["tokens a reply"].usual
    assert usual is not None and 0 < usual < 120


def test_steps_show_thinking_and_shape(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, name, lambda _: 1000) for name in "ab"]
    for run, reasoning in zip(runs, ("think " * 50, None), strict=True):
        for at, task in enumerate(TASKS):
            for seed in range(4):
                exchange = Exchange(
                    "p", "ls\n" if seed else "pwd\n", "x", reasoning=reasoning and reasoning * (at + seed + 1)
                )
                write_files_of(run, a_result(task, seed, 1.0), WrittenTrial(exchanges=(exchange,)))
    thinking = found([runs[0]], runs[1])
    assert "characters of thinking a reply" not in thinking  # one side has none: server.thinking says so
    assert "share of replies cut" not in thinking
    assert all(0 <= each.p <= each.p_holm <= 1 for each in thinking.values())


def test_equal_first_replies_are_counted_over_equal_seeds(tmp_path: Path) -> None:
    one, two = a_run(tmp_path, "a", lambda _: 9), a_run(tmp_path, "b", lambda _: 9)
    other = a_run(tmp_path, "c", lambda _: 9, first="x")
    assert equal_first_replies(read_side([one]), read_side([two]), TASKS) == (24, 24)
    assert equal_first_replies(read_side([one]), read_side([other]), TASKS) == (0, 24)
