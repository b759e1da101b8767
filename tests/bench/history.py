"""A history of 100,000 trials: making its index, bringing it up to date, and the queries of a page."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from figures import Figures
from run_trees import write_nights
from small_task import Place

from tbench.history.index import RunHistory
from tbench.storage.read_run import read_run

SHAPES = {"100_runs": (100, 100, 10), "1000_runs": (1000, 100, 1)}
"""Runs, tasks, seeds."""
ROUNDS = 9


def ms(ask: Callable[[], object]) -> float:
    """The median of some rounds."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        ask()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


async def index_and_pages(place: Place, figures: Figures, scratch: Path) -> None:
    """Of each shape: an index of all runs beside reading their files, an update with nothing new, pages."""
    for name, (runs, tasks, seeds) in SHAPES.items():
        folder = scratch / name
        write_nights(folder, runs, tasks, seeds, models=5)
        paths = sorted(folder.iterdir())
        floor = seconds(lambda paths=paths: [read_run(path) for path in paths])
        with RunHistory.open(scratch / f"{name}.sqlite") as history:
            made = seconds(lambda history=history, folder=folder: history.update(folder))
            figures.add(f"history_{name}_index_sec", made, "s", floor)
            figures.add(f"history_{name}_size_mb", history.file.stat().st_size / 1e6, "MB")
            nothing_new = ms(lambda history=history, folder=folder: history.update(folder))
            figures.add(f"history_{name}_update_ms", nothing_new, "ms")
            middle = paths[runs // 2]
            pages = {
                "list": history.runs,
                "task": lambda history=history: history.task("task-003"),
                "table": lambda history=history, middle=middle: history.table(middle),
                "models": history.models,
                "days": history.days,
            }
            for page, ask in pages.items():
                figures.add(f"history_{name}_{page}_ms", ms(ask), "ms")
