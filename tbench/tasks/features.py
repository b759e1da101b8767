"""Features of Harbor's task format that tbench lacks, by name: a task that needs one of them is not run.

Only what would change how a task is run or verified is named; what has no such effect in Harbor either is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tbench.compose.project import COMPOSE_FILE
from tbench.tasks.format import EnvironmentSection, TaskFile
from tbench.tasks.network import Networks
from tbench.tasks.steps import step_file


def missing_features(file: TaskFile, path: Path) -> list[str]:
    """The features that the task at `path` needs and tbench lacks; those of a step alone say so."""
    named = [name for name, is_needed in FEATURES.items() if is_needed(file, path)]
    for step in file.steps:
        merged = step_file(file, step)
        for name, is_needed in FEATURES.items():
            if name not in named and is_needed(merged, path):
                named.append(f"{name} (step {step.name})")
    return named


def _environments(file: TaskFile) -> list[EnvironmentSection]:
    """The environments that the task describes: the agent's, and the verifier's own."""
    own = file.verifier.environment
    return [file.environment] if own is None else [file.environment, own]


def _in_any(needs: Callable[[EnvironmentSection], bool]) -> Callable[[TaskFile, Path], bool]:
    return lambda file, _: any(needs(each) for each in _environments(file))


def _has_file(name: str) -> Callable[[TaskFile, Path], bool]:
    return lambda _, path: (path / name).is_file()


def _of_a_step(name: str) -> Callable[[TaskFile, Path], bool]:
    return lambda file, path: any((path / "steps" / step.name / name).is_file() for step in file.steps)


def _changes_user(file: TaskFile, _: Path) -> bool:
    """Whether the agent of a step is another user than the task's: a sandbox has one."""
    return any(step.agent.user not in (None, file.agent.user) for step in file.steps)


def _switches_networks_of_services(file: TaskFile, path: Path) -> bool:
    """Whether several containers are to have another network for each phase, or one of some hosts only."""
    if (path / "environment" / COMPOSE_FILE).is_file() and not file.networks.is_plain:
        return True
    return file.verifier.is_separate and _verifier_has_services(file, path) and not _own_networks(file).is_plain


def _verifier_has_services(file: TaskFile, path: Path) -> bool:
    """Whether a verifier's own container has services beside it: by a compose file of its tests, else the agent's."""
    tests = path / "tests"
    brings = bool(file.verifier.image) or any((tests / name).is_file() for name in ("Dockerfile", COMPOSE_FILE))
    of_steps = (path / "steps" / step.name / "tests" for step in file.steps)
    folders = [tests if brings else path / "environment", *of_steps]
    return any((folder / COMPOSE_FILE).is_file() for folder in folders)


def _own_networks(file: TaskFile) -> Networks:
    """The networks of a verifier's own container: without a healthcheck it has that of its phase for life."""
    settings = file.verifier.environment or file.environment
    while_tests = file.verifier.network_in(settings.network)
    start = while_tests if settings.healthcheck is None else settings.network
    return Networks(start, start, while_tests)


FEATURES: Mapping[str, Callable[[TaskFile, Path], bool]] = {
    "trajectory.json": _has_file("trajectory.json"),
    "steps/*/trajectory.json": _of_a_step("trajectory.json"),
    "agent.user of a step unlike the task's": _changes_user,
    "networks of phases, or of some hosts only, with docker-compose.yaml": _switches_networks_of_services,
    "environment.os = windows": _in_any(lambda each: each.os == "windows"),
    "environment.tpu": _in_any(lambda each: each.tpu is not None),
}
