"""The plan of a trial, and the progress from which its result is made, however it ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from harness.checkpoint import Conversation
from harness.reply_stats import ReplyStats
from harness.trajectory import Usage
from tbench.events import Phase, TrialPhase
from tbench.results import ErrorInfo, HostSample, ImageOrigin, Timings, TrialResult, WentOn
from tbench.sandbox.underway import UnderWay
from tbench.tasks.task import Task

if TYPE_CHECKING:
    from tbench.runs.task_steps import EndedPart, TrialPart


@dataclass(frozen=True)
class Cut:
    """The remains of a trial that was interrupted."""

    note: UnderWay
    cut_at: float
    """Unix time of the last known work of its process."""
    conversation: Conversation | None = None
    """The agent's conversation; None if it has none."""
    ended: tuple[EndedPart, ...] = ()
    """Steps of its task before the interrupted one."""
    lost: str = ""
    """Why its attempt ended without its sandbox; empty if it may still have one."""
    why_replayed: str = ""
    """Why it cannot continue in its sandbox, even if the sandbox still exists; empty if it can."""
    replays_lost: int = 0
    """Number of replays that could not be finished."""

    @property
    def phase_sec(self) -> float:
        """Time that the phase had taken."""
        return max(0.0, self.cut_at - self.note.entered_at)

    @property
    def wall_sec(self) -> float:
        """Time that the trial had taken."""
        return self.note.wall_sec + self.phase_sec

    @property
    def agent_sec(self) -> float:
        """Time that the agent had taken."""
        return self.note.agent_sec + (0.0 if self.has_worked else self.phase_sec)

    @property
    def has_worked(self) -> bool:
        """Whether the agent had ended."""
        return self.note.phase == "verifier"

    def went_on(
        self, how: Literal["attached", "replayed"], differs: str = "", *, counts: bool = True
    ) -> tuple[WentOn, ...]:
        """Return all interruptions of the trial, including this one."""
        if how == "attached" and self.has_worked:
            return (*self.note.went_on, WentOn(at_step=0, how="verifier"))
        step = self.conversation.step if self.conversation is not None else 0
        return (*self.note.went_on, WentOn(at_step=step, how=how, differs=differs, counts=counts))


@dataclass(frozen=True)
class TrialPlan:
    """A trial to run: a task and a seed. `task` is None for a directory that could not be read."""

    trial: str
    task_name: str
    seed: int
    task: Task | None
    invalid: str = ""
    attempt: int = 1
    """Number of the next attempt: above 1 if earlier ones were cut short or had an error."""
    cut: Cut | None = None
    """The remains of the attempt, if another process has begun it."""


def phase_event(plan: TrialPlan, phase: Phase) -> TrialPhase:
    """Return the event that a plan's attempt has entered a phase."""
    return TrialPhase(trial=plan.trial, attempt=plan.attempt, task=plan.task_name, seed=plan.seed, phase=phase)


@dataclass
class TrialProgress:
    """Results of a trial so far; an error does not discard the rest. Times in seconds."""

    plan: TrialPlan
    parts: list[TrialPart] = field(default_factory=list)
    """The task steps that were begun, or the whole trial as one part."""
    error: ErrorInfo | None = None
    image_id: str | None = None
    image_origin: ImageOrigin | None = None
    verifier_image_id: str | None = None
    verifier_image_origin: ImageOrigin | None = None
    out_of_memory: bool = False
    kept: dict[str, str] = field(default_factory=dict)
    """Container and images that are kept on the engine, by kind."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Files of the trial that belong to none of its parts."""
    sandbox_sec: float = 0.0
    went_on: tuple[WentOn, ...] = ()

    @property
    def evidence(self) -> dict[str, bytes]:
        """Files of the current part; before the first part, the trial's files."""
        return self.parts[-1].files if self.parts else self.files

    @property
    def reward_fields(self) -> dict[str, Any]:
        """Reward fields of the trial's result; empty after an error."""
        from tbench.runs.task_steps import reward_fields  # imports the verifier, which a plan does not need

        task, verdicts = self.plan.task, [part.verdict for part in self.parts]
        return {} if task is None or self.error is not None else reward_fields(task, verdicts)

    def result(
        self,
        *,
        run: str,
        agent: str,
        model: str | None,
        final: bool,
        started_at: datetime,
        queue_sec: float,
        wall_sec: float,
        host: HostSample | None,
        out_of_memory: bool,
        human_touched: bool = False,
        machine: str | None = None,
    ) -> TrialResult:
        """Return the result of the trial, which ends now."""
        from tbench.runs.task_steps import merge_integrity, task_steps

        plan, parts, task = self.plan, self.parts, self.plan.task
        facts = [part.verdict.facts for part in parts if part.verdict is not None]
        peak = max((each.memory_peak_bytes for each in facts), default=0)
        found = [trajectory for part in parts if (trajectory := part.trajectory) is not None]
        return TrialResult(
            **self.reward_fields,
            run=run,
            trial=plan.trial,
            task=plan.task_name,
            seed=plan.seed,
            attempt=plan.attempt,
            final=final,
            agent=agent,
            model=model,
            outcome=parts[-1].outcome if parts else None,
            error=self.error,
            steps=sum(len(each.steps) for each in found),
            usage=sum((each.usage for each in found[1:]), found[0].usage) if found else Usage(),
            replies_from=sum((each.replies_from for each in found), Counter()),
            replies=ReplyStats.sum(map(ReplyStats.from_trajectory, found)),
            timings=Timings(
                queue_sec=round(queue_sec, 4),
                sandbox_sec=round(self.sandbox_sec + sum(part.prepare_sec for part in parts), 4),
                agent_sec=round(sum(part.agent_sec for part in parts), 4),
                model_sec=round(sum(each.model_sec for each in found), 4),
                waited_sec=round(sum(each.waited_sec for each in found), 4),
                command_sec=round(sum(each.command_sec for each in found), 4),
                verifier_sec=round(sum(part.verifier_sec for part in parts), 4),
                tests_sec=round(sum(each.took_sec for each in facts), 4),
                wall_sec=round(wall_sec, 4),
            ),
            started_at=started_at,
            finished_at=datetime.now(UTC),
            host=host,
            human_touched=human_touched,
            machine=machine,
            went_on=self.went_on,
            integrity=merge_integrity({part.task.step_name: part.verdict for part in parts}),
            image_id=self.image_id,
            image_origin=self.image_origin,
            verifier_image_id=self.verifier_image_id,
            verifier_image_origin=self.verifier_image_origin,
            out_of_memory=self.out_of_memory or out_of_memory,
            memory_peak_mb=round(peak / (1 << 20), 1) if peak else None,
            task_steps=task_steps(task, parts) if task is not None else (),
        )
