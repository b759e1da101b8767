"""The parts of a trial, agent and verifier once each: all of it, or the steps of its task, and what they come to."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from harness.trajectory import Outcome, Trajectory, Usage
from tbench.agents.trial_agent import AgentReport, TrialAgent, agent_user, terminal_socket
from tbench.errors import TrialError
from tbench.results import NOTHING_SEEN, ErrorInfo, Integrity, TaskStepResult, Timings
from tbench.reward import canonical
from tbench.sandbox.archive import FileEntry
from tbench.sandbox.backend import BUSYBOX, Sandbox
from tbench.sandbox.startup import wait_until_healthy
from tbench.storage.run_store import StepLog
from tbench.tasks.task import Task
from tbench.verify.report import NO_FACTS, Facts

# A part of a trial, agent and verifier once each: all of it, or one step of its task.


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


SETUP_SEC = 600.0
"""Wall time of a step's setup.sh."""
_PREPARE_SEC = 60.0
_SETUP_SCRIPT = "setup.sh"
# Output goes to a file: a server that the script leaves running would hold the stream open.
_SET_UP = """cd {workdir} && bash {script} >/logs/agent/setup.txt 2>&1 </dev/null
code=$?
[ $code = 0 ] || {busybox} tail -c 400 /logs/agent/setup.txt
exit $code
"""


async def prepare_step(step: Task, sandbox: Sandbox, before: int) -> None:
    """Make the sandbox ready for a step that comes after so many others. Raises TrialError.

    Tests and logs of the step before are removed, the step's files are put into the working directory, its setup.sh
    runs, and its healthcheck is waited for.
    """
    workdir = sandbox.workdir.rstrip("/")
    ended = await sandbox.shell(
        _script(),
        timeout_sec=_PREPARE_SEC,
        user="root",
        environment={
            "TBENCH_STEP_WORKDIR": sandbox.workdir,
            "TBENCH_STEP_BEFORE": str(before),
            "TBENCH_STEP_TERMINAL": terminal_socket(step),
        },
    )
    if ended.exit_code != 0:
        raise TrialError("sandbox_failed", "tests and logs of the step before could not be removed")
    if step.workdir:
        owner = await _owner(step, sandbox)
        await sandbox.put(
            {f"{workdir}/{name}": FileEntry(each.data, each.mode, owner) for name, each in step.workdir.items()}
        )
    if _SETUP_SCRIPT in step.workdir:
        await _set_up(step, sandbox, f"{workdir}/{_SETUP_SCRIPT}")
    if step.step is not None and step.step.healthcheck is not None:
        await wait_until_healthy(sandbox, step.step.healthcheck, agent_user(step))


@cache
def _script() -> str:
    return Path(__file__).with_name("prepare_step.sh").read_text()


async def _owner(step: Task, sandbox: Sandbox) -> tuple[int, int]:
    """Numbers of the agent's user and group, to whom the files of a step belong."""
    if agent_user(step) in (None, "root", "0") and sandbox.runs_as_root:
        return 0, 0
    asked = f"{BUSYBOX} id -u; {BUSYBOX} id -g"
    ended = await sandbox.shell(asked, timeout_sec=_PREPARE_SEC, user=agent_user(step))
    numbers = ended.output.split()
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        raise TrialError("sandbox_failed", "the container does not tell the number of the agent's user")
    return int(numbers[0]), int(numbers[1])


async def _set_up(step: Task, sandbox: Sandbox, path: str) -> None:
    script = _SET_UP.format(workdir=shlex.quote(sandbox.workdir), script=shlex.quote(path), busybox=BUSYBOX)
    ended = await sandbox.shell(script, timeout_sec=SETUP_SEC, user=agent_user(step))
    if ended.exit_code == 0 and not ended.timed_out:
        return
    words = ended.output.decode("utf-8", "replace").strip() or "it printed nothing"
    why = f"took longer than {SETUP_SEC:.0f} s" if ended.timed_out else f"ended with {ended.exit_code}: {words[-200:]}"
    files = await sandbox.fetch("/logs/agent", 1 << 20)
    kept = {f"agent/{name}": data for name, data in files.items() if name == "setup.txt"}
    assert step.step is not None
    raise TrialError("setup_failed", f"setup.sh of step {step.step.name} {why}", files=kept)


def why_stopped(part: TrialPart) -> str:
    """Why no step follows this one: its reward, or one of its metrics, is below what the step asks for; else empty."""
    step = part.task.step
    if step is None or step.min_reward is None:
        return ""
    asked = step.min_reward if isinstance(step.min_reward, Mapping) else {"reward": step.min_reward}
    told = part.metrics or ({} if part.reward is None else {"reward": part.reward})
    for name, least in asked.items():
        if (found := told.get(name)) is None:
            return f"no {name}, and min_reward is {least:g}"
        if canonical(found) < canonical(least):
            return f"{name} {found:g} is below min_reward {least:g}"
    return ""


class Judged(Protocol):
    """A part of a trial as far as its verdict goes."""

    @property
    def task(self) -> Task: ...

    @property
    def reward(self) -> float | None: ...

    @property
    def metrics(self) -> Mapping[str, float]: ...

    @property
    def integrity(self) -> Integrity: ...


def reward_of(task: Task, parts: Sequence[Judged]) -> float | None:
    """The reward of a trial: the mean over the steps that were begun, or that of the last of them.

    None where one of them has no verdict.
    """
    rewards = [part.reward for part in parts if part.reward is not None]
    if not rewards or len(rewards) < len(parts):
        return None
    return rewards[-1] if _is_final(task) else sum(rewards) / len(rewards)


def reward_of_all(task: Task, parts: Sequence[Judged]) -> float | None:
    """The same with 0 for each step that was never begun; None also for a task without steps."""
    reward, count = reward_of(task, parts), len(task.steps)
    if reward is None or not count:
        return None
    if _is_final(task):
        return reward if len(parts) == count else 0.0
    return reward * len(parts) / count


def metrics_of(task: Task, parts: Sequence[Judged]) -> dict[str, float]:
    """The metrics of a trial: of each the mean over the steps that were begun, or those of the last of them.

    As in Harbor a step that does not tell a metric counts as 0.
    """
    counted = parts[-1:] if _is_final(task) else parts
    names = dict.fromkeys(name for part in counted for name in part.metrics)
    return {name: sum(part.metrics.get(name, 0.0) for part in counted) / len(counted) for name in names}


def task_steps(task: Task, parts: Sequence[TrialPart]) -> tuple[TaskStepResult, ...]:
    """What became of each step of a task; empty without steps, and where none of them was begun."""
    if not parts:
        return ()
    never = task.steps[len(parts) :]
    left = [TaskStepResult(name=each.step.name, begun=False) for each in never if each.step is not None]
    return (*(part.result() for part in parts if part.task.step is not None), *left)


def _is_final(task: Task) -> bool:
    return task.file.multi_step_reward_strategy == "final"


def integrity_of(parts: Sequence[Judged]) -> Integrity:
    """What the verdict about all steps rests on: of each what speaks against it, with its name."""
    if not parts:
        return Integrity()
    seen = [(part.task.step.name, part.integrity) for part in parts if part.task.step is not None]
    return parts[-1].integrity.model_copy(
        update={
            "tamper": tuple(f"{sign} (step {name})" for name, each in seen for sign in each.tamper),
            "evidence": tuple(dict.fromkeys(path for _, each in seen for path in each.evidence)),
            "repairs": tuple(f"{repair} (step {name})" for name, each in seen for repair in each.repairs),
            "regrades": sum(each.regrades for _, each in seen),
            "rewards": {f"{name}/{where}": reward for name, each in seen for where, reward in each.rewards.items()},
            "remarks": tuple(f"{remark} (step {name})" for name, each in seen for remark in each.remarks),
        }
    )
