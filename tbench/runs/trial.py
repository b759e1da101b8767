"""One trial: sandbox → agent → verifier → result. The single place where a trial's errors are captured.

Agent and verifier take turns where the task has several steps: each is a part of the trial.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from harness.turns import all_of
from tbench.agents.trial_agent import TrialAgent, Workplace
from tbench.config.settings import SandboxConfig, VerifyConfig
from tbench.errors import TrialError
from tbench.events import Events, Phase, TrialFinished, TrialStep, TrialTaskStep, TrialVerdict
from tbench.results import ErrorInfo, TrialResult
from tbench.runs.control import TrialControl, Work
from tbench.runs.host import HostWatch, Observation
from tbench.runs.preflight import refusal
from tbench.runs.redaction import hiding
from tbench.runs.task_steps import TrialPart, prepare_step, why_stopped
from tbench.runs.trial_progress import TrialPlan, TrialProgress, phase_of
from tbench.sandbox.backend import Backend, HasLogs, Keeps, Sandbox, Snapshots, use_network
from tbench.sandbox.node import Node
from tbench.storage.run_files import REPLAYED_NAME, step_directory
from tbench.storage.run_store import RunStore, write_files, write_trial
from tbench.tasks.environment import agent_environment, verifier_environment
from tbench.tasks.task import Task
from tbench.text import one_line
from tbench.verify.calibration import CalibratingAgent, Calibration, architecture_of, image_identity, known
from tbench.verify.policy import is_kept, like_oracle, verify_by
from tbench.verify.separate.collecting import collect, hands_over, save_artifacts
from tbench.verify.separate.grading import SeparateVerifier
from tbench.verify.verifier import Verdict, VerifierFailed

if TYPE_CHECKING:
    from harness.terminal import Terminal

_NOT_THERE = frozenset({"sandbox_lost", "engine_unreachable"})
"""Types of errors after which there is nothing to collect from."""


class Trial:
    """One attempt at a plan, and its result. `run` never raises except when it is cancelled.

    `is_last` is asked of an error after which another attempt may succeed: whether none follows.
    """

    def __init__(
        self,
        plan: TrialPlan,
        *,
        run: str,
        make_agent: Callable[[], TrialAgent],
        model: str | None,
        backend: Backend,
        store: RunStore,
        events: Events,
        is_last: Callable[[ErrorInfo], bool] = lambda _: True,
        host: HostWatch | None = None,
        verify: VerifyConfig | None = None,
        sandbox: SandboxConfig | None = None,
        control: TrialControl | None = None,
        node: Node | None = None,
    ) -> None:
        """`node` is the machine of the backend, where there are several; by its `control` others reach the trial.

        `verify` says where the verifier runs, by default beside the agent, and `sandbox` what is kept of the trial.
        """
        self.result: TrialResult | None = None
        """The result; None until the verdict is on disk."""
        self._plan = plan
        self._is_last = is_last
        self._verify_in = verify or VerifyConfig(mode="shared")
        self._asked = sandbox or SandboxConfig()
        self._run = run
        self._make_agent = make_agent
        self._agent = make_agent()
        self._model = model
        self._backend = backend
        self._store = store
        self._events = events
        self._host = host
        self._control = control or TrialControl(plan)
        self._node = node
        self._observed: Observation | None = None
        self._sandbox: Sandbox | None = None
        self._verifier: SeparateVerifier | None = None
        self._hide_own = hiding([plan.task])
        self._progress = TrialProgress(plan)

    def _hide(self, text: str) -> str:
        return self._store.hide(self._hide_own(text))

    async def run(self, queue_sec: float) -> Callable[[], Awaitable[TrialResult]]:
        """Work until the verdict is on disk. The returned function tears down, off the caller's concurrency slot."""
        started_at, started = datetime.now(UTC), time.monotonic()
        self._observed = self._host.observe() if self._host else None
        try:
            with (
                self._control.abortable(),
                self._node.hosting() if self._node is not None else contextlib.nullcontext(),
            ):
                await self._reach_verdict()
        except TrialError as error:
            self._fail(error)
            self._progress.evidence.update(error.files)
            self._hide_secrets_in_traceback()
        except asyncio.CancelledError:
            await self._remove()
            raise
        except Exception as error:  # noqa: BLE001 - a bug costs its trial, is shown, and makes the run exit with 1
            self._fail(TrialError("internal", f"{type(error).__name__}: {error}"))
            self._progress.evidence["traceback.txt"] = traceback.format_exc().encode("utf-8", "replace")
            self._hide_secrets_in_traceback()
        try:
            return await self._conclude(started_at, started, queue_sec)
        except BaseException:
            # A subscriber failed at the verdict (a full disk under the journal): the container must go all the same.
            await self._remove()
            raise

    def _fail(self, error: TrialError) -> None:
        self._progress.error = self._public(error)
        if self._progress.parts:
            self._progress.parts[-1].error = self._progress.error

    def _public(self, error: TrialError) -> ErrorInfo:
        # Before the message is cut: half a secret is still one.
        message = one_line(self._hide(str(error)))
        return error.info().model_copy(update={"message": message})

    def _hide_secrets_in_traceback(self) -> None:
        if text := self._progress.evidence.get("traceback.txt"):
            shown = self._hide(text.decode("utf-8", "replace"))
            self._progress.evidence["traceback.txt"] = shown.encode("utf-8", "replace")

    async def _reach_verdict(self) -> None:
        task = self._plan.task
        if (error := refusal(task, self._plan.invalid, self._agent.name, self._backend.capacity().gpus)) is not None:
            raise error
        assert task is not None
        await self._start(task)
        for part_of_task in task.parts:
            part = self._begin(part_of_task)
            if part_of_task.step is not None:
                await self._prepare(part)
            await self._work_and_prepare(part)
            verdict = await self._verify(part)
            if len(self._progress.parts) < len(task.parts) and (why := why_stopped(part_of_task.step, verdict)):
                part.stopped = why
                break

    def _begin(self, task: Task) -> TrialPart:
        """The next part of the trial: what an agent of its own is to do."""
        step, before = task.step, len(self._progress.parts)
        if before:
            self._agent = self._make_agent()
        directory = self._directory if step is None else step_directory(self._directory, step.name)
        self._progress.parts.append(TrialPart(task, self._agent, directory))
        if step is not None:
            self._tell_step(step.name)
        return self._progress.parts[-1]

    def _tell_step(self, name: str) -> None:
        plan = self._plan
        assert plan.task is not None
        self._events.emit(
            TrialTaskStep(
                trial=plan.trial,
                attempt=plan.attempt,
                task=plan.task_name,
                seed=plan.seed,
                name=name,
                number=len(self._progress.parts),
                count=len(plan.task.steps),
            )
        )

    async def _prepare(self, part: TrialPart) -> None:
        assert self._sandbox is not None
        self._enter("sandbox")
        started = time.monotonic()
        try:
            await use_network(self._sandbox, agent_environment(part.task), "start")
            await prepare_step(part.task, self._sandbox, len(self._progress.parts) - 1)
        finally:
            part.prepare_sec = time.monotonic() - started

    async def _start(self, task: Task) -> None:
        started = time.monotonic()
        try:
            self._sandbox = await self._backend.sandbox(agent_environment(task), self._plan.trial, self._enter)
        finally:
            self._progress.sandbox_sec = time.monotonic() - started
        self._progress.image_id = self._backend.image_ids.get(task.name)
        self._progress.image_origin = self._backend.image_origins.get(task.name)

    async def _work_and_prepare(self, part: TrialPart) -> None:
        """Let the agent work; what its verifier's own container is made of is pulled or built meanwhile."""
        verifier = verifier_environment(part.task)
        if verifier is None:
            await self._work(part)
            return
        # Without anything to verify in, the agent's work would come to no verdict: it ends at once.
        await all_of(self._work(part), self._backend.prepare(verifier))

    async def _work(self, part: TrialPart) -> None:
        assert self._sandbox is not None
        self._enter("agent")
        await use_network(self._sandbox, agent_environment(part.task), "agent")
        started = time.monotonic()
        place = Workplace(
            task=part.task,
            sandbox=self._sandbox,
            seed=self._plan.seed,
            directory=part.directory,
            timeout_sec=part.task.file.agent.timeout_sec,
            on_step=self._on_step,
            on_step_done=part.log.append,
            oversight=self._control,
            on_terminal=self._on_terminal,
        )
        work = Work(part.task, self._sandbox, part.agent.partial, part.directory)
        try:
            async with self._control.at_work(work):
                part.report = await part.agent.work(place)
        except TrialError as error:
            if hands_over(part.task) and error.type not in _NOT_THERE:
                await save_artifacts(part.task, self._sandbox, part.directory, self._verify_in.artifacts_mb)
            raise
        finally:
            part.agent_sec = time.monotonic() - started
            part.log.close()

    def _on_terminal(self, terminal: Terminal | None) -> None:
        self._control.terminal = terminal

    async def _verify(self, part: TrialPart) -> Verdict:
        assert self._sandbox is not None
        self._enter("verifier")
        started = time.monotonic()
        try:
            if self._asked.snapshot and isinstance(self._sandbox, Snapshots):
                await self._take_snapshot(self._sandbox, part)
            part.verdict = verdict = await self._verdict(part, self._sandbox)
        except VerifierFailed as failure:
            part.verdict = failure
            raise
        finally:
            part.verifier_sec = time.monotonic() - started
        part.files.update(verdict.files)
        return verdict

    async def _take_snapshot(self, sandbox: Snapshots, part: TrialPart) -> None:
        """Keep the files as an image; of several steps each has one, and the last stands for the trial."""
        kept = self._progress.kept
        kept["image"] = await sandbox.snapshot()
        if part.task.step is not None:
            kept[f"image of step {part.task.step.name}"] = kept["image"]

    async def _verdict(self, part: TrialPart, sandbox: Sandbox) -> Verdict:
        """The verdict from where the task has its verifier: the agent's sandbox, or one of its own."""
        environment = verifier_environment(part.task)
        if environment is None:
            return await self._verdict_beside(part, sandbox)
        assert self._plan.task is not None
        is_last = len(self._progress.parts) == len(self._plan.task.parts)
        handed = await collect(
            part.task, sandbox, part.directory, most_mb=self._verify_in.artifacts_mb, is_last=is_last
        )
        part.files.update(handed.files)
        self._progress.out_of_memory = sandbox.ran_out_of_memory
        if is_last and self._asked.keep == "none":
            await self._collect_logs()
            await self._remove()
        verifier = self._verifier = SeparateVerifier(
            environment, lambda: self._backend.sandbox(environment, self._plan.trial)
        )
        self._progress.verifier_image_id = self._backend.image_ids.get(environment.name)
        self._progress.verifier_image_origin = self._backend.image_origins.get(environment.name)
        verdict = await verifier.verify(handed)
        if not is_last:
            await verifier.remove()
        return like_oracle(verdict, await asyncio.to_thread(self._oracle), part.task)

    async def _verdict_beside(self, part: TrialPart, sandbox: Sandbox) -> Verdict:
        said: tuple[str, ...] = ()
        if hands_over(part.task):
            said = await save_artifacts(part.task, sandbox, part.directory, self._verify_in.artifacts_mb)
        await use_network(sandbox, agent_environment(part.task), "verifier")
        oracle = await asyncio.to_thread(self._oracle)
        is_oracle = self._agent.name == "oracle"
        verdict = await verify_by(self._verify_in.mode, part.task, sandbox, oracle=oracle, is_oracle=is_oracle)
        return verdict.remarked(said)

    def _oracle(self) -> Calibration | None:
        """What is known of the task by its oracle, which is not held to itself."""
        task = self._plan.task
        if task is None or self._agent.name in get_args(CalibratingAgent):
            return None
        image = image_identity(self._progress.image_origin, self._progress.image_id)
        return known(task, image, architecture_of(self._backend.describe()))

    async def _conclude(
        self, started_at: datetime, started: float, queue_sec: float
    ) -> Callable[[], Awaitable[TrialResult]]:
        await self._collect_logs()
        await self._keep()
        if (replayed := self._control.replayed) is not None:
            self._progress.files[REPLAYED_NAME] = (json.dumps(replayed) + "\n").encode()
        result = self._progress.result(
            run=self._run,
            agent=self._agent.name,
            model=self._model,
            final=self._is_final(self._progress.error),
            started_at=started_at,
            queue_sec=queue_sec,
            wall_sec=time.monotonic() - started,
            host=self._observed.sample() if self._observed else None,
            out_of_memory=any(each.ran_out_of_memory for each in self._left),
            human_touched=self._control.touched,
            machine=(self._node.name or None) if self._node is not None else None,
        )
        try:
            self._write(result)
        except OSError as error:
            # Without its evidence a reward is only a claim.
            failed = TrialError("result_unwritable", f"{self._directory}: {error}").info()
            lost: dict[str, Any] = {"reward": None, "reward_all_steps": None, "metrics": {}}
            result = result.model_copy(update={**lost, "error": failed, "final": self._is_final(failed)})
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
            self._let_go()
            return final

        return tear_down

    def _let_go(self) -> None:
        """Drop what the trial has yielded, which is on disk: its agent refers to it, and so it would stay in memory
        until all of the process is searched for circles."""
        del self._agent
        self._progress.parts.clear()

    def _write(self, result: TrialResult) -> None:
        """Write what each part has left, and the result. Raises OSError."""
        whole = next((part for part in self._progress.parts if part.task.step is None), None)
        for part in self._progress.parts:
            if part is not whole:
                write_files(part.directory, part.trajectory, part.files)
        files = {**self._progress.files, **(whole.files if whole else {})}
        write_trial(self._directory, result, whole.trajectory if whole else None, files)

    @property
    def _directory(self) -> Path:
        return self._store.trial_dir(self._plan.task_name, self._plan.seed, self._plan.attempt)

    def _is_final(self, error: ErrorInfo | None) -> bool:
        return error is None or not error.retryable or self._is_last(error)

    async def _collect_logs(self) -> None:
        """Take what entry point and services have written beside the agent."""
        if isinstance(self._sandbox, HasLogs):
            self._progress.files.update(await self._sandbox.logs())

    async def _keep(self) -> None:
        """Keep the container, if the agent worked in it; kept.json says what of this trial is left on the engine."""
        progress = self._progress
        worked = any(part.report is not None for part in self._progress.parts)
        wanted = (worked and is_kept(self._asked.keep, progress.earned.get("reward"))) or self._control.is_kept
        if wanted and isinstance(self._sandbox, Keeps):
            with contextlib.suppress(TrialError):
                progress.kept["container"] = await self._sandbox.keep()
                self._sandbox = None
        for number, image in enumerate(self._control.snapshots, 1):
            progress.kept[f"snapshot {number}"] = image
        if progress.kept:
            progress.files["kept.json"] = (json.dumps(progress.kept) + "\n").encode()

    @property
    def _left(self) -> list[Sandbox | SeparateVerifier]:
        """What is still there of the sandboxes of this trial."""
        return [each for each in (self._sandbox, self._verifier) if each is not None]

    async def _remove(self) -> None:
        left, self._sandbox, self._verifier = self._left, None, None
        if left:
            # Shielded: a cancelled trial still leaves no container behind.
            await asyncio.shield(asyncio.gather(*(each.remove() for each in left)))

    def _enter(self, phase: Phase) -> None:
        self._events.emit(phase_of(self._plan, phase))

    def _on_step(self, step: int, line: str) -> None:
        shown = one_line(self._hide(line), 200)
        self._events.emit(TrialStep(trial=self._plan.trial, attempt=self._plan.attempt, step=step, line=shown))
