"""Trials on disk, as commands find them that are asked about trials that have ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from run_trees import a_result, write_run
from shown_trials import write_steps

from harness.trajectory import Reply, Step, Usage
from tbench.results import TrialResult
from tbench.storage.run_files import TRIAL_RESULT_NAME

PYTEST = """FAILED tests/test_it.py::test_sum - assert 3 == 4
PASSED tests/test_it.py::test_file
"""


def a_step(index: int, typed: str = "ls\n", seen: str = "file\n", **more: Any) -> Step:
    usage = Usage(prompt_tokens=1000 * index, completion_tokens=50)
    known = {"exit_code": 0, "model_sec": 1.5, "command_sec": 0.25, "actions": (typed,)}
    reply = Reply(content=f"content {index}", reasoning=f"thought {index}", usage=usage)
    return Step(index=index, reply=reply, observation=seen, **(known | more))


def write_trial(
    run: Path, steps: Sequence[Step], *, cast: Sequence[tuple[float, str, str]] = (), verifier: str = "", **more: Any
) -> str:
    """A run with one trial of these steps; what a user calls it."""
    result = a_result("task", 0, **({"reward": 0.0, "steps": len(steps)} | more))
    write_run(run, [result], {"task": "sha256:t"}, (0,))
    _fill(write_steps(run, result, steps), result, cast, verifier)
    return f"{run}/task/0"


def _fill(directory: Path, result: TrialResult, cast: Sequence[tuple[float, str, str]], verifier: str) -> None:
    (directory / TRIAL_RESULT_NAME).write_text(result.model_dump_json())
    if cast:
        head = {"version": 2, "width": 40, "height": 5, "timestamp": 1}
        (directory / "session.cast").write_text("".join(f"{json.dumps(each)}\n" for each in (head, *cast)))
    if verifier:
        (directory / "verifier").mkdir()
        (directory / "verifier" / "stdout.txt").write_text(verifier)
