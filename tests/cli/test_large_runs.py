"""Summaries of 100,000 results take bounded time and memory."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from run_plans import a_document

from tbench.config.document import PlannedTask

RESULT = {
    "schema_version": 2, "run": "large", "attempt": 1, "final": True, "agent": "tbench:keystrokes-json", "model": "m",
    "outcome": "submitted", "error": None, "steps": 7, "human_touched": False, "out_of_memory": False,
    "usage": {"prompt_tokens": 7315, "completion_tokens": 500, "cached_tokens": None},
    "timings": {"queue_sec": 0.1, "sandbox_sec": 3.6, "agent_sec": 2.2, "model_sec": 0.1, "waited_sec": 0.0,
                "command_sec": 1.0, "verifier_sec": 1.5, "teardown_sec": 0.2, "wall_sec": 7.7},
    "started_at": "2026-11-23T01:29:01Z", "finished_at": "2026-11-23T01:29:09Z",
    "integrity": {"verify": "shared", "tamper": [], "evidence": [], "repairs": [], "regrades": 0, "rewards": {}},
    "host": {"load_max": 1.5, "memory_available_min_mb": 6000.0, "memory_stall_max": 0.0, "clock_jump_sec": 0.0},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "seeds"), [(1000, 100), (20_000, 5)])
def test_a_hundred_thousand_results_take_20_seconds_of_cpu_and_400_mb_at_most(
    tasks: int, seeds: int, tmp_path: Path
) -> None:
    names = [f"task-{number:05d}" for number in range(tasks)]
    planned = {"tasks": tuple(PlannedTask(name=name, hash="h") for name in names), "seeds": tuple(range(seeds))}
    (tmp_path / "run.json").write_text(a_document().model_copy(update=planned).model_dump_json())
    rng = random.Random(1)
    with (tmp_path / "results.jsonl").open("w") as file:
        for seed in range(seeds):
            for name in names:
                own = {"task": name, "seed": seed, "trial": f"{name}.s{seed}.x", "reward": float(rng.random() < 0.6)}
                origin = {"how": "built", "reference": f"tbench/{name}:{'0' * 16}", "built_from": "0" * 16}
                image = {"image_id": f"sha256:{name}{'0' * 54}", "image_origin": origin}
                file.write(json.dumps({**RESULT, **own, **image}) + "\n")
    argv = [sys.executable, "-m", "tbench", "summary", str(tmp_path)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "coverage 100000/100000" in said
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20
    assert after.ru_maxrss / 1024 < 400
