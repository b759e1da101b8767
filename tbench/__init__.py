"""Benchmarks: tasks, sandboxes, verification, runs and results. `docs/python.md` documents the public names."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tbench.api.confirming import confirm
    from tbench.api.debugging import DebugSession, debug
    from tbench.api.rollouts import Rollout, TokenSequence, TokensMissing
    from tbench.api.runner import Runner, TrialFailed, TrialRecord
    from tbench.api.stored_runs import summarise
    from tbench.config.settings import RunConfig
    from tbench.datasets.read_tasks import read_tasks
    from tbench.errors import TbenchError, UsageError
    from tbench.explaining.explain import explain
    from tbench.explaining.explanation import Explanation
    from tbench.results import TrialResult
    from tbench.scores.summary import Summary
    from tbench.storage.read_run import RunUnreadable, StoredRun, read_run
    from tbench.tasks.sources import TaskSet
    from tbench.tasks.task import Task

__version__ = "0.1.0"

__all__ = [
    "DebugSession",
    "Explanation",
    "Rollout",
    "RunConfig",
    "RunUnreadable",
    "Runner",
    "StoredRun",
    "Summary",
    "Task",
    "TaskSet",
    "TbenchError",
    "TokenSequence",
    "TokensMissing",
    "TrialFailed",
    "TrialRecord",
    "TrialResult",
    "UsageError",
    "__version__",
    "confirm",
    "debug",
    "explain",
    "read_run",
    "read_tasks",
    "summarise",
]

_MODULES = {
    "DebugSession": "tbench.api.debugging",
    "Explanation": "tbench.explaining.explanation",
    "Rollout": "tbench.api.rollouts",
    "RunConfig": "tbench.config.settings",
    "RunUnreadable": "tbench.storage.read_run",
    "Runner": "tbench.api.runner",
    "StoredRun": "tbench.storage.read_run",
    "Summary": "tbench.scores.summary",
    "Task": "tbench.tasks.task",
    "TaskSet": "tbench.tasks.sources",
    "TbenchError": "tbench.errors",
    "TokenSequence": "tbench.api.rollouts",
    "TokensMissing": "tbench.api.rollouts",
    "TrialFailed": "tbench.api.runner",
    "TrialRecord": "tbench.api.runner",
    "TrialResult": "tbench.results",
    "UsageError": "tbench.errors",
    "confirm": "tbench.api.confirming",
    "debug": "tbench.api.debugging",
    "explain": "tbench.explaining.explain",
    "read_run": "tbench.storage.read_run",
    "read_tasks": "tbench.datasets.read_tasks",
    "summarise": "tbench.api.stored_runs",
}
"""Modules by public name, imported on first use, so that the command line starts fast."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tbench' has no attribute {name!r}")
    if problem := hidden_package():
        raise ImportError(problem)
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__


def hidden_package() -> str | None:
    """Return an error if a user's directory shadows one of tbench's packages; None if no directory does."""
    here = Path(__file__).parents[1]
    for name in ("harness", "reports"):
        spec = find_spec(name)
        found = Path(spec.origin).parent if spec and spec.origin else None
        if found != here / name:
            if not found:
                return f"tbench: tbench's own package {name!r} is missing; install tbench again"
            return f"tbench: {found} hides tbench's own package {name!r}; rename it, or start from another directory"
    return None
