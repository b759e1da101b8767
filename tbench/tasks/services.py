"""The compose file in a folder of a task, read with the variables that the task may have."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from tbench.compose.file import ComposeFile, read_compose
from tbench.compose.interpolation import Variables
from tbench.compose.project import COMPOSE_FILE, IMAGE_OF_MAIN, LOGS_OF_MAIN
from tbench.errors import TrialError
from tbench.tasks.consent import resolve_env
from tbench.tasks.format import EnvironmentSection

_LOGS = {"VERIFIER_LOGS": "verifier", "AGENT_LOGS": "agent", "ARTIFACTS": "artifacts"}


def read_services(
    folder: Path,
    text: bytes,
    settings: EnvironmentSection,
    allowed: Collection[str],
    host: Mapping[str, str] | None = None,
) -> ComposeFile:
    """The content `text` of the compose file in `folder`. Raises TaskInvalid."""
    host = os.environ if host is None else host
    given = {name: host[name] for name in allowed if name in host}
    own = {**_known_values(settings, allowed, host), **_variables_of_harbor(folder, settings)}
    return read_compose(folder / COMPOSE_FILE, text, Variables(own, given))


def _known_values(settings: EnvironmentSection, allowed: Collection[str], host: Mapping[str, str]) -> dict[str, str]:
    """The variables of [environment.env], but for those whose values are not given: they are reported as such."""
    known: dict[str, str] = {}
    for key, value in settings.env.items():
        try:
            known |= resolve_env({key: value}, allowed, host)
        except TrialError:
            continue
    return known


def _variables_of_harbor(folder: Path, settings: EnvironmentSection) -> dict[str, str]:
    """What compose files of tasks may rely on; those of log folders and of tests are of older tasks."""
    found = {
        "CONTEXT_DIR": str(folder),
        "MAIN_IMAGE_NAME": IMAGE_OF_MAIN,
        "CPUS": f"{settings.cpus:g}",
        "MEMORY": f"{settings.memory_mb:.0f}M",
        "TEST_DIR": "/tests",
    }
    if settings.docker_image:
        found["PREBUILT_IMAGE_NAME"] = settings.docker_image
    for name, below in _LOGS.items():
        found |= {f"HOST_{name}_PATH": f"{LOGS_OF_MAIN}/{below}", f"ENV_{name}_PATH": f"/logs/{below}"}
    return found
