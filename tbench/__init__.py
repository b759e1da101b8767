"""The benchmark side: tasks, sandboxes, verification, runs, results. `docs/python.md` shows the public names below."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tbench.api.debugging import DebugSession, debug
    from tbench.api.rollouts import Rollout, TokenSequence, TokensMissing
    from tbench.api.runner import Runner, TrialFailed, TrialRecord
    from tbench.api.stored_runs import summarise
    from tbench.config.settings import RunConfig
    from tbench.datasets.reading import read_tasks
    from tbench.errors import TbenchError, UsageError
    from tbench.results import TrialResult
    from tbench.scores.summary import Summary
    from tbench.storage.read_run import RunUnreadable, StoredRun, read_run
    from tbench.tasks.sources import TaskSet
    from tbench.tasks.task import Task

__version__ = "0.1.0"

__all__ = [
    "DebugSession",
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
    "debug",
    "read_run",
    "read_tasks",
    "summarise",
]

_PLACES = {
    "DebugSession": "tbench.api.debugging",
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
    "debug": "tbench.api.debugging",
    "read_run": "tbench.storage.read_run",
    "read_tasks": "tbench.datasets.reading",
    "summarise": "tbench.api.stored_runs",
}
"""Modules of the public names. They are imported when a name is used: the command line would start later otherwise."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'tbench' has no attribute {name!r}")
    if problem := hidden_package():
        raise ImportError(problem)
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__


def hidden_package() -> str | None:
    """Why tbench cannot work where a folder of the user's has the name of one of its packages; None where none has."""
    here = Path(__file__).parents[1]
    for name in ("harness", "reports"):
        spec = find_spec(name)
        found = Path(spec.origin).parent if spec and spec.origin else None
        if found != here / name:
            what = f"{found} hides" if found else "there is no folder with"
            return f"tbench: {what} tbench's own package {name!r}; rename it, or start from another directory"
    return None
