"""Run directories of any number, written without running anything: for tests of the history, and to measure it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from run_plans import A_MODEL, a_document, a_plan

from harness.trajectory import Usage
from tbench.config.document import PlannedTask
from tbench.results import HostSample, ImageOrigin, Timings, TrialResult

FIRST_NIGHT = datetime(2026, 1, 1, 22, tzinfo=UTC)
IMAGE = ImageOrigin(how="present", reference="example/task:1")


def a_result(task: str, seed: int, reward: float | None, begun: datetime = FIRST_NIGHT, **more: Any) -> TrialResult:
    known: dict[str, Any] = {
        "run": "r",
        "trial": f"{task}.s{seed}.x",
        "agent": "tests",
        "started_at": begun,
        "finished_at": begun + timedelta(seconds=40),
        "usage": Usage(prompt_tokens=7000, completion_tokens=500),
        "timings": Timings(sandbox_sec=3, agent_sec=30, model_sec=20, command_sec=9, verifier_sec=2, wall_sec=36),
        "steps": 7,
        "image_id": "sha256:0",
        "image_origin": IMAGE,
        "host": HostSample(load_max=1.0, memory_available_min_mb=6000.0, memory_stall_max=0.0),
    }
    return TrialResult(task=task, seed=seed, reward=reward, **(known | more))


def write_run(
    directory: Path,
    results: Iterable[TrialResult],
    tasks: Mapping[str, str | None],
    seeds: Iterable[int],
    *,
    begun: datetime = FIRST_NIGHT,
    model: str = "m",
    status: str = "finished",
    **settings: Any,
) -> Path:
    """A run directory named as in the path, of tasks with their hashes."""
    directory.mkdir(parents=True, exist_ok=True)
    plan = a_plan(directory.name, seeds=tuple(seeds), **{**A_MODEL, "model": model, "agent": "tests", **settings})
    document = a_document(plan).model_copy(
        update={
            "tasks": tuple(PlannedTask(name=name, hash=digest) for name, digest in tasks.items()),
            "status": status,
            "created_at": begun.isoformat(),
            "ended_at": None if status == "running" else (begun + timedelta(hours=1)).isoformat(),
            "tbench_version": "0.1.0",
        }
    )
    (directory / "run.json").write_text(document.model_dump_json(indent=2))
    lines = (result.model_copy(update={"run": directory.name, "model": model}).model_dump_json() for result in results)
    (directory / "results.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return directory


def write_nights(folder: Path, runs: int, tasks: int, seeds: int, *, models: int = 1) -> None:
    """Nights one after another, with rewards of 0 and 1 by chance; most of a night's text is made once."""
    rng = random.Random(runs)
    names = {f"task-{number:03}": f"{number:064x}" for number in range(tasks)}
    chance = {name: rng.betavariate(0.5, 0.7) for name in names}
    for night in range(runs):
        begun = FIRST_NIGHT + timedelta(days=night)
        model = f"checkpoint-{night % models:03}"
        directory = write_run(folder / f"night-{night:04}", [], names, range(seeds), begun=begun, model=model)
        template = a_result("TASK", 0, 0.0, begun, run=directory.name, model=model).model_dump(mode="json")
        with (directory / "results.jsonl").open("w") as file:
            for seed in range(seeds):
                for name in names:
                    said = {model: 12}, {"vllm-0.33.0-aee50daf": 12}
                    own = {
                        "task": name,
                        "seed": seed,
                        "trial": f"{name}.s{seed}.x",
                        "replies": {"total": 12, "models": said[0], "fingerprints": said[1], "first": f"{seed:016x}"},
                    }
                    reward = float(rng.random() < chance[name])
                    file.write(json.dumps({**template, **own, "reward": reward}, separators=(",", ":")) + "\n")
