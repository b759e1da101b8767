"""The pages of 445 trials with recordings, and those of 300 nights: time to write them, time with nothing new, size."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from figures import Figures
from run_trees import FIRST_NIGHT, a_result, write_nights, write_run
from small_task import Place
from written_trials import GREEN, PLAIN, Exchange, WrittenTrial, write_files_of

from reports.site.writer import write_site

TASKS, SEEDS, STEPS = 89, 5, 20
NIGHTS = 300
_STEMS = ("file", "build", "test", "error", "line", "main", "data", "list", "path", "size")
_ENDS = ("", "s", "_a", "_b", ".c", ".py", ".txt", "-old", "-new", "42")
_WORDS = [f"{stem}{end}" for stem in _STEMS for end in _ENDS]


def seconds(work: Callable[[], object]) -> float:
    """Seconds of this process's cpu: the machine may have other work."""
    started = time.process_time()
    work()
    return time.process_time() - started


def write_trials(folder: Path) -> None:
    """A run of 89 tasks and 5 seeds, each trial with 20 steps and a recording of some 50 KB."""
    rng = random.Random(1)
    tasks = {f"task-{number:03}": f"{number:064x}" for number in range(TASKS)}
    results = [a_result(task, seed, float(rng.random() < 0.5), run="run") for task in tasks for seed in range(SEEDS)]
    run = write_run(folder / "run", results, tasks, range(SEEDS), begun=FIRST_NIGHT)
    for result in results:
        write_files_of(run, result, WrittenTrial(exchanges=[_exchange(rng) for _ in range(STEPS)]))


def _exchange(rng: random.Random) -> Exchange:
    lines = [" ".join(rng.choices(_WORDS, k=8)) for _ in range(rng.randint(2, 50))]
    shown = "".join(f"{GREEN}{line[:9]}{PLAIN}{line[9:]}\n" for line in lines)
    return Exchange(plan=" ".join(rng.choices(_WORDS, k=25)), typed=f"grep -rn {rng.choice(_WORDS)} .\n", shown=shown)


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


async def of_sites(place: Place | None, figures: Figures, scratch: Path) -> None:
    """Sites written for the first time, and once more with nothing new."""
    write_trials(scratch / "trials")
    write_nights(scratch / "nights", NIGHTS, TASKS, 1, models=1)
    for name in ("trials", "nights"):
        roots, out = [scratch / name], scratch / f"{name}-site"
        figures.add(f"site_{name}_sec", seconds(lambda roots=roots, out=out: write_site(roots, out)), "s")
        figures.add(f"site_{name}_again_sec", seconds(lambda roots=roots, out=out: write_site(roots, out)), "s")
        figures.add(f"site_{name}_mb", megabytes(out), "MB")
    recordings = sum(path.stat().st_size for path in (scratch / "trials").rglob("*.cast")) / 1e6
    figures.add("site_trials_recordings_mb", recordings, "MB")
