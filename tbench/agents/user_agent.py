"""Finds a user's own agent class by `module:Class`, and hashes its code."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.custom import CustomAgent
from tbench.errors import UsageError


@dataclass(frozen=True)
class AgentClass:
    """A class that fits harness.custom.CustomAgent."""

    name: str
    """The name `module:Class`, as given."""
    make: Callable[[], CustomAgent]
    sha256: str
    """sha256 of the module's file: other code is another agent. What the module imports is not in it."""


def load_agent_class(name: str) -> AgentClass:
    """Import the class `module:Class`, also from the current directory. Raises UsageError."""
    module_name, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), class_name)):
        raise UsageError(f"--agent {name}: must look like package.module:Class")
    module = _import(name, module_name)
    found: Any = getattr(module, class_name, None)
    if found is None:
        raise UsageError(f"--agent {name}: {module.__file__} has no {class_name}")
    if problem := _misfit(found):
        raise UsageError(f"--agent {name}: {problem}; see docs/agents.md")
    return AgentClass(name, found, hashlib.sha256(_file(name, module).read_bytes()).hexdigest())


def _import(name: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: a file of the user's must not stand in for an installed module
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            problem: BaseException = error
        else:
            words = f"there is no module {error.name!r} in {here} or among the installed"
            raise UsageError(f"--agent {name}: {words}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code
        problem = error
    raise UsageError(f"--agent {name}: importing it failed: {type(problem).__name__}: {problem} ({_place(problem)})")


def _place(problem: BaseException) -> str:
    if isinstance(problem, SyntaxError):
        return f"{problem.filename}:{problem.lineno}"
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _file(name: str, module: ModuleType) -> Path:
    if module.__file__ is None:
        raise UsageError(f"--agent {name}: the module has no file")
    return Path(module.__file__)


def _misfit(found: Any) -> str:
    """Why `found` cannot be an agent; empty where it can."""
    if not inspect.isclass(found):
        return "is not a class"
    run = getattr(found, "run", None)
    if run is None or not inspect.iscoroutinefunction(run):
        return "has no `async def run(self, assignment)`"
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        return f"cannot be made without arguments ({error})"
    try:
        inspect.signature(run).bind(None, None)
    except TypeError as error:
        return f"run() cannot be called with one assignment ({error})"
    return ""
