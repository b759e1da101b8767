"""Jobs of Harbor in small: directories as versions 0.6 and 0.25 leave them, without running anything."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

BEGUN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def span(begin_sec: float, end_sec: float) -> dict[str, str]:
    """A phase, in seconds after BEGUN."""
    return {
        "started_at": (BEGUN + timedelta(seconds=begin_sec)).isoformat(),
        "finished_at": (BEGUN + timedelta(seconds=end_sec)).isoformat(),
    }


def raised(type_: str, message: str = "it went wrong") -> dict[str, str]:
    return {
        "exception_type": type_,
        "exception_message": message,
        "exception_traceback": "Traceback …",
        "occurred_at": "2026-03-01T12:00:09.5",
    }


def context(**more: Any) -> dict[str, Any]:
    counts = {"n_input_tokens": 100, "n_cache_tokens": None, "n_output_tokens": 10, "cost_usd": 0.0}
    return {**counts, "rollout_details": None, "metadata": None, **more}


def result(
    name: str, task: str, rewards: dict[str, Any] | None = None, *, start_sec: float = 0, **more: Any
) -> dict[str, Any]:
    """The content of a trial's result.json."""
    model = more.pop("model", "small-model")
    agent = more.pop("agent", "terminus-2")
    config = {"agent": {"name": agent, "kwargs": more.pop("kwargs", {})}, "timeout_multiplier": 1.0, "verifier": {}}
    begun = {"started_at": span(start_sec, 0)["started_at"], "finished_at": span(0, start_sec + 20)["finished_at"]}
    return {
        "id": str(uuid4()),
        "task_name": task,
        "trial_name": name,
        "trial_uri": f"file:///jobs/{name}",
        "task_id": {"path": f"tasks/{task.rpartition('/')[2]}"},
        "source": "small",
        "task_checksum": f"checksum of {task}",
        "config": config,
        "agent_info": {
            "name": agent,
            "version": "2.0.0",
            "model_info": model and {"name": model, "provider": "openai"},
        },
        "agent_result": context(),
        "verifier_result": None if rewards is None else {"rewards": rewards},
        "exception_info": None,
        **begun,
        "environment_setup": span(start_sec, start_sec + 2),
        "agent_setup": span(start_sec + 2, start_sec + 3),
        "agent_execution": span(start_sec + 3, start_sec + 13),
        "verifier": span(start_sec + 13, start_sec + 17),
        "step_results": None,
        **more,
    }


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def trial(job: Path, content: dict[str, Any], **files: Any) -> Path:
    """A trial's directory. Names of `files` are paths with `__` for the slash, of which ` ` is the dot."""
    directory = job / content["trial_name"]
    write(directory / "result.json", content)
    write(directory / "config.json", {**content["config"], "task": content["task_id"]})
    for name, text in files.items():
        write(directory / name.replace("__", "/").replace("_dot_", "."), text)
    return directory


def finish(job: Path, mean: float | None = None, **more: Any) -> Path:
    """Write what stands beside the trials of a job (0.25)."""
    names = [path.name for path in job.iterdir() if path.is_dir()]
    metrics = [] if mean is None else [{"mean": mean}]
    evals = {"terminus-2__small-model__small": {"n_trials": len(names), "n_errors": 0, "metrics": metrics}}
    counts = {"n_completed_trials": len(names), "n_errored_trials": 0, "n_retries": more.pop("n_retries", 0)}
    config = {"job_name": job.name, "n_attempts": 1, "agents": [{"name": "terminus-2"}], "datasets": [], "tasks": []}
    write(job / "config.json", {**config, **more.pop("config", {})})
    write(
        job / "result.json",
        {
            "id": str(uuid4()),
            "started_at": "2026-03-01T12:00:00",
            "finished_at": "2026-03-01T12:10:00",
            "n_total_trials": len(names),
            "stats": {**counts, "evals": evals},
            **more,
        },
    )
    return job


def atif(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A trajectory in ATIF."""
    agent = {"name": "terminus-2", "version": "2.0.0", "model_name": "openai/small-model"}
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, start=1)]
    return {"schema_version": "ATIF-v1.8", "session_id": "s", "agent": agent, "steps": numbered, **more}


def said(text: str) -> dict[str, Any]:
    return {"source": "user", "message": text}


def did(text: str, *keystrokes: str, shown: str | None = None, done: bool = False, **more: Any) -> dict[str, Any]:
    """A step of Terminus-2: what it typed, and what was shown then."""
    calls: list[dict[str, Any]] = [
        {"tool_call_id": f"call_{n}", "function_name": "bash_command", "arguments": {"keystrokes": keys, "duration": 1}}
        for n, keys in enumerate(keystrokes)
    ]
    if done:
        calls.append({"tool_call_id": "call_done", "function_name": "mark_task_complete", "arguments": {}})
    step: dict[str, Any] = {"source": "agent", "message": text, **more}
    if calls:
        step["tool_calls"] = calls
    if shown is not None:
        step["observation"] = {"results": [{"content": shown}]}
    return step


PYTEST_NEVER_BEGAN = "E: Could not get lock /var/lib/dpkg/lock\n/tests/test.sh: line 19: uvx: command not found\n"
