"""A history of nights in run directories, written without running anything: two models, and one drop of one of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from run_trees import FIRST_NIGHT, a_result, write_run
from written_trials import LOOKS_AND_MENDS, WrittenTrial, write_files_of

from harness.trajectory import Outcome
from tbench.results import Blame, ErrorInfo, Stage, TrialResult

TASKS = ("broken-makefile", "free-slots", "lost-commits", "note-board", "panel", "permissions", "tidy-notes", "web-log")
WORSE = ("lost-commits", "panel", "tidy-notes")
"""Tasks that the model with the drop solves no more."""
NIGHTS, DROP, SEEDS = 15, 12, 2
"""Nights of the history, the number of the first one after the drop, seeds a night."""
DROPPED, STEADY = "checkpoint-a", "checkpoint-b"
RECORDED = 2
"""Nights whose trials have files: the last ones. What is older was pruned."""
_FAILED = WrittenTrial(
    exchanges=LOOKS_AND_MENDS[:2],
    output="\x1b[31m1 failed\x1b[0m, 1 passed in 0.1 s\n",
    tests={"test_builds": "", "test_counts": "AssertionError: 3 is not 4"},
)


def write_history(folder: Path, nights: int = NIGHTS) -> Path:
    """Write the nights into `folder`; in the last one a trial had an error, and one of the steady model's a second
    attempt."""
    rng = random.Random(19)
    for number in range(1, nights + 1):
        for model in (DROPPED, STEADY):
            run = folder / f"night-{number:02}_{model}"
            results = list(_results(number, model, rng))
            hashes = {task: f"sha256:{task}" for task in TASKS}
            begun = _begun(number)
            write_run(run, results, hashes, _seeds(number), begun=begun, model=model, prompt_hash="p", temperature=0.7)
            if number > nights - RECORDED:
                _write_trials(run, results)
    return folder


def _begun(number: int) -> datetime:
    return FIRST_NIGHT + timedelta(days=number - 1)


def _seeds(number: int) -> range:
    return range(SEEDS * (number - 1), SEEDS * number)


def _results(number: int, model: str, rng: random.Random) -> Iterator[TrialResult]:
    for at, task in enumerate(TASKS):
        for seed in _seeds(number):
            is_lost = model == DROPPED and number >= DROP and task in WORSE
            solved = not is_lost and rng.random() < (0.9, 0.75)[at % 2]
            yield _result(number, task, seed, solved, at)
    if number == NIGHTS:
        yield a_result("web-log", _seeds(number)[0], None, _begun(number), error=_ERROR, attempt=2)


_ERROR = ErrorInfo(
    stage=Stage.VERIFIER,
    type="TestsNeverRan",
    blame=Blame.INFRA,
    retryable=True,
    message="\x1b[31mE: Unable to fetch\x1b[0m some archives\ncurl: (6) Could not resolve host",
)


def _result(number: int, task: str, seed: int, solved: bool, at: int) -> TrialResult:
    begun = _begun(number) + timedelta(seconds=50 * at + seed)
    outcome = Outcome.SUBMITTED if solved else (Outcome.STEP_LIMIT, Outcome.SUBMITTED)[at % 2]
    return a_result(task, seed, float(solved), begun, outcome=outcome, steps=3 if solved else 2)


def _write_trials(run: Path, results: Sequence[TrialResult]) -> None:
    for result in results:
        write_files_of(run, result, WrittenTrial() if result.reward else _FAILED)
