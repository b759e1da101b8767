"""What a step of a task says, merged with what the task says: as if it were a task of its own."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tbench.tasks.format import StepSection, TaskFile, VerifierSection

_POLICY = {"network_mode", "allowed_hosts"}
"""Keys that hold together: whoever gives one of them gives both."""


def step_file(file: TaskFile, step: StepSection, *, has_image: bool = False) -> TaskFile:
    """The content of task.toml as it is for one step.

    `has_image`: the step's own tests/ is what an image for its verifier is built of.
    """
    return file.model_copy(
        update={
            "agent": file.agent.model_copy(update=_given(step.agent)),
            "verifier": _verifier(file.verifier, step.verifier, has_image),
            "artifacts": (*file.artifacts, *step.artifacts),
            "steps": [],
        }
    )


def _given(section: BaseModel) -> dict[str, Any]:
    """The keys of a table that a step gives, by which those of the task are replaced."""
    names = section.model_fields_set
    if names & _POLICY:
        names = names | _POLICY
    return {name: getattr(section, name) for name in names}


def _verifier(task: VerifierSection, step: VerifierSection, has_image: bool) -> VerifierSection:
    mode = step.environment_mode or ("separate" if step.environment else None) or task.environment_mode
    given = _given(step) | {
        "env": {**task.env, **step.env},
        "collect": (*task.collect, *step.collect),
        "environment_mode": mode,
        "environment": None,
    }
    if mode != "shared":
        environment = step.environment or task.environment
        if environment is not None:
            image = step.environment.docker_image if step.environment else None
            if image is None and not has_image and task.environment is not None:
                image = task.environment.docker_image
            environment = environment.model_copy(update={"docker_image": image})
        given["environment"] = environment
    return task.model_copy(update=given)
