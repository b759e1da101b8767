"""What a job of Harbor was run with, as far as it may move a score and may be shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tbench.storage.imported_plan import Scalar

_WANTED = (
    *("timeout_multiplier", "agent_timeout_multiplier", "verifier_timeout_multiplier"),
    *("agent_setup_timeout_multiplier", "environment_build_timeout_multiplier", "extra_instructions"),
    *("agent.import_path", "agent.override_timeout_sec", "agent.max_timeout_sec", "agent.kwargs"),
    *("environment.type", "environment.import_path", "environment.override_cpus"),
    *("environment.override_memory_mb", "environment.override_storage_mb", "environment.override_gpus"),
    *("verifier.override_timeout_sec", "verifier.max_timeout_sec"),
)
_SECRET = re.compile(r"(?i)(?:^|[_.-])(?:api_?key|key|secret|password|passwd|token|credentials?|auth\w*|headers?|env)$")
_PLACES = re.compile(r"(?i)(?:^|_)(?:url|uri|base|host|endpoint|session_id|dir|path)$")
"""Names of settings that say where something is: they make no other run, and addresses may hold passwords."""
_LONGEST_VALUE = 200


def settings_of(config: Mapping[str, Any]) -> dict[str, Scalar]:
    """The settings in a trial's configuration by dotted name; neither secrets nor addresses, nor what is not set."""
    found: dict[str, Scalar] = {}
    for name in _WANTED:
        value: Any = config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        found.update(_scalars(name, value))
    return found


def common(settings: Iterable[Mapping[str, Scalar]]) -> tuple[dict[str, Scalar], tuple[str, ...]]:
    """The settings that all trials share, and the names of the others."""
    first: dict[str, Scalar] | None = None
    differing: set[str] = set()
    for each in settings:
        if first is None:
            first = dict(each)
        elif each != first:
            differing.update(name for name in each.keys() | first.keys() if each.get(name) != first.get(name))
    shared = {name: value for name, value in (first or {}).items() if name not in differing}
    return shared, tuple(sorted(differing))


def _scalars(name: str, value: object) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not _SECRET.search(str(key)) and not _PLACES.search(str(key)):
                yield from _scalars(f"{name}.{key}", part)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _scalars(f"{name}.{number}", part)
    elif isinstance(value, str):
        yield name, value[:_LONGEST_VALUE]
    elif isinstance(value, bool | int | float):
        yield name, value
