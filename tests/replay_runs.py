"""Datasets, replies and run directories of replay, as the tests need them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CREATED = "2026-06-20T10:00:00+00:00"


def reply(*keystrokes: str, **fields: Any) -> str:
    """An answer in the format of the datasets."""
    commands = [{"keystrokes": keys, "duration": 0.1} for keys in keystrokes]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, **fields})


def record(task: int, step: int, reference: str, **fields: Any) -> dict[str, Any]:
    return {
        "task_id": f"task-{task:03}",
        "sample_idx": task,
        "step_idx": step,
        "source_group": "code" if task % 2 else "math",
        "messages": [{"role": "user", "content": "do it"}],
        "ref_raw": reference,
        **fields,
    }


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_dataset(directory: Path) -> Path:
    """Eight steps of two tasks; the references type `ls`, `ls; pwd` … and the last one claims completion."""
    records = [
        record(task, step, reply("ls\n", *(f"echo {n}\n" for n in range(step)), task_complete=task == 1 and step == 3))
        for task in (0, 1)
        for step in range(4)
    ]
    return write_lines(directory / "records.jsonl", records)


def answer(task: int, step: int, content: str | None, **fields: Any) -> dict[str, Any]:
    return {"task_id": f"task-{task:03}", "sample_idx": task, "step_idx": step, "content": content, **fields}


def write_run(directory: Path, dataset: Path, answers: list[dict[str, Any]], **manifest: Any) -> Path:
    document = {
        "model": "org/some-model",
        "model_short": "some-model",
        "base_urls": ["http://127.0.0.1:1/v1"],
        "dataset": str(dataset),
        "dataset_sha256": hashlib.sha256(dataset.read_bytes()).hexdigest(),
        "records": 8,
        "sampling": {"temperature": 0.0, "max_tokens": 1024},
        "tbench_version": "0.1.0",
        "prompt_sha256": "aa",
        "created_at": CREATED,
    }
    write_lines(directory / "responses.jsonl", answers)
    (directory / "replay.json").write_text(json.dumps({**document, **manifest}))
    return directory


def good_answers(shard: int = 0, of: int = 1) -> list[dict[str, Any]]:
    """`ls` for each step of a shard."""
    steps = [(task, step) for task in (0, 1) for step in range(4)]
    return [answer(task, step, reply("ls\n")) for task, step in steps[shard::of]]


def upstream_result(steps: list[Mapping[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """A result file as the upstream tools write it, with no steps or those given."""
    figures = {"steps": 303, "avg_command_precision": 0.5, "avg_command_recall": 0.4, "avg_command_f1": 0.4}
    return {
        "model_short": "m",
        "model_path": "org/m",
        "timestamp": "2026-05-07T00:00:00.000001",
        "eval_path": "tb2_lite/data/replay_full.jsonl",
        "prompt_template": {"template_status": "chat_template", "rank_eligible": True},
        "aggregate": {**figures, "first_cmd_exact_pct": 30.0, "valid_json_pct": 80.0, **fields.pop("aggregate", {})},
        "per_step": steps or [],
        **fields,
    }
