"""What the agent of a stored trial is given again when it is done anew up to a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.oversight import Declined
from harness.trajectory import Intervention, Reply, Step, Trajectory
from tbench.errors import UsageError
from tbench.runs.live.course import CourseStep, Exchange, Steps


def known_until(step: int, steps: Sequence[Step], trajectory: Trajectory | None) -> tuple[Steps, ...]:
    """The steps before that one, so that the model is asked for it anew. Raises UsageError where they cannot be had."""
    if not 1 <= step <= len(steps):
        raise UsageError(f"has {len(steps)} steps, and no step {step}")
    interventions: dict[int, list[Intervention]] = {}
    for each in trajectory.interventions if trajectory is not None else ():
        interventions.setdefault(each.step, []).append(each)
    for compaction in trajectory.compactions if trajectory is not None else ():
        if (at := compaction.step) < step:
            raise UsageError(f"its history was made shorter at step {at}; name a step up to {at}")
    return (tuple(_known(each, interventions) for each in steps[: step - 1]),)


def _known(step: Step, interventions: Mapping[int, Sequence[Intervention]]) -> CourseStep:
    there = interventions.get(step.index, ())
    if any(each.kind == "typed" for each in there):
        raise UsageError(f"somebody has typed into its terminal at step {step.index}; name a step up to {step.index}")
    refused = next((each.text for each in there if each.kind == "refused"), None)
    return CourseStep(
        said=tuple(each.text for each in there if each.kind == "message"),
        asked=[_answered(step.reply)],
        drafted=1,
        decided=step.reply if refused is None else Declined(refused),
        observation=step.observation,
    )


def _answered(reply: Reply) -> Exchange:
    """The reply to a query of which nothing else is known."""
    return Exchange(None, 0, (), None, 0, (), reply)
