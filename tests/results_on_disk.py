"""Files of a run, read while it is running."""

from __future__ import annotations

from pathlib import Path

from tbench.results import TrialResult


def results_in(directory: Path) -> list[TrialResult]:
    """The results of all attempts; a last line that is not whole is left out."""
    path = directory / "results.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [TrialResult.model_validate_json(line) for line in whole.splitlines()]


def finals_in(directory: Path) -> dict[tuple[str, int], TrialResult]:
    """The final result of each trial, by task and seed."""
    finals = [result for result in results_in(directory) if result.final]
    by_trial = {(result.task, result.seed): result for result in finals}
    assert len(by_trial) == len(finals), "a trial has two final results"
    return by_trial
