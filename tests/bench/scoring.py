"""Scoring a replay of the published size: 303 steps of 38 reference units each, one core, no model; summing up runs."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from figures import Figures
from lives import NOTHING, TBENCH, wall_sec
from run_trees import write_nights
from small_task import Place

from tbench.proxies.replay.scoring.metric import score_units, tokenise
from tbench.proxies.replay.scoring.parser import parse
from tbench.proxies.replay.scoring.score_run import score_directory

STEPS, UNITS, ROUNDS = 303, 38, 7
SUMMARIES = ((1000, 100), (20_000, 5))
"""Tasks, seeds."""
_SHAPES = (
    "{} = {}",
    "for {} in {}:",
    "print('{}: ', {})",
    "if not os.path.exists({}['{}']):",
    "return [{}, {}]",
    'grep -rn "{}" src/{}.py | head -20',
    "cat /app/{}/{}.json",
    "# keep {} as {}",
)
_NAMES = [f"name_{number}" for number in range(400)]


def lines(rng: random.Random) -> list[str]:
    """Commands and lines of heredocs: some words are in every other line, a third of the lines has quotes."""
    return [rng.choice(_SHAPES).format(rng.choice(_NAMES), rng.choice(_NAMES)) for _ in range(UNITS)]


def near(reference: list[str], rng: random.Random) -> list[str]:
    """As many lines, half of them the reference's own."""
    return [mine if rng.random() < 0.5 else other for mine, other in zip(reference, lines(rng), strict=True)]


def reply(units: list[str]) -> str:
    commands = [{"keystrokes": "\n".join(units) + "\n", "duration": 0.1}]
    return json.dumps({"analysis": "a" * 300, "plan": "p" * 300, "commands": commands, "task_complete": False})


def write_run(directory: Path, steps: list[tuple[str, str]]) -> Path:
    records, replies = [], []
    for number, (reference, answer) in enumerate(steps):
        key = {"task_id": f"task-{number // 6:03}", "step_idx": number % 6}
        records.append(json.dumps({**key, "prompt": "continue", "ref_raw": reference}))
        replies.append(json.dumps({**key, "content": answer}))
    dataset = directory / "records.jsonl"
    dataset.write_text("\n".join(records))
    (directory / "responses.jsonl").write_text("\n".join(replies))
    manifest = {
        "model": "bench",
        "model_short": "bench",
        "base_urls": [],
        "dataset": str(dataset),
        "dataset_sha256": hashlib.sha256(dataset.read_bytes()).hexdigest(),
        "records": len(steps),
    }
    (directory / "replay.json").write_text(json.dumps(manifest))
    return directory


def cpu_seconds(work: Callable[[], object]) -> float:
    """The median of some rounds, each from nothing remembered."""
    times = []
    for _ in range(ROUNDS):
        tokenise.cache_clear()
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times)


async def replay(place: Place, figures: Figures, scratch: Path) -> None:
    """CPU seconds of the metric alone, and of a whole `tbench replay score` without its start; and that start."""
    rng = random.Random(5)
    references = [lines(rng) for _ in range(STEPS)]
    steps = [(reply(reference), reply(near(reference, rng))) for reference in references]
    pairs = [(parse(answer).units, parse(reference).units) for reference, answer in steps]
    assert all(len(units) == UNITS for pair in pairs for units in pair)
    run = write_run(scratch, steps)
    split = cpu_seconds(
        lambda: [shlex.split(unit) for reference in references for unit in reference if "'" not in unit]
    )
    figures.add("replay_metric_sec", cpu_seconds(lambda: [score_units(*pair) for pair in pairs]), "s", split)
    figures.add("replay_score_run_sec", cpu_seconds(lambda: score_directory(run)), "s", split)
    (scratch / "one").mkdir()
    one = write_run(scratch / "one", steps[:1])
    figures.add("replay_start_sec", wall_sec([TBENCH, "replay", "score", str(one)]), "s", wall_sec(NOTHING))


def usage_of(command: list[str]) -> resource.struct_rusage:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used


async def summary(place: Place, figures: Figures, scratch: Path) -> None:
    """CPU seconds and peak memory of `tbench summary` over 100,000 results, of few tasks and of many."""
    for tasks, seeds in SUMMARIES:
        write_nights(scratch / str(tasks), 1, tasks, seeds)
        run = scratch / str(tasks) / "night-0000"
        used = usage_of([TBENCH, "summary", str(run)])
        figures.add(f"summary_{tasks}_tasks_cpu_sec", used.ru_utime + used.ru_stime, "s")
        figures.add(f"summary_{tasks}_tasks_peak_mb", used.ru_maxrss / 1024, "MB")
