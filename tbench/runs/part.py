"""A part of a trial, agent and verifier once each: all of it, or one step of its task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.trajectory import Outcome, Trajectory, Usage
from tbench.agents.trial_agent import AgentReport, TrialAgent
from tbench.results import NOTHING_SEEN, ErrorInfo, Integrity, TaskStepResult, Timings
from tbench.storage.trial_files import StepLog
from tbench.tasks.task import Task
from tbench.verify.report import NO_FACTS, Facts


@dataclass
class TrialPart:
    """What one part has yielded so far; an error leaves the rest as it is. Units: seconds."""

    task: Task
    """The task, or its view for the step."""
    agent: TrialAgent
    directory: Path
    """Directory of its files."""
    report: AgentReport | None = None
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    integrity: Integrity = NOTHING_SEEN
    error: ErrorInfo | None = None
    stopped: str = ""
    """Why no other step follows, though there is one."""
    files: dict[str, bytes] = field(default_factory=dict)
    prepare_sec: float = 0.0
    agent_sec: float = 0.0
    verifier_sec: float = 0.0
    facts: Facts = NO_FACTS

    def __post_init__(self) -> None:
        self.log = StepLog(self.directory)

    @property
    def trajectory(self) -> Trajectory | None:
        """What the agent did, also where it was cut short; None for one without a trajectory."""
        trajectory = self.report.trajectory if self.report is not None else self.agent.partial()
        if trajectory is None or self.log.problem is None:
            return trajectory
        return trajectory.model_copy(update={"warnings": {**trajectory.warnings, "steps_incomplete": 1}})

    @property
    def outcome(self) -> Outcome | None:
        """How the agent ended."""
        if self.report is not None:
            return self.report.outcome
        trajectory = self.agent.partial()
        return None if trajectory is None else trajectory.outcome

    def result(self) -> TaskStepResult:
        """What became of it as a step of its task."""
        trajectory = self.trajectory
        assert self.task.step is not None
        return TaskStepResult(
            name=self.task.step.name,
            reward=self.reward,
            metrics=self.metrics,
            outcome=self.outcome,
            error=self.error,
            stopped=self.stopped,
            steps=len(trajectory.steps) if trajectory else 0,
            usage=trajectory.usage if trajectory else Usage(),
            timings=Timings(
                sandbox_sec=round(self.prepare_sec, 4),
                agent_sec=round(self.agent_sec, 4),
                model_sec=_seconds(trajectory, lambda each: each.model_sec),
                waited_sec=_seconds(trajectory, lambda each: each.waited_sec),
                command_sec=_seconds(trajectory, lambda each: each.command_sec),
                verifier_sec=round(self.verifier_sec, 4),
                tests_sec=round(self.facts.took_sec, 4),
                wall_sec=round(self.prepare_sec + self.agent_sec + self.verifier_sec, 4),
            ),
        )


def _seconds(trajectory: Trajectory | None, read: Callable[[Trajectory], float]) -> float:
    return round(read(trajectory), 4) if trajectory is not None else 0.0
