"""Consent for environment variables: tasks receive only the variables of tbench's environment that the user allows.

A task may come from a stranger, and every variable that it receives can leave the machine over its network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tbench.errors import TrialError
from tbench.tasks.format import TaskFile

_TEMPLATE = re.compile(r"\$\{(\w+)(?::-(.*))?\}")


@dataclass(frozen=True)
class VariableRequest:
    """A value `${VAR}` or `${VAR:-default}` in task.toml, which requests a variable of tbench's environment."""

    key: str
    """Dotted key in the file."""
    variable: str
    has_default: bool
    file: str = "task.toml"
    """Path of the file in the task."""

    @property
    def without_consent(self) -> str:
        """The effect if the variable is not allowed, and the flag that allows it."""
        otherwise = "its default is used" if self.has_default else "the trial fails with env_missing"
        return f"without --allow-env {self.variable}, {otherwise}"


def requested_variables(file: TaskFile) -> Iterator[VariableRequest]:
    """Iterate over all variables that a task.toml requests: environment, solution, verifier, task steps."""
    tables = {"environment": file.environment.env, "solution": file.solution.env, "verifier": file.verifier.env}
    if file.verifier.environment is not None:
        tables["verifier.environment"] = file.verifier.environment.env
    for section, table in tables.items():
        for key, value in table.items():
            if match := _TEMPLATE.fullmatch(value):
                yield VariableRequest(f"{section}.env.{key}", match[1], has_default=match[2] is not None)
    for step in file.steps:
        for key, value in step.verifier.env.items():
            if match := _TEMPLATE.fullmatch(value):
                yield VariableRequest(
                    f"verifier.env.{key} (step {step.name})", match[1], has_default=match[2] is not None
                )


def withheld_variables_note(
    requested: Iterable[VariableRequest], allowed: Collection[str], host: Mapping[str, str] | None = None
) -> str | None:
    """Return a line about requested variables that are set in the host's environment but not allowed.

    None if there are none.
    """
    host = os.environ if host is None else host
    asked = {request.variable for request in requested}
    names = sorted(name for name in asked if name in host and name not in allowed)
    if not names:
        return None
    flags = " ".join(f"--allow-env {name}" for name in names)
    return f"requested by tasks and set here, but not allowed: {', '.join(names)}; allow with {flags}"


def missing_variables(requested: Iterable[VariableRequest], allowed: Collection[str]) -> list[str]:
    """Describe requested variables without a default that are missing: key and remedy for each."""
    host, missing = os.environ, list[str]()
    for request in requested:
        name = request.variable
        if not request.has_default and not (name in allowed and name in host):
            missing.append(f"{request.key} = ${{{name}}}: {_remedy(name, name in allowed, name in host)}")
    return missing


def resolve_env(
    env: Mapping[str, str], allowed: Collection[str], host: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a copy of `env` with `${VAR}` and `${VAR:-default}` replaced from the host's environment.

    Variables that are not allowed count as unset. Raises TrialError(env_missing) for one without a default.
    """
    host = os.environ if host is None else host
    resolved = {}
    for key, value in env.items():
        match = _TEMPLATE.fullmatch(value)
        if match is None:
            resolved[key] = value
            continue
        name, default = match.groups()
        found = host.get(name, default) if name in allowed else default
        if found is None:
            raise TrialError("env_missing", f"{key} = {value}: {_remedy(name, name in allowed, name in host)}")
        resolved[key] = found
    return resolved


def _remedy(name: str, is_allowed: bool, is_set: bool) -> str:
    if is_allowed:
        return f"set {name} in tbench's environment"
    also = "" if is_set else f", and set {name} in tbench's environment"
    return f"{name} is not allowed; add --allow-env {name}{also}"
