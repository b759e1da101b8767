"""Finds the good runs to compare a run with: the runs before the drop that the gate sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tbench.errors import UsageError
from tbench.scores.gate.judge import judge
from tbench.scores.gate.nights import GateRule, Night
from tbench.storage.comparable import fingerprint
from tbench.storage.read_run import RunUnreadable, StoredRun, read_plan, read_run
from tbench.storage.run_files import is_run
from tbench.storage.summaries import final_rewards

LAST_GOOD = "last-good"
MAX_RUNS = 30
"""Maximum number of earlier runs."""
_LEAST_COVERAGE = 0.01
"""Least coverage of a run that counts. It is low, because errors may be the change to be explained."""


class GoodRuns(NamedTuple):
    """The runs to compare: the runs since a drop, and the good ones before it. Oldest first."""

    now: tuple[Path, ...]
    before: tuple[Path, ...]


def good_runs_before(run: Path) -> GoodRuns:
    """Find the good runs before a run in its folder: the runs before the drop that the gate sees, or else all.

    Only runs of the same model count, and on each side only runs with the settings and the context of the newest one.
    Raises UsageError if there is none.
    """
    plan = read_plan(run)
    if plan.document is None:
        raise UsageError(f"{run}: imported, so the runs before it are unknown; name one with --against RUN")
    if not plan.planned:
        raise UsageError(f"{run}: plans no trial, so there is nothing to explain; see its run.json")
    earlier = sorted(_earlier(run, plan), key=lambda each: (_begun(each), each.name))[-MAX_RUNS:]
    if not earlier:
        raise UsageError(f"{run}: no earlier finished run of {plan.model} in {run.parent}; name one with --against RUN")
    return good_runs([*(each.path for each in earlier), run])


def good_runs(paths: Sequence[Path], first: int | None = None) -> GoodRuns:
    """Divide the runs of a series, oldest first, into those since a drop and the good ones before it.

    `first` is the position of the first run of a known drop. Without a drop, only the last run is new. Earlier runs
    without any result are left out. Raises RunUnreadable, and UsageError if no earlier run is left.
    """
    *earlier, last = [read_run(path) for path in paths]
    known = [at for at, run in enumerate(earlier) if run.results]
    runs = [*(earlier[at] for at in known), last]
    first = sum(at < first for at in known) if first is not None else _first_of_drop(runs)
    if not first:
        raise UsageError(f"{last.path}: the first run of its series with results; name another one with --against RUN")
    return GoodRuns(_alike(runs[first:]), _alike(runs[:first]))


def _begun(run: StoredRun) -> str:
    return run.document.created_at if run.document is not None else ""


def _earlier(run: Path, plan: StoredRun) -> list[StoredRun]:
    """Return the plans of the finished runs of the same model that began before this run."""
    found = []
    for path in run.resolve().parent.iterdir():
        if path == run.resolve() or not is_run(path):
            continue
        try:
            other = read_plan(run.parent / path.name)
        except RunUnreadable:
            continue
        document = other.document
        if document is None or not other.planned or other.model != plan.model or document.purpose != "score":
            continue
        if document.status != "running" and (_begun(other), other.name) < (_begun(plan), plan.name):
            found.append(other)
    return found


def _first_of_drop(runs: Sequence[StoredRun]) -> int:
    """Return the position of the first run of the drop that the gate sees; without a drop, of the last run."""
    last = len(runs) - 1
    if last < 2:
        return last
    # Without fingerprints: changed settings may be the explanation.
    nights = [Night(str(at), _begun(run), final_rewards(run), run.task_hashes) for at, run in enumerate(runs)]
    verdict = judge(nights, GateRule(base_nights=max(2, min(10, last // 2)), min_coverage=_LEAST_COVERAGE))
    return int(verdict.since.name) if verdict.since is not None else last


def _alike(runs: Sequence[StoredRun]) -> tuple[Path, ...]:
    """Return the runs with the settings and context of the newest one."""
    facts = _facts(runs[-1])
    return tuple(run.path for run in runs if _facts(run) == facts)


def _facts(run: StoredRun) -> tuple[Any, ...]:
    document = run.document
    assert document is not None
    served, model = document.locked.served, document.config.model
    window = served.context_tokens if served is not None else None
    return fingerprint(run), window, model.request_timeout_sec
