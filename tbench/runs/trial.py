"""Runs one trial: sandbox → agent → verifier → result. Here, a trial's errors become its result.

In a task with several steps, agent and verifier alternate: each pair is a part of the trial.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from harness.checkpoint import Checkpoint, ReplayedSteps, Saved
from harness.concurrency import all_of, wait_until_ended
from harness.trajectory import Outcome
from tbench.agents.trial_agent import AgentReport, TrialAgent, Workplace
from tbench.config.settings import SandboxConfig, VerifyConfig
from tbench.errors import TrialError
from tbench.events import Events, Phase, TrialFinished, TrialStep, TrialTaskStep, TrialVerdict
from tbench.results import ErrorInfo, TrialResult
from tbench.runs.control import ActiveAgent, TrialControl
from tbench.runs.going_on import SANDBOX_GONE, after_loss, after_lost_replay, place_of, why_anew
from tbench.runs.host import HostWatch, Observation
from tbench.runs.preflight import why_not_runnable
from tbench.runs.redaction import make_redactor
from tbench.runs.task_steps import TrialPart, prepare_step, why_stopped
from tbench.runs.trial_progress import Cut, TrialPlan, TrialProgress, phase_event
from tbench.sandbox.backend import (
    Backend,
    BoundsDisk,
    HasLogs,
    Keeps,
    NoticesVisitors,
    Sandbox,
    Snapshots,
    Survives,
    use_network,
)
from tbench.sandbox.copies import SpareCopies
from tbench.sandbox.run_machine import RunMachine
from tbench.sandbox.underway import UnderWay, forget
from tbench.storage.read_run import read_trajectory
from tbench.storage.run_files import CHECKPOINTS_NAME, ENDED_NAME, REPLAYED_NAME, step_directory
from tbench.storage.run_store import RunStore, StepLog, write_files, write_trial
from tbench.tasks.environment import agent_environment, verifier_environment
from tbench.tasks.task import Task
from tbench.text import one_line
from tbench.verify.calibration import CalibratingAgent, Calibration, architecture_of, image_identity, load_calibration
from tbench.verify.policy import compare_pass, is_kept, oracle_system, uses_fresh_container, verify_by
from tbench.verify.separate.collecting import collect, hands_over, save_artifacts
from tbench.verify.separate.grading import SeparateVerifier
from tbench.verify.separate.handover import read_handover
from tbench.verify.verifier import Verdict, VerifierFailed

if TYPE_CHECKING:
    from harness.terminal import Terminal


class Trial:
    """One attempt at a plan, and its result. `run` raises only if it is cancelled.

    `is_last(error)` returns whether the trial ends with this retryable error.
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
        node: RunMachine | None = None,
        keep_cut_sec: float = 0.0,
        count_differing: bool = False,
        found: Sandbox | None = None,
    ) -> None:
        """`node` is the machine on which the trial runs; clients control the trial through `control`.

        `verify` says where the verifier runs (by default in the agent's sandbox), `sandbox` what is kept of the trial.
        `found` is the sandbox of an interrupted process, if the plan continues in it. If this process is interrupted,
        its sandbox is kept for `keep_cut_sec`. `count_differing` says whether the trial counts although its replay
        gave another terminal.
        """
        self.result: TrialResult | None = None
        """Result of the attempt; None until the verdict is on disk."""
        self._plan = plan
        self._is_last = is_last
        self._verify_in = verify or VerifyConfig(mode="shared")
        self._sandbox_config = sandbox or SandboxConfig()
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
        self._keep_cut_sec, self._count_differing = keep_cut_sec, count_differing
        self._replayed: int | None = None
        """Number of replies that are being replayed after an interruption."""
        self._observed: Observation | None = None
        self._sandbox: Sandbox | None = None
        self._copies: SpareCopies | None = None
        """Copies of the sandbox, in which its work is verified."""
        self._verifier: SeparateVerifier | None = None
        self._hide_own = make_redactor([plan.task])
        self._progress = TrialProgress(plan)
        self._cut, self._found = plan.cut, found
        self._noted = plan.cut.note if plan.cut is not None and self._is_attached else None
        """The last note from which another process can continue the trial."""
        self._queue_sec, self._started_at, self._started = 0.0, datetime.now(UTC), time.monotonic()

    def _hide(self, text: str) -> str:
        return self._store.hide(self._hide_own(text))

    async def run(self, queue_sec: float) -> Callable[[], Awaitable[TrialResult]]:
        """Run the trial until its verdict is on disk. Returns a function that removes the containers.

        The returned function may run while other trials have taken this trial's place.
        """
        self._queue_sec, self._started_at, self._started = queue_sec, datetime.now(UTC), time.monotonic()
        if (cut := self._cut) is not None:
            self._queue_sec, self._started_at = cut.note.queue_sec, cut.note.started_at
            self._started -= cut.wall_sec
        self._observed = self._host.observe() if self._host else None
        try:
            with (
                self._control.abortable(),
                self._node.hosting() if self._node is not None else contextlib.nullcontext(),
            ):
                await self._reach_verdict()
        except TrialError as error:
            self._fail(error)
            self._note_loss()
            self._progress.evidence.update(error.files)
            self._hide_secrets_in_traceback()
        except asyncio.CancelledError:
            await self._leave()
            raise
        except Exception as error:  # noqa: BLE001 - a bug costs its trial, is reported, and makes the run exit with 1
            self._fail_by_bug(error)
        try:
            return await self._conclude()
        except BaseException:
            # A subscriber failed at the verdict (the journal's disk is full): still remove the container.
            await self._remove()
            raise

    def _fail(self, error: TrialError) -> None:
        self._progress.error = self._redact(error)
        if self._progress.parts:
            self._progress.parts[-1].error = self._progress.error

    def _fail_by_bug(self, error: Exception, before: str = "") -> None:
        """Fail because of the exception that is being handled, and keep its traceback; `before` begins the message."""
        self._fail(TrialError("internal", f"{before}{type(error).__name__}: {error}"))
        self._progress.evidence["traceback.txt"] = traceback.format_exc().encode("utf-8", "replace")
        self._hide_secrets_in_traceback()

    def _note_loss(self) -> None:
        """If this attempt has lost its sandbox, keep the data with which another attempt can replay it."""
        control, task, error = self._control, self._plan.task, self._progress.error
        if not control.can_go_on or task is None or error is None:
            return
        if self._noted is not None:
            control.left = after_loss(self._store.path, self._noted, task, error)
        elif self._cut is not None and not control.is_refuted:  # its replay has not ended
            control.left = after_lost_replay(self._cut, error)

    def _redact(self, error: TrialError) -> ErrorInfo:
        # Before the message is shortened: half a secret is still a secret.
        message = one_line(self._hide(str(error)))
        return ErrorInfo.of(error).model_copy(update={"message": message})

    def _hide_secrets_in_traceback(self) -> None:
        if text := self._progress.evidence.get("traceback.txt"):
            shown = self._hide(text.decode("utf-8", "replace"))
            self._progress.evidence["traceback.txt"] = shown.encode("utf-8", "replace")

    async def _reach_verdict(self) -> None:
        task = self._plan.task
        if (
            error := why_not_runnable(task, self._plan.invalid, self._agent.name, self._backend.capacity().gpus)
        ) is not None:
            raise error
        assert task is not None
        await self._start(task)
        for part_of_task in task.parts:
            if self._restore(part_of_task):
                continue
            part = self._begin(part_of_task)
            if part_of_task.step is not None and not (self._is_cut_part and self._is_attached):
                await self._prepare(part)
            await self._work_while_preparing(part)
            verdict = await self._verify(part)
            if len(self._progress.parts) < len(task.parts) and (why := why_stopped(part_of_task.step, verdict)):
                part.stopped = why
                break

    def _restore(self, task: Task) -> bool:
        """Restore the next part if another process has ended it; return whether it has."""
        ended = self._cut.ended if self._cut is not None else ()
        before = self._progress.parts
        if len(before) >= len(ended):
            return False
        part = TrialPart.restored(
            task, self._make_agent(), step_directory(self._directory, task.step_name), ended[len(before)]
        )
        before.append(part)
        if part.trajectory is not None:
            self._control.replay_log.go_on(part.trajectory.steps, None)
        return True

    @property
    def _is_cut_part(self) -> bool:
        """Whether another process was interrupted in the current part."""
        return self._cut is not None and len(self._progress.parts) == len(self._cut.ended) + 1

    def _begin(self, task: Task) -> TrialPart:
        """Begin the next part of the trial, with its own agent, which may continue the last conversation."""
        step, before = task.step, self._progress.parts
        if before:
            self._agent = self._make_agent()
        directory = _part_directory(self._directory, task)
        earlier = before[-1].agent if before and step is not None and step.inherit_prior_session else None
        conversation = None
        if (cut := self._cut) is not None and self._is_attached and not cut.has_worked:
            conversation = cut.conversation if len(before) == len(cut.ended) else None
        before.append(TrialPart(task, self._agent, directory, earlier, before=conversation))
        plan = self._plan
        if step is not None and plan.task is not None:
            self._events.emit(
                TrialTaskStep(
                    trial=plan.trial,
                    attempt=plan.attempt,
                    task=plan.task_name,
                    seed=plan.seed,
                    name=step.name,
                    number=len(before),
                    count=len(plan.task.steps),
                )
            )
        return before[-1]

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
        self._control.can_go_on = self._cut is not None
        if (cut := self._cut) is not None and self._is_attached:
            self._attach(cut)
            if isinstance(self._sandbox, NoticesVisitors) and await self._sandbox.has_visitor():
                self._on_visitors("a terminal is open in its container")
            return
        started = time.monotonic()
        try:
            self._sandbox = await self._backend.sandbox(agent_environment(task), self._plan.trial, self._enter)
        finally:
            self._progress.sandbox_sec = time.monotonic() - started
        self._progress.image_id = self._backend.image_ids.get(task.name)
        self._progress.image_origin = self._backend.image_origins.get(task.name)

    @property
    def _is_attached(self) -> bool:
        """Whether the trial continues in the sandbox of another process, without a replay."""
        return self._cut is not None and (self._found is not None or not self._cut.note.sandbox)

    def _attach(self, cut: Cut) -> None:
        """Continue in another process's sandbox, or without one if only a separate verifier still has to run."""
        note, progress = cut.note, self._progress
        progress.sandbox_sec = note.sandbox_sec
        progress.image_id, progress.image_origin = note.image_id, note.image_origin
        progress.went_on = cut.went_on("attached")
        self._control.touched |= note.human_touched
        self._sandbox = self._found

    @property
    def _machine(self) -> str:
        return self._node.name if self._node is not None else ""

    def _note(self, part: TrialPart, phase: Literal["agent", "verifier"]) -> None:
        """Write the note with which another process can continue the trial from here."""
        plan, progress = self._plan, self._progress
        sandbox, rewind = self._sandbox, self._control.rewind_point
        if not isinstance(sandbox, Survives | None) or self._keep_cut_sec <= 0 or (rewind and not rewind.goes_on):
            return
        if why_anew(plan.task, part.agent, phase, len(self._progress.parts) - 1):
            self._unnote()
            return
        note = UnderWay(
            trial=plan.trial,
            task=plan.task_name,
            seed=plan.seed,
            attempt=plan.attempt,
            sandbox="" if sandbox is None else sandbox.identity,
            machine=self._machine,
            place=place_of(self._backend),
            phase=phase,
            entered_at=time.time(),
            keep_sec=self._keep_cut_sec,
            started_at=self._started_at,
            queue_sec=self._queue_sec,
            sandbox_sec=progress.sandbox_sec,
            agent_sec=part.agent_sec,
            wall_sec=time.monotonic() - self._started,
            image_id=progress.image_id,
            image_origin=progress.image_origin,
            outcome=part.outcome,
            human_touched=self._control.touched,
            went_on=progress.went_on,
        )
        self._write_note(note)
        self._control.on_touch = lambda: self._write_note(note.model_copy(update={"human_touched": True}))

    def _unnote(self) -> None:
        """Let the note protect the sandbox only while this process lives: after an interruption, the trial starts
        again."""
        self._control.on_touch, self._control.can_go_on = lambda: None, False
        if self._noted is not None:
            with contextlib.suppress(OSError):
                self._noted.model_copy(update={"keep_sec": 0.0}).write(self._store.path)

    def _write_note(self, note: UnderWay) -> None:
        with contextlib.suppress(OSError):  # then the trial starts again after an interruption
            note.write(self._store.path)
            self._noted, self._control.can_go_on = note, True

    async def _work_while_preparing(self, part: TrialPart) -> None:
        """Let the agent work, and meanwhile pull or build the image of a separate verifier."""
        verifier = verifier_environment(part.task)
        if verifier is None:
            await self._work(part)
            return
        # Without the verifier's image there can be no verdict: then the agent is stopped at once.
        await all_of(self._work(part), self._backend.prepare(verifier))

    async def _work(self, part: TrialPart) -> None:
        cut = self._cut if self._is_cut_part else None
        part.agent_sec = cut.agent_sec if cut is not None else 0.0
        if cut is not None and cut.has_worked and self._is_attached:
            assert cut.note.outcome is not None
            part.report = AgentReport(cut.note.outcome, read_trajectory(part.directory))
            return
        assert self._sandbox is not None
        self._enter("agent")
        await use_network(self._sandbox, agent_environment(part.task), "agent")
        started = time.monotonic() - part.agent_sec
        if part.before is not None:
            self._control.replay_log.go_on(part.before.steps, part.before.last.pending)
        if self._is_attached or not self._is_cut_part:
            self._note(part, "agent")
        copies = await self._copies_for_verdict(part.task)
        workplace = Workplace(
            task=part.task,
            sandbox=self._sandbox,
            seed=self._plan.seed,
            directory=part.directory,
            timeout_sec=part.task.file.agent.timeout_sec,
            on_step=self._on_step,
            on_step_done=part.log.append,
            oversight=self._control,
            earlier=part.earlier,
            on_terminal=self._on_terminal,
            on_visitors=self._on_visitors,
            before=part.before,
            again=self._replayed_steps(),
            on_checkpoint=partial(_on_checkpoint, part.checkpoints, copies),
        )
        agent = ActiveAgent(part.task, self._sandbox, part.agent.partial, part.directory)
        if copies is not None and part.agent.name in get_args(CalibratingAgent):
            copies.prepare()
        try:
            async with self._control.agent_at_work(agent):
                part.report = await self._work_within_disk(part.agent, workplace)
        except TrialError as error:
            if hands_over(part.task) and error.type not in SANDBOX_GONE:
                await save_artifacts(part.task, self._sandbox, part.directory, self._verify_in.artifacts_mb)
            raise
        finally:
            part.agent_sec = time.monotonic() - started
            part.log.close()
            part.checkpoints.close()

    async def _work_within_disk(self, agent: TrialAgent, place: Workplace) -> AgentReport:
        """Let the agent work until it ends, or has written too much."""
        if not isinstance(place.sandbox, BoundsDisk):
            return await agent.work(place)
        working = asyncio.ensure_future(agent.work(place))
        exceeding = asyncio.ensure_future(place.sandbox.disk_exceeded())
        try:
            await asyncio.wait({working, exceeding}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            exceeding.cancel()
            await wait_until_ended(working, exceeding)
        if exceeding.cancelled():
            return working.result()
        # Until its processes are killed, no command can be started safely.
        await exceeding.result().wait()
        trajectory = agent.partial()
        if trajectory is not None:
            trajectory = trajectory.model_copy(update={"outcome": Outcome.DISK_LIMIT})
        return AgentReport(Outcome.DISK_LIMIT, trajectory)

    async def _copies_for_verdict(self, task: Task) -> SpareCopies | None:
        """Return the starter of a spare fresh container for the verdict; None if the verdict needs none."""
        if verifier_environment(task) is not None or self._verify_in.mode == "shared":
            return None
        sandbox, oracle = self._sandbox, await asyncio.to_thread(self._calibration)
        assert sandbox is not None
        return self._copies_of(sandbox) if uses_fresh_container(self._verify_in.mode, task, sandbox, oracle) else None

    def _copies_of(self, sandbox: Sandbox) -> SpareCopies:
        self._copies = self._copies or SpareCopies(sandbox)
        return self._copies

    def _replayed_steps(self) -> ReplayedSteps | None:
        """Return the steps that are replayed because the sandbox of another process is gone, if any."""
        if self._cut is None or self._is_attached or self._cut.conversation is None or not self._is_cut_part:
            return None
        conversation = self._cut.conversation
        self._replayed = len(conversation.steps) + (conversation.last.pending is not None)
        return conversation.again

    def _on_visitors(self, how: str = "a person has attached to its terminal") -> None:
        """Record that a person was in the sandbox of an interrupted process."""
        self._control.touch()
        name = self._control.name
        self._control.say(
            f"{name}: {how}, so it continues but does not count; to measure it again, tbench abort "
            f"{self._store.path}/{name}, then tbench resume {self._store.path} --retry-errors aborted"
        )

    def _on_terminal(self, terminal: Terminal | None) -> None:
        self._control.terminal = terminal

    async def _verify(self, part: TrialPart) -> Verdict:
        self._enter("verifier")
        started = time.monotonic()
        try:
            write_files(part.directory, part.trajectory, {})
            self._note(part, "verifier")
            if self._sandbox_config.snapshot and isinstance(self._sandbox, Snapshots):
                # Each task step has an image, and the last is the trial's.
                kept = self._progress.kept
                kept["image"] = await self._sandbox.snapshot()
                if part.task.step is not None:
                    kept[f"image of step {part.task.step.name}"] = kept["image"]
            part.verdict = verdict = await self._judge(part)
        except VerifierFailed as failure:
            part.verdict = failure
            raise
        except TrialError as error:
            if part.outcome is Outcome.DISK_LIMIT and error.kind.retryable:
                raise TrialError("disk_full", f"the agent wrote too much, and then: {error}") from error
            raise
        finally:
            part.verifier_sec = time.monotonic() - started
        part.files.update(verdict.files)
        assert self._plan.task is not None
        if len(self._progress.parts) < len(self._plan.task.parts) and self._keep_cut_sec > 0:
            self._unnote()  # until the next step is prepared, its state is unknown
            try:
                ended = {ENDED_NAME: part.ended.model_dump_json().encode()}
                await asyncio.to_thread(write_files, part.directory, None, {**part.files, **ended})
            except OSError:  # then no other process can continue with the next step
                self._keep_cut_sec = 0.0
        return verdict

    async def _judge(self, part: TrialPart) -> Verdict:
        """Return the verdict of the task's verifier: in the agent's sandbox, or in a separate container."""
        sandbox, environment = self._sandbox, verifier_environment(part.task)
        if environment is None:
            assert sandbox is not None
            return await self._verdict_in_sandbox(part, sandbox)
        assert self._plan.task is not None
        is_last = len(self._progress.parts) == len(self._plan.task.parts)
        if sandbox is None:  # another process has collected everything
            handover = read_handover(part.directory)
        else:
            handover = await collect(
                part.task, sandbox, part.directory, most_mb=self._verify_in.artifacts_mb, is_last=is_last
            )
            part.files.update(handover.files)
            self._progress.out_of_memory = sandbox.ran_out_of_memory
        if sandbox is not None and is_last and self._sandbox_config.keep == "none":
            await self._collect_logs()
            await self._remove()
            write_files(part.directory, None, {**self._progress.files, **part.files})
            self._note(part, "verifier")
        verifier = self._verifier = SeparateVerifier(
            environment, lambda: self._backend.sandbox(environment, self._plan.trial)
        )
        self._progress.verifier_image_id = self._backend.image_ids.get(environment.name)
        self._progress.verifier_image_origin = self._backend.image_origins.get(environment.name)
        oracle = await asyncio.to_thread(self._calibration)
        verdict = await verifier.verify(handover, oracle_system(oracle, part.task, is_oracle=self._is_oracle))
        if not is_last:
            await verifier.remove()
        return compare_pass(verdict, oracle, part.task)

    async def _verdict_in_sandbox(self, part: TrialPart, sandbox: Sandbox) -> Verdict:
        remarks: tuple[str, ...] = ()
        if hands_over(part.task):
            remarks = await save_artifacts(part.task, sandbox, part.directory, self._verify_in.artifacts_mb)
        await use_network(sandbox, agent_environment(part.task), "verifier")
        oracle = await asyncio.to_thread(self._calibration)
        again = self._cut is not None and self._cut.has_worked and self._is_attached and self._is_cut_part
        # A fresh container would get all that was written, too.
        mode = "shared" if part.outcome is Outcome.DISK_LIMIT else self._verify_in.mode
        copies = self._copies_of(sandbox)
        judging = verify_by(
            mode, part.task, sandbox, again=again, oracle=oracle, is_oracle=self._is_oracle, copies=copies
        )
        return (await judging).remarked(remarks)

    @property
    def _is_oracle(self) -> bool:
        return self._agent.name == "oracle"

    def _calibration(self) -> Calibration | None:
        """Return the task's calibration, unless the agent is one that calibrates."""
        task = self._plan.task
        if task is None or self._agent.name in get_args(CalibratingAgent):
            return None
        image = image_identity(self._progress.image_origin, self._progress.image_id)
        return load_calibration(task, image, architecture_of(self._backend.describe()))

    async def _conclude(self) -> Callable[[], Awaitable[TrialResult]]:
        started = self._started
        await self._collect_logs()
        await self._keep()
        self._record_replay()
        if (replayed := self._control.replayed) is not None:
            self._progress.files[REPLAYED_NAME] = (json.dumps(replayed) + "\n").encode()
        result = self._progress.result(
            run=self._run,
            agent=self._agent.name,
            model=self._model,
            final=self._is_final(self._progress.error),
            started_at=self._started_at,
            queue_sec=self._queue_sec,
            wall_sec=time.monotonic() - started,
            host=self._observed.sample() if self._observed else None,
            out_of_memory=any(each.ran_out_of_memory for each in self._sandboxes),
            human_touched=self._control.touched,
            machine=self._machine or None,
        )
        try:
            self._write(result)
        except OSError as error:
            failed = ErrorInfo.of(TrialError("result_unwritable", f"{self._directory}: {error}"))
            result = self._without_reward(result, failed)
        except Exception as error:  # noqa: BLE001 - a bug costs its trial, not the run
            result = self._write_without_trajectory(result, error)
        self.result = result
        # Before the event: if this process is killed now, its sandbox is removed as a leftover, not kept to continue.
        self._forget()
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
            # Both are on disk; reference cycles would keep them in memory.
            del self._agent
            self._progress.parts.clear()
            return final

        return tear_down

    def _without_reward(self, result: TrialResult, error: ErrorInfo) -> TrialResult:
        """Replace a result's reward by an error: a reward without its evidence is only a claim."""
        lost: dict[str, Any] = {"reward": None, "reward_all_steps": None, "metrics": {}}
        return result.model_copy(update={**lost, "error": error, "final": self._is_final(error)})

    def _write_without_trajectory(self, result: TrialResult, error: Exception) -> TrialResult:
        """Write a trial whose trajectory could not be stored because of a bug, and return its result.

        The steps that were stored while the agent worked remain in steps.jsonl.
        """
        failed = self._progress.error
        if failed is None or failed.type != "internal":
            before = f"{failed.type}: {failed.message}; then " if failed is not None else ""
            self._fail_by_bug(error, before)
        assert self._progress.error is not None
        result = self._without_reward(result, self._progress.error)
        with contextlib.suppress(Exception):
            self._write(result, with_trajectory=False)
        return result

    def _record_replay(self) -> None:
        """Record a replay of the trial, if there was one."""
        if self._cut is not None and not self._is_attached:
            differs = self._control.differs
            counts = not differs or self._count_differing
            self._progress.went_on = self._cut.went_on("replayed", differs, counts=counts)

    def _forget(self) -> None:
        """Remove files that only a continuing process would need, unless another attempt continues the trial."""
        left = self._control.left
        if left is None:
            self._noted = None
            self._unnote()
            forget(self._store.path, self._plan.trial)
        first = self._plan.attempt if self._cut is None else self._cut.note.attempt
        attempts = {*range(first, self._plan.attempt + 1)} - ({left.note.attempt} if left is not None else set())
        directories = [
            _part_directory(self._attempt_directory(attempt), part)
            for attempt in attempts
            for part in (self._plan.task.parts if self._plan.task is not None else ())
        ]
        for path in (each / name for each in directories for name in (CHECKPOINTS_NAME, ENDED_NAME)):
            with contextlib.suppress(OSError):
                path.unlink()

    def _write(self, result: TrialResult, *, with_trajectory: bool = True) -> None:
        """Write the files of each part, and the result. Raises OSError."""
        whole = next((part for part in self._progress.parts if part.task.step is None), None)
        for part in self._progress.parts:
            if part is not whole:
                write_files(part.directory, part.trajectory if with_trajectory else None, part.files)
        files = {**self._progress.files, **(whole.files if whole else {})}
        write_trial(self._directory, result, whole.trajectory if whole and with_trajectory else None, files)

    @property
    def _directory(self) -> Path:
        return self._attempt_directory(self._plan.attempt)

    def _attempt_directory(self, attempt: int) -> Path:
        return self._store.trial_dir(self._plan.task_name, self._plan.seed, attempt)

    def _is_final(self, error: ErrorInfo | None) -> bool:
        return error is None or not error.retryable or self._is_last(error)

    async def _collect_logs(self) -> None:
        """Collect the logs of entry point and services."""
        if isinstance(self._sandbox, HasLogs):
            self._progress.files.update(await self._sandbox.logs())

    async def _keep(self) -> None:
        """Keep the container if asked to and the agent worked in it; kept.json lists what stays on the engine."""
        progress = self._progress
        worked = any(part.report is not None for part in self._progress.parts)
        wanted = (
            worked and is_kept(self._sandbox_config.keep, progress.reward_fields.get("reward"))
        ) or self._control.keeps_container
        if wanted and isinstance(self._sandbox, Keeps):
            with contextlib.suppress(TrialError):
                progress.kept["container"] = await self._sandbox.keep()
                self._sandbox = None
        for number, image in enumerate(self._control.snapshots, 1):
            progress.kept[f"snapshot {number}"] = image
        if progress.kept:
            progress.files["kept.json"] = (json.dumps(progress.kept) + "\n").encode()

    @property
    def _sandboxes(self) -> list[Sandbox | SeparateVerifier]:
        """Sandboxes of this trial that still exist."""
        return [each for each in (self._sandbox, self._verifier) if each is not None]

    async def _leave(self) -> None:
        """After a planned stop, leave the sandbox to the process that will continue the trial; else remove it."""
        sandbox, control = self._sandbox, self._control
        goes_on = (control.stop.reason or control.is_set_aside) and control.can_go_on
        if goes_on and self._noted is not None and isinstance(sandbox, Survives):
            self._sandbox = None
            try:
                await asyncio.shield(sandbox.pause())
            except TrialError as error:
                control.say(f"{control.name}: its container is kept, but keeps running: {one_line(str(error), 200)}")
        # During a replay, the note is still that of the attempt that is replayed, and has to stay.
        await self._remove(forgets=not goes_on)

    async def _remove(self, *, forgets: bool = True) -> None:
        left, sandbox = self._sandboxes, self._sandbox
        copies, self._copies = self._copies, None
        self._sandbox = self._verifier = None
        if sandbox is not None and forgets and self._control.left is None:
            forget(self._store.path, self._plan.trial)
        removing = [each.remove() for each in left] + ([copies.close()] if copies is not None else [])
        if removing:
            # Shielded: a cancelled trial leaves no container behind, either.
            await asyncio.shield(asyncio.gather(*removing))

    def _enter(self, phase: Phase) -> None:
        self._events.emit(phase_event(self._plan, phase))

    def _on_step(self, step: int, line: str) -> None:
        if self._replayed is not None and step > self._replayed:
            # Until this step, the note of the replayed attempt was kept, to replay it again if necessary.
            self._replayed = None
            self._record_replay()
            self._note(self._progress.parts[-1], "agent")
        shown = one_line(self._hide(line), 200)
        self._events.emit(TrialStep(trial=self._plan.trial, attempt=self._plan.attempt, step=step, line=shown))


def _part_directory(attempt: Path, part: Task) -> Path:
    """Return the directory of a part's files, which is in the attempt's directory."""
    return attempt if part.step is None else step_directory(attempt, part.step_name)


def _on_checkpoint(stored: StepLog, copies: SpareCopies | None, saved: Saved) -> None:
    """Store a checkpoint; if the agent claims that its work is done, start the container for the verdict."""
    stored.append(saved)
    if copies is not None and isinstance(saved, Checkpoint) and saved.counts.claimed:
        copies.prepare()
