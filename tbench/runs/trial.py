"""One trial: sandbox → agent → verifier → result. The single place where a trial's errors are captured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.trajectory import Trajectory, Usage
from tbench.agents.trial_agent import AgentReport, TrialAgent, Workplace
from tbench.errors import TrialError
from tbench.events import Events, Phase, TrialFinished, TrialPhase, TrialStep, TrialVerdict
from tbench.results import NOTHING_SEEN, ErrorInfo, ImageOrigin, Integrity, Timings, TrialResult
from tbench.runs.host import HostWatch, Observation
from tbench.runs.preflight import refusal
from tbench.runs.redaction import hiding
from tbench.sandbox.backend import Backend, Keeps, Sandbox, Snapshots
from tbench.storage.run_store import RunStore
from tbench.storage.trial_files import StepLog, write_trial
from tbench.tasks.task import Task
from tbench.text import one_line
from tbench.verify.policy import VerifyPolicy, verify_by
from tbench.verify.verifier import VerifierFailed


@dataclass(frozen=True)
class TrialPlan:
    """One trial to be done: a task and a seed. `task` is None for a directory that could not be read."""

    trial: str
    task_name: str
    seed: int
    task: Task | None
    invalid: str = ""
    attempt: int = 1
    """The number of the next attempt: above 1 where earlier ones were cut short or had an error."""


@dataclass
class _Progress:
    """What a trial has yielded so far; an error leaves the rest as it is."""

    reward: float | None = None
    report: AgentReport | None = None
    error: ErrorInfo | None = None
    integrity: Integrity = NOTHING_SEEN
    image_id: str | None = None
    image_origin: ImageOrigin | None = None
    kept: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    sandbox_sec: float = 0.0
    agent_sec: float = 0.0
    verifier_sec: float = 0.0


class Trial:
    """One attempt at a plan, and its result. `run` never raises except when it is cancelled.

    `is_last` is asked at the end: whether no other attempt follows, whatever the result of this one.
    """

    def __init__(
        self,
        plan: TrialPlan,
        *,
        run: str,
        agent: TrialAgent,
        model: str | None,
        backend: Backend,
        store: RunStore,
        events: Events,
        is_last: Callable[[], bool] = lambda: True,
        host: HostWatch | None = None,
        policy: VerifyPolicy | None = None,
    ) -> None:
        self.result: TrialResult | None = None
        """The result; None until the verdict is on disk."""
        self._plan = plan
        self._is_last = is_last
        self._policy = policy or VerifyPolicy()
        self._run = run
        self._agent = agent
        self._model = model
        self._backend = backend
        self._store = store
        self._events = events
        self._host = host
        self._observed: Observation | None = None
        self._sandbox: Sandbox | None = None
        self._steps = StepLog(self._directory)
        self._hide = hiding([plan.task])
        self._progress = _Progress()

    async def run(self, queue_sec: float) -> Callable[[], Awaitable[TrialResult]]:
        """Work until the verdict is on disk. The returned function tears down, off the caller's concurrency slot."""
        started_at, started = datetime.now(UTC), time.monotonic()
        self._observed = self._host.observe() if self._host else None
        try:
            await self._reach_verdict()
        except TrialError as error:
            self._progress.error = self._public(error)
            self._progress.files.update(error.files)
            self._hide_secrets_in_traceback()
        except asyncio.CancelledError:
            await self._remove()
            raise
        except Exception as error:  # noqa: BLE001 - a bug costs its trial, is shown, and makes the run exit with 1
            self._progress.error = self._public(TrialError("internal", f"{type(error).__name__}: {error}"))
            self._progress.files["traceback.txt"] = traceback.format_exc().encode("utf-8", "replace")
            self._hide_secrets_in_traceback()
        try:
            return await self._conclude(started_at, started, queue_sec)
        except BaseException:
            # A subscriber failed at the verdict (a full disk under the journal): the container must go all the same.
            await self._remove()
            raise

    def _public(self, error: TrialError) -> ErrorInfo:
        # Before the message is cut: half a secret is still one.
        message = one_line(self._hide(str(error)))
        return error.info().model_copy(update={"message": message})

    def _hide_secrets_in_traceback(self) -> None:
        if text := self._progress.files.get("traceback.txt"):
            shown = self._hide(text.decode("utf-8", "replace"))
            self._progress.files["traceback.txt"] = shown.encode("utf-8", "replace")

    async def _reach_verdict(self) -> None:
        task = self._plan.task
        if (error := refusal(task, self._plan.invalid, self._agent.name)) is not None:
            raise error
        assert task is not None
        await self._start(task)
        await self._work(task)
        await self._verify(task)

    async def _start(self, task: Task) -> None:
        started = time.monotonic()
        try:
            self._sandbox = await self._backend.sandbox(task, self._plan.trial, self._enter)
        finally:
            self._progress.sandbox_sec = time.monotonic() - started
        self._progress.image_id = self._backend.image_ids.get(task.name)
        self._progress.image_origin = self._backend.image_origins.get(task.name)

    async def _work(self, task: Task) -> None:
        assert self._sandbox is not None
        self._enter("agent")
        started = time.monotonic()
        place = Workplace(
            task=task,
            sandbox=self._sandbox,
            seed=self._plan.seed,
            directory=self._directory,
            timeout_sec=task.file.agent.timeout_sec,
            on_step=self._on_step,
            on_step_done=self._steps.append,
        )
        try:
            self._progress.report = await self._agent.work(place)
        finally:
            self._progress.agent_sec = time.monotonic() - started
            self._steps.close()

    async def _verify(self, task: Task) -> None:
        assert self._sandbox is not None
        self._enter("verifier")
        started = time.monotonic()
        try:
            if self._policy.snapshot and isinstance(self._sandbox, Snapshots):
                self._progress.kept["image"] = await self._sandbox.snapshot()
            verdict = await verify_by(self._policy.verify, task, self._sandbox)
        except VerifierFailed as failure:
            self._progress.integrity = failure.integrity
            raise
        finally:
            self._progress.verifier_sec = time.monotonic() - started
        self._progress.integrity = verdict.integrity
        self._progress.files.update(verdict.files)
        self._progress.reward = verdict.reward

    async def _conclude(
        self, started_at: datetime, started: float, queue_sec: float
    ) -> Callable[[], Awaitable[TrialResult]]:
        await self._keep()
        trajectory = self._trajectory()
        result = self._result(started_at, started, queue_sec, trajectory)
        try:
            write_trial(self._directory, result, trajectory, self._progress.files)
        except OSError as error:
            # Without its evidence a reward is only a claim.
            failed = TrialError("result_unwritable", f"{self._directory}: {error}").info()
            result = result.model_copy(update={"reward": None, "error": failed, "final": self._is_final(failed)})
        self.result = result
        self._events.emit(TrialVerdict(result=result))

        async def tear_down() -> TrialResult:
            self._enter("teardown")
            begun = time.monotonic()
            await self._remove()
            now = time.monotonic()
            timings = result.timings.model_copy(
                update={"teardown_sec": round(now - begun, 4), "wall_sec": round(now - started, 4)}
            )
            final = result.model_copy(update={"timings": timings})
            self._events.emit(TrialFinished(result=final))
            self._enter("done")
            return final

        return tear_down

    @property
    def _directory(self) -> Path:
        return self._store.trial_dir(self._plan.task_name, self._plan.seed, self._plan.attempt)

    def _is_final(self, error: ErrorInfo | None) -> bool:
        return error is None or not error.retryable or self._is_last()

    async def _keep(self) -> None:
        """Keep the container, if the agent worked in it; kept.json says what of this trial is left on the engine."""
        progress = self._progress
        wanted = progress.report is not None and self._policy.keeps(progress.reward)
        if wanted and isinstance(self._sandbox, Keeps):
            with contextlib.suppress(TrialError):
                progress.kept["container"] = await self._sandbox.keep()
                self._sandbox = None
        if progress.kept:
            progress.files["kept.json"] = (json.dumps(progress.kept) + "\n").encode()

    def _trajectory(self) -> Trajectory | None:
        report = self._progress.report
        trajectory = report.trajectory if report is not None else self._agent.partial()
        if trajectory is None or self._steps.problem is None:
            return trajectory
        return trajectory.model_copy(update={"warnings": {**trajectory.warnings, "steps_incomplete": 1}})

    def _result(
        self, started_at: datetime, started: float, queue_sec: float, trajectory: Trajectory | None
    ) -> TrialResult:
        progress = self._progress
        outcome = progress.report.outcome if progress.report else (trajectory.outcome if trajectory else None)
        return TrialResult(
            run=self._run,
            trial=self._plan.trial,
            task=self._plan.task_name,
            seed=self._plan.seed,
            attempt=self._plan.attempt,
            final=self._is_final(progress.error),
            agent=self._agent.name,
            model=self._model,
            reward=progress.reward,
            outcome=outcome,
            error=progress.error,
            steps=len(trajectory.steps) if trajectory else 0,
            usage=trajectory.usage if trajectory else Usage(),
            timings=Timings(
                queue_sec=round(queue_sec, 4),
                sandbox_sec=round(progress.sandbox_sec, 4),
                agent_sec=round(progress.agent_sec, 4),
                model_sec=round(trajectory.model_sec, 4) if trajectory else 0.0,
                waited_sec=round(trajectory.waited_sec, 4) if trajectory else 0.0,
                command_sec=round(trajectory.command_sec, 4) if trajectory else 0.0,
                verifier_sec=round(progress.verifier_sec, 4),
                wall_sec=round(time.monotonic() - started, 4),
            ),
            started_at=started_at,
            finished_at=datetime.now(UTC),
            host=self._observed.sample() if self._observed else None,
            integrity=progress.integrity,
            image_id=progress.image_id,
            image_origin=progress.image_origin,
            out_of_memory=self._sandbox is not None and self._sandbox.ran_out_of_memory,
        )

    async def _remove(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            # Shielded: a cancelled trial still leaves no container behind.
            await asyncio.shield(sandbox.remove())

    def _enter(self, phase: Phase) -> None:
        plan = self._plan
        self._events.emit(TrialPhase(trial=plan.trial, task=plan.task_name, seed=plan.seed, phase=phase))

    def _on_step(self, step: int, line: str) -> None:
        self._events.emit(TrialStep(trial=self._plan.trial, step=step, line=one_line(self._hide(line), 200)))
