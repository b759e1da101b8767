"""What the `env` tables of task.toml take from tbench's own environment: only variables that the user allows by name.

A task may be a stranger's, and every variable it gets can leave the machine with its container's network.
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
class Wish:
    """A value of task.toml, `${VAR}` or `${VAR:-default}`, that is to come from tbench's environment."""

    key: str
    """Dotted key in the file."""
    variable: str
    has_default: bool
    file: str = "task.toml"
    """Path of the file in the task."""

    @property
    def without_consent(self) -> str:
        """What becomes of it where the variable is not allowed, and the flag that allows it."""
        otherwise = "its default" if self.has_default else "the error env_missing"
        return f"without --allow-env {self.variable} it has {otherwise}"


def wishes(file: TaskFile) -> Iterator[Wish]:
    """Everything that a task asks of tbench's environment, in the order of its container's life."""
    tables = {"environment": file.environment.env, "solution": file.solution.env, "verifier": file.verifier.env}
    if file.verifier.environment is not None:
        tables["verifier.environment"] = file.verifier.environment.env
    for section, table in tables.items():
        for key, value in table.items():
            if match := _TEMPLATE.fullmatch(value):
                yield Wish(f"{section}.env.{key}", match[1], has_default=match[2] is not None)
    for step in file.steps:
        for key, value in step.verifier.env.items():
            if match := _TEMPLATE.fullmatch(value):
                yield Wish(f"verifier.env.{key} (step {step.name})", match[1], has_default=match[2] is not None)


def about_withheld(
    wished: Iterable[Wish], allowed: Collection[str], host: Mapping[str, str] | None = None
) -> str | None:
    """One line about variables that tasks wish for and the host's environment has, but that are not allowed.

    None where there are none.
    """
    host = os.environ if host is None else host
    asked = {wish.variable for wish in wished}
    names = sorted(name for name in asked if name in host and name not in allowed)
    if not names:
        return None
    flags = " ".join(f"--allow-env {name}" for name in names)
    return f"not given to the tasks that ask for it, though set here: {', '.join(names)}; {flags} allows it"


def missing_variables(wished: Iterable[Wish], allowed: Collection[str]) -> list[str]:
    """What is wished for without a default and not given: key and remedy each."""
    host, missing = os.environ, list[str]()
    for wish in wished:
        name = wish.variable
        if not wish.has_default and not (name in allowed and name in host):
            missing.append(f"{wish.key} = ${{{name}}}: {_what_to_do(name, name in allowed, name in host)}")
    return missing


def resolve_env(
    env: Mapping[str, str], allowed: Collection[str], host: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Copy of `env` with values `${VAR}` and `${VAR:-default}` taken from the host's environment, where VAR is allowed.

    A variable that is not allowed is as good as not set. Raises TrialError(env_missing) for one without a default.
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
            raise TrialError("env_missing", f"{key} = {value}: {_what_to_do(name, name in allowed, name in host)}")
        resolved[key] = found
    return resolved


def _what_to_do(name: str, is_allowed: bool, is_set: bool) -> str:
    if is_allowed:
        return f"set {name} in the environment of tbench"
    also = "" if is_set else f", and set {name} there"
    return f"{name} comes from the environment of tbench only with consent: give --allow-env {name}{also}"
