"""Parts of a trial, each one agent and one verifier: the whole trial, or one step of its task."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from harness.checkpoint import Conversation
from harness.trajectory import Frozen, Outcome, Trajectory, Usage
from tbench.agents.trial_agent import AgentReport, TrialAgent, agent_user, terminal_socket
from tbench.errors import TrialError
from tbench.results import NOTHING_SEEN, ErrorInfo, Integrity, TaskStepResult, Timings
from tbench.reward import canonical
from tbench.sandbox.archive import FileEntry
from tbench.sandbox.backend import BUSYBOX, STOP_OTHERS, Sandbox
from tbench.sandbox.startup import wait_until_healthy
from tbench.storage.read_run import read_trajectory
from tbench.storage.run_files import CHECKPOINTS_NAME
from tbench.storage.run_store import StepLog
from tbench.tasks.format import StepSection
from tbench.tasks.task import Task
from tbench.verify.report import Facts
from tbench.verify.verifier import Verdict, VerifierFailed

VerifierOutcome = Verdict | VerifierFailed
"""Outcome of a verifier: a verdict, or its failure."""


class EndedPart(Frozen):
    """A step of a task that has ended with a verdict, whose files are in its directory. Times in seconds."""

    outcome: Outcome | None
    reward: float
    metrics: dict[str, float]
    integrity: Integrity
    prepare_sec: float
    agent_sec: float
    verifier_sec: float
    tests_sec: float
    memory_peak_bytes: int


@dataclass
class TrialPart:
    """Results of one part so far; an error does not discard the rest. Times in seconds."""

    task: Task
    """The task, or its view for the task step."""
    agent: TrialAgent
    directory: Path
    """Directory of the part's files."""
    earlier: TrialAgent | None = None
    """Agent of the previous step, if its conversation continues."""
    report: AgentReport | None = None
    verdict: VerifierOutcome | None = None
    """Outcome of its verifier; None before it has ended."""
    error: ErrorInfo | None = None
    stopped: str = ""
    """Why no further task step follows, although there is one."""
    files: dict[str, bytes] = field(default_factory=dict)
    prepare_sec: float = 0.0
    agent_sec: float = 0.0
    verifier_sec: float = 0.0
    before: Conversation | None = None
    """The conversation to continue, if another process has begun it."""

    def __post_init__(self) -> None:
        self.log = StepLog(self.directory, lines=len(self.before.steps) if self.before else 0)
        kept = self.before.lines if self.before else 0
        self.checkpoints = StepLog(self.directory, CHECKPOINTS_NAME, lines=kept)

    @classmethod
    def restored(cls, task: Task, agent: TrialAgent, directory: Path, ended: EndedPart) -> TrialPart:
        """Return a part that another process has ended. Raises RunUnreadable."""
        assert ended.outcome is not None
        facts = Facts(memory_peak_bytes=ended.memory_peak_bytes, took_sec=ended.tests_sec)
        return cls(
            task,
            agent,
            directory,
            report=AgentReport(ended.outcome, read_trajectory(directory)),
            verdict=Verdict(ended.reward, {}, ended.integrity, facts, ended.metrics),
            prepare_sec=ended.prepare_sec,
            agent_sec=ended.agent_sec,
            verifier_sec=ended.verifier_sec,
        )

    @property
    def ended(self) -> EndedPart:
        """The facts about this ended part that another process needs."""
        verdict = self.verdict
        assert isinstance(verdict, Verdict)
        return EndedPart(
            outcome=self.outcome,
            reward=verdict.reward,
            metrics=dict(verdict.metrics),
            integrity=verdict.integrity,
            prepare_sec=self.prepare_sec,
            agent_sec=self.agent_sec,
            verifier_sec=self.verifier_sec,
            tests_sec=verdict.facts.took_sec,
            memory_peak_bytes=verdict.facts.memory_peak_bytes,
        )

    @property
    def trajectory(self) -> Trajectory | None:
        """The agent's trajectory, even if it was cut short; None if it has none."""
        trajectory = self.report.trajectory if self.report is not None else self.agent.partial()
        if trajectory is None or self.log.problem is None:
            return trajectory
        return trajectory.model_copy(update={"warnings": {**trajectory.warnings, "steps_incomplete": 1}})

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the agent; None if it has not begun."""
        if self.report is not None:
            return self.report.outcome
        trajectory = self.agent.partial()
        return None if trajectory is None else trajectory.outcome

    def result(self) -> TaskStepResult:
        """Return the part's result as a task step."""
        trajectory = self.trajectory
        return TaskStepResult(
            **verdict_fields(self.verdict) | {"error": self.error},
            name=self.task.step_name,
            outcome=self.outcome,
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
                tests_sec=round(self.verdict.facts.took_sec, 4) if self.verdict is not None else 0.0,
                wall_sec=round(self.prepare_sec + self.agent_sec + self.verifier_sec, 4),
            ),
        )


def _seconds(trajectory: Trajectory | None, read: Callable[[Trajectory], float]) -> float:
    return round(read(trajectory), 4) if trajectory is not None else 0.0


SETUP_SEC = 600.0
"""Time limit of a step's setup.sh, in seconds."""
_PREPARE_SEC = 60.0
_SETUP_SCRIPT = "setup.sh"
# Output goes to a file: a server that the script leaves running would keep the stream open.
_SET_UP = """cd {workdir} && bash {script} >/logs/agent/setup.txt 2>&1 </dev/null
code=$?
[ $code = 0 ] || {busybox} tail -c 400 /logs/agent/setup.txt
exit $code
"""


async def prepare_step(step: Task, sandbox: Sandbox, before: int) -> None:
    """Prepare the sandbox for a task step that follows `before` others. Raises TrialError.

    Removes tests and logs of the previous step, puts the step's files into the working directory, runs its setup.sh,
    and waits for its healthcheck.
    """
    workdir = sandbox.workdir.rstrip("/")
    ended = await sandbox.shell(
        _prepare_script(),
        timeout_sec=_PREPARE_SEC,
        user="root",
        environment={
            "TBENCH_STEP_WORKDIR": sandbox.workdir,
            "TBENCH_STEP_BEFORE": str(before),
            "TBENCH_STEP_TERMINAL": terminal_socket(step),
        },
    )
    if ended.exit_code != 0:
        raise TrialError("sandbox_failed", "tests and logs of the previous step could not be removed")
    if step.workdir:
        owner = await _owner_ids(step, sandbox)
        await sandbox.put(
            {f"{workdir}/{name}": FileEntry(each.data, each.mode, owner) for name, each in step.workdir.items()}
        )
    if _SETUP_SCRIPT in step.workdir:
        await _set_up(step, sandbox, f"{workdir}/{_SETUP_SCRIPT}")
    if step.step is not None and step.step.healthcheck is not None:
        await wait_until_healthy(sandbox, step.step.healthcheck, agent_user(step))


@cache
def _prepare_script() -> str:
    return STOP_OTHERS + Path(__file__).with_name("prepare_step.sh").read_text()


async def _owner_ids(step: Task, sandbox: Sandbox) -> tuple[int, int]:
    """Return the ids of the agent's user and group, who own the files of a step."""
    if agent_user(step) in (None, "root", "0") and sandbox.runs_as_root:
        return 0, 0
    asked = f"{BUSYBOX} id -u; {BUSYBOX} id -g"
    ended = await sandbox.shell(asked, timeout_sec=_PREPARE_SEC, user=agent_user(step))
    numbers = ended.output.split()
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        raise TrialError("sandbox_failed", "the ids of the agent's user cannot be read in the container")
    return int(numbers[0]), int(numbers[1])


async def _set_up(step: Task, sandbox: Sandbox, path: str) -> None:
    script = _SET_UP.format(workdir=shlex.quote(sandbox.workdir), script=shlex.quote(path), busybox=BUSYBOX)
    ended = await sandbox.shell(script, timeout_sec=SETUP_SEC, user=agent_user(step))
    if ended.exit_code == 0 and not ended.timed_out:
        return
    output = ended.output.decode("utf-8", "replace").strip() or "it printed nothing"
    why = f"took longer than {SETUP_SEC:.0f} s" if ended.timed_out else f"ended with {ended.exit_code}: {output[-200:]}"
    files = await sandbox.fetch("/logs/agent", 1 << 20)
    kept = {f"agent/{name}": data for name, data in files.items() if name == "setup.txt"}
    raise TrialError("setup_failed", f"setup.sh of step {step.step_name} {why}", files=kept)


def why_stopped(step: StepSection | None, verdict: Verdict) -> str:
    """Return why no step follows: the reward or a metric is below the step's minimum. Empty if neither is."""
    if step is None or step.min_reward is None:
        return ""
    asked = step.min_reward if isinstance(step.min_reward, Mapping) else {"reward": step.min_reward}
    metrics = verdict.metrics or {"reward": verdict.reward}
    for name, least in asked.items():
        if (found := metrics.get(name)) is None:
            return f"no {name}, but min_reward is {least:g}"
        if canonical(found) < canonical(least):
            return f"{name} {found:g} is below min_reward {least:g}"
    return ""


def verdict_fields(verdict: VerifierOutcome | None) -> dict[str, Any]:
    """Return the fields of a trial's or step's result that come from its verifier; none before it has ended."""
    if verdict is None:
        return {}
    if isinstance(verdict, VerifierFailed):
        return {"reward": None, "metrics": {}, "error": ErrorInfo.of(verdict)}
    return {"reward": verdict.reward, "metrics": dict(verdict.metrics), "error": None}


def reward_fields(task: Task, verdicts: Sequence[VerifierOutcome | None]) -> dict[str, Any]:
    """Return the reward fields of a trial's result from the verdicts about the parts that were begun.

    Reward and metrics are means over the parts, or the last part's. As in Harbor, a metric that a part does
    not report counts as 0. In `reward_all_steps`, steps that were never begun also count as 0; it is None for a task
    without steps. If any part has no verdict, the trial has none.
    """
    judged = [each for each in verdicts if isinstance(each, Verdict)]
    if not judged or len(judged) < len(verdicts):
        return {"reward": None, "metrics": {}, "reward_all_steps": None}
    is_final, steps = task.file.multi_step_reward_strategy == "final", len(task.steps)
    counted = judged[-1:] if is_final else judged
    reward = sum(each.reward for each in counted) / len(counted)
    combined_load = reward * len(judged) / max(steps, 1)
    if is_final:
        combined_load = reward if len(judged) == steps else 0.0
    names = dict.fromkeys(name for each in counted for name in each.metrics)
    return {
        "reward": reward,
        "metrics": {name: sum(each.metrics.get(name, 0.0) for each in counted) / len(counted) for name in names},
        "reward_all_steps": combined_load if steps else None,
    }


def task_steps(task: Task, parts: Sequence[TrialPart]) -> tuple[TaskStepResult, ...]:
    """Return the results of a task's steps; empty without steps, and if none was begun."""
    if not parts:
        return ()
    never = task.steps[len(parts) :]
    left = [TaskStepResult(name=each.step_name, begun=False) for each in never]
    return (*(part.result() for part in parts if part.task.step is not None), *left)


def merge_integrity(verdicts: Mapping[str, VerifierOutcome | None]) -> Integrity:
    """Return the integrity record of a trial, merged from the records of its steps; signs name their step.

    The key of a trial without steps is empty.
    """
    seen = {name: NOTHING_SEEN if each is None else each.integrity for name, each in verdicts.items()}
    if seen.keys() <= {""}:
        return seen.get("", NOTHING_SEEN)
    last = [*seen.values()][-1]
    return last.model_copy(
        update={
            "tamper": tuple(f"{sign} (step {name})" for name, each in seen.items() for sign in each.tamper),
            "evidence": tuple(dict.fromkeys(path for each in seen.values() for path in each.evidence)),
            "repairs": tuple(f"{repair} (step {name})" for name, each in seen.items() for repair in each.repairs),
            "regrades": sum(each.regrades for each in seen.values()),
            "rewards": {
                f"{name}/{where}": reward for name, each in seen.items() for where, reward in each.rewards.items()
            },
            "remarks": tuple(f"{remark} (step {name})" for name, each in seen.items() for remark in each.remarks),
        }
    )
