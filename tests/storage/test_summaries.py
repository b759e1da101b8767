"""The summary of a stored run: how much of the run is held for it."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest
from run_trees import a_result, write_run

from tbench.results import TrialResult
from tbench.storage import summaries
from tbench.storage.read_run import read_run
from tbench.storage.summaries import make_summary, read_summary

SEEDS = 5


def a_run(directory: Path, tasks: int) -> Path:
    names = {f"task-{number:05}": f"{number:064x}" for number in range(tasks)}
    results = [
        a_result(name, seed, float((number + seed) % 3 == 0))
        for seed in range(SEEDS)
        for number, name in enumerate(names)
    ]
    return write_run(directory, results, names, range(SEEDS))


def test_the_summary_of_a_directory_is_that_of_all_its_results_without_one_of_them_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path / "run", 20)
    held: list[int] = []

    def counted_then(*given: object, **more: object) -> object:
        held.append(sum(isinstance(each, TrialResult) for each in gc.get_objects()))
        return make_summary(*given, **more)  # type: ignore[arg-type]

    gc.collect()
    before = sum(isinstance(each, TrialResult) for each in gc.get_objects())
    monkeypatch.setattr(summaries, "make_summary", counted_then)
    stored, summary = read_summary(run)
    assert held[0] - before <= 2
    assert stored.results == []
    assert summary == make_summary(read_run(run))


def peak_of(run: Path) -> int:
    gc.collect()
    tracemalloc.start()
    read_summary(run)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_result_takes_at_most_two_and_a_half_kilobytes_of_the_peak(tmp_path: Path) -> None:
    small, large = (a_run(tmp_path / str(tasks), tasks) for tasks in (200, 800))
    for run in (small, large):
        read_summary(run)  # what is loaded, and remembered, the first time
    # Garbage that waits for its collection counts in some: the lowest of three is the true one.
    least = min(peak_of(small) for _ in range(3))
    assert any((peak_of(large) - least) / (600 * SEEDS) < 2560 for _ in range(3))
