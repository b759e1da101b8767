"""Features of Harbor's task format that tbench lacks, by name: a task that needs one of them is not run.

Only what would change how a task is run or verified is named; what has no such effect in Harbor either is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tbench.tasks.format import EnvironmentSection, TaskFile
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


FEATURES: Mapping[str, Callable[[TaskFile, Path], bool]] = {
    "trajectory.json": _has_file("trajectory.json"),
    "steps/*/trajectory.json": _of_a_step("trajectory.json"),
    "environment.os = windows": _in_any(lambda each: each.os == "windows"),
    "environment.tpu": _in_any(lambda each: each.tpu is not None),
}
