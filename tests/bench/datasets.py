"""Datasets by name: a pull of 100 tasks from a mirror on this machine, and what the name costs a run."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from figures import Figures
from git_mirrors import Mirror
from lives import TBENCH, wall_sec
from small_task import Place

from tbench.datasets.read_tasks import read_selected
from tbench.tasks.sources import ALL_TASKS, TaskSet, read_tasks

TASKS, FILES, FILE_BYTES, ROUNDS = 100, 5, 25_000, 5
"""As Terminal-Bench 2.0: 89 tasks, 859 files, 12 MB."""


def mirror_of(directory: Path) -> Mirror:
    mirror, rng = Mirror(directory), random.Random(7)
    for number in range(TASKS):
        environment = mirror.task(f"task-{number:03}") / "environment"
        for name in range(FILES):
            (environment / f"data-{name}").write_bytes(rng.randbytes(FILE_BYTES))
    mirror.publish()
    mirror.commit()
    return mirror


def seconds(work: Callable[[], TaskSet]) -> float:
    """The median of some rounds of reading tasks and taking their hashes, as every plan does."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        tasks = work()
        assert len({task.hash for task in tasks.tasks}) == TASKS
        times.append(time.perf_counter() - started)
    return statistics.median(times)


async def by_name(place: Place, figures: Figures, scratch: Path) -> None:
    mirror, pulls, clones = mirror_of(scratch), [], []
    source = f"git+{mirror.url}@{mirror.head}#tasks"
    for number in range(ROUNDS):
        os.environ["TBENCH_CACHE"] = str(scratch / f"cache-{number}")
        pulls.append(wall_sec([TBENCH, "dataset", "pull", source], rounds=1))
        clones.append(wall_sec(["git", "clone", "--quiet", mirror.url, str(scratch / f"clone-{number}")], rounds=1))
    figures.add("dataset_pull_sec", statistics.median(pulls), "s", statistics.median(clones))
    named = seconds(lambda: read_selected(source, ALL_TASKS))
    figures.add("run_by_name_extra_sec", named - seconds(lambda: read_tasks(str(mirror.work / "tasks"))), "s")
