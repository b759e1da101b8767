"""Benchmarks: tasks, sandboxes, verification, runs and results. `docs/python.md` documents the public names."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tbench.api.confirming import confirm as confirm
    from tbench.api.debugging import DebugSession as DebugSession
    from tbench.api.debugging import debug as debug
    from tbench.api.rollouts import Rollout as Rollout
    from tbench.api.rollouts import TokenSequence as TokenSequence
    from tbench.api.rollouts import TokensMissing as TokensMissing
    from tbench.api.runner import Runner as Runner
    from tbench.api.runner import TrialFailed as TrialFailed
    from tbench.api.runner import TrialRecord as TrialRecord
    from tbench.api.stored_runs import summarise as summarise
    from tbench.config.settings import RunConfig as RunConfig
    from tbench.datasets.read_tasks import read_tasks as read_tasks
    from tbench.errors import TbenchError as TbenchError
    from tbench.errors import UsageError as UsageError
    from tbench.explaining.explain import explain as explain
    from tbench.explaining.explanation import Explanation as Explanation
    from tbench.results import TrialResult as TrialResult
    from tbench.scores.summary import Summary as Summary
    from tbench.storage.read_run import RunUnreadable as RunUnreadable
    from tbench.storage.read_run import StoredRun as StoredRun
    from tbench.storage.read_run import read_run as read_run
    from tbench.tasks.sources import TaskSet as TaskSet
    from tbench.tasks.task import Task as Task

__version__ = "0.1.0"

_NAMES = {
    "tbench.api.confirming": ("confirm",),
    "tbench.api.debugging": ("DebugSession", "debug"),
    "tbench.api.rollouts": ("Rollout", "TokenSequence", "TokensMissing"),
    "tbench.api.runner": ("Runner", "TrialFailed", "TrialRecord"),
    "tbench.api.stored_runs": ("summarise",),
    "tbench.config.settings": ("RunConfig",),
    "tbench.datasets.read_tasks": ("read_tasks",),
    "tbench.errors": ("TbenchError", "UsageError"),
    "tbench.explaining.explain": ("explain",),
    "tbench.explaining.explanation": ("Explanation",),
    "tbench.results": ("TrialResult",),
    "tbench.scores.summary": ("Summary",),
    "tbench.storage.read_run": ("RunUnreadable", "StoredRun", "read_run"),
    "tbench.tasks.sources": ("TaskSet",),
    "tbench.tasks.task": ("Task",),
}
"""Public names by module, imported on first use, so that the command line starts fast."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted([*_MODULES, "__version__"])


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
