"""A run: tasks × seeds of one configuration, with bounded concurrency and admission, stored in one directory."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.concurrency import wait_until_ended
from tbench import __version__
from tbench.agents.trial_agent import TrialAgent
from tbench.config.document import PlannedTask, RunDocument, RunPlan, Status, replies_fields
from tbench.config.limits_in_force import EARLIER, lacking_limits
from tbench.config.settings import SandboxConfig, Verify, VerifyConfig
from tbench.config.values import duration_sec
from tbench.control.listener import listening
from tbench.errors import REWOUND, TrialError, UsageError
from tbench.events import Events, RunEnded, RunStarted, TrialSettled
from tbench.pacing import Pace
from tbench.results import TrialResult
from tbench.runs.admission import Demand, NoMachine, RetryBudget, make_admission, why_no_machine
from tbench.runs.host import HostWatch
from tbench.runs.plan import plan_trials
from tbench.runs.pool import add_failure, run_all
from tbench.runs.preflight import (
    ImageRemover,
    get_ready,
    not_runnable_tasks,
    refusal_words,
    size_warning,
    tasks_refused_by,
    why_not_runnable,
)
from tbench.runs.redaction import make_redactor
from tbench.runs.spare_capacity import Calibrator, SpareCapacity, calibrating
from tbench.runs.stop_policy import EndpointGate, PlannedStop, StopPolicy
from tbench.runs.trial_progress import Cut, TrialPlan, phase_event
from tbench.sandbox.backend import (
    Backend,
    Compares,
    Copies,
    HoldsImages,
    Keeps,
    Sandbox,
    Snapshots,
    open_backend,
    require,
)
from tbench.sandbox.container_proxy import container_proxy
from tbench.sandbox.run_machine import RunMachine, run_machines_of
from tbench.sandbox.underway import forget
from tbench.storage.run_store import RunStore
from tbench.tasks.consent import withheld_variables_note
from tbench.tasks.environment import agent_environment, verifier_environment
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task
from tbench.text import counted, names_text
from tbench.threads import THREADS
from tbench.verify.calibration import architecture_of

if TYPE_CHECKING:
    from tbench.runs.control import HoldPoint, RunControl, TrialControl, TrialDebugger
    from tbench.runs.replay_log import ReplaySteps
    from tbench.runs.resume import EarlierRun
    from tbench.runs.trial import Trial

_TRIAL_MODULE = "tbench.runs.trial"
"""Module that only trials need: imported in the background while the engine is made ready."""

EndCalibration = Callable[[bool], Awaitable[None]]
"""Ends the calibration beside a run that has no trials left, or waits for it; the argument is whether the run was cut
short."""


@dataclass(frozen=True)
class RunOutcome:
    """Results of a run, and whether it was cut short."""

    results: list[TrialResult]
    interrupted: bool
    """Whether the run was cancelled before all its trials had ended, or trials were set aside."""
    stopped: str | None = None
    """Why the run stopped early; None if it did not."""
    planned_stop: str = ""
    """Reason of a planned stop, after which the trials can continue; empty without one."""


class Run:
    """Executes trial plans, and writes the run directory."""

    def __init__(
        self,
        plan: RunPlan,
        tasks: TaskSet,
        *,
        make_agent: Callable[[], TrialAgent],
        backend: Backend,
        store: RunStore,
        events: Events,
        plans: Sequence[TrialPlan] | None = None,
        gate: EndpointGate | None = None,
        hold_at: HoldPoint | None = None,
        replay: Sequence[ReplaySteps] = (),
        pace: Pace | None = None,
        stop: PlannedStop | None = None,
    ) -> None:
        """Take an open `backend`. `plans` replaces the plan's tasks × seeds.

        `hold_at` is where trials wait for a person on the control socket: at each reply, or at the first query. Every
        trial begins with the steps in `replay`, without asking its model; then it does not count. A `pace` that has
        begun sets the number of concurrent trials.
        """
        capacity = self._capacity = backend.capacity()
        schedule = plan.config.schedule
        self._pace = pace
        self._plan = plan
        self._make_agent = make_agent
        self._admission = make_admission(backend, schedule, events.say)
        self._store = store
        self._backend = backend
        self._events = events
        self._host = HostWatch() if capacity.is_this_machine else None
        planned = plan_trials(tasks, plan) if plans is None else plans
        # Trials that cannot run come first: their errors are on disk before the first sandbox starts.
        self._plans = sorted(planned, key=lambda each: self._refusal(each) is None)
        self._results: list[TrialResult] = []
        self._teardowns: set[asyncio.Task[None]] = set()
        self._bugs: list[BaseException] = []
        self.outcome = RunOutcome([], interrupted=True)
        """Outcome of the run, even if it was cancelled."""
        self._image_remover = ImageRemover(backend, self._plans) if plan.config.sandbox.drop_images else None
        self._stop_policy = StopPolicy(len(self._plans), gate, events.say, no_machine=lambda: why_no_machine(backend))
        from tbench.runs.control import RunControl

        asks = plan.config.agent.asks_before_acting
        self.control = RunControl(
            plan.run,
            len(self._plans),
            schedule.at_once if pace is None else pace.recorded.first,
            make_debugger=partial(make_debugger, waits=hold_at == "reply", asks=asks),
            debugs_all=asks,
            hold_at=hold_at,
            replay=replay,
            say=events.say,
            stop=stop,
        )
        """Remote control of the run."""
        demands = [(plan, self._demand(plan)) for plan in self._plans]
        self.spare = SpareCapacity(backend, self._admission, demands, self._most_at_once, self.control.may_start)
        """Capacity that the run leaves unused."""
        events.subscribe(store.on_event)
        events.subscribe(self.control.on_event)
        events.subscribe(self.spare.on_event)
        events.subscribe(self._stop_policy.on_event)

    async def execute(
        self,
        end: EndCalibration | None = None,
        settled: Callable[[list[TrialResult]], list[TrialResult]] = lambda results: results,
    ) -> RunOutcome:
        """Run all trials. When cancelled, clean up, set `outcome` and raise CancelledError.

        At the end call `end`; then `settled` returns the final results, before the run is reported as ended.
        """
        cancelled: asyncio.CancelledError | None = None
        try:
            await self._run_trials()
        except asyncio.CancelledError as error:
            cancelled = error
        if self._image_remover is not None and self._image_remover.message:
            self._events.say(self._image_remover.message)
        if self._bugs:
            raise self._bugs[0]
        stopped = self._stop_policy.reason
        if end is not None:
            try:
                await end(cancelled is not None or stopped is not None)
            except asyncio.CancelledError as error:
                cancelled = error
        self.outcome = replace(self.outcome, results=settled(self._results), stopped=stopped)
        self._events.emit(RunEnded(interrupted=_status(self.outcome) != "finished"))
        if cancelled is not None:
            raise cancelled
        return self.outcome

    async def _run_trials(self) -> None:
        """Run all trials, and return when the last container is removed, even when cancelled."""
        try:
            pacing = self._pace.keeping(self.control) if self._pace is not None else contextlib.nullcontext()
            async with self._host or contextlib.nullcontext(), pacing:
                await run_all(self._plans, self._run_trial, self.control.slots, self._bugs)
                aside = self.control.set_aside
                why = f"tbench stop {names_text(aside)}" if aside else ""
                self.outcome = replace(self.outcome, interrupted=bool(aside), planned_stop=why)
        finally:
            # Removals are bounded; an interruption must not abandon them.
            await wait_until_ended(*self._teardowns)

    def _most_at_once(self) -> int:
        """Return the largest number of trials that may ever run at once; a `pace` may raise the present one."""
        schedule = self._plan.config.schedule
        return max(self.control.slots.number, schedule.most_at_once if schedule.is_auto else 0)

    def _demand(self, plan: TrialPlan) -> Demand:
        return trial_demand(plan, self._plan.config.verify.mode) if self._refusal(plan) is None else Demand(0, 0)

    def _refusal(self, plan: TrialPlan) -> TrialError | None:
        return why_not_runnable(plan.task, plan.invalid, self._plan.config.agent.name, self._capacity.gpus)

    async def _run_trial(self, plan: TrialPlan) -> None:
        """Run attempts at one trial until a result is final."""
        schedule = self._plan.config.schedule
        # One more for an interrupted trial: its container may be gone when it is to be continued there.
        retries = RetryBudget(1 + schedule.retries + (plan.cut is not None), schedule.retry_choice)
        while True:
            made = await self._attempt(plan, retries)
            if made is None or made[0].final:
                return
            result, left = made
            assert result.error is not None
            retries.limit += result.error.type == REWOUND
            plan = replace(plan, attempt=result.attempt + 1, cut=left)

    async def _attempt(self, plan: TrialPlan, retries: RetryBudget) -> tuple[TrialResult, Cut | None] | None:
        """Run one attempt; return its result, and the remains for the next one; None if the run is stopping."""
        self._events.emit(phase_event(plan, "queued"))
        queued = time.monotonic()
        try:
            async with self._admission.admit(
                self._demand(plan), retries.preference(plan.task_name), retries.avoided
            ) as budget:
                await self.control.may_start()
                if not await self._stop_policy.may_start():
                    return None
                assert budget.node is not None
                found: Sandbox | None = None
                machine = budget.node
                if (cut := plan.cut) is not None:
                    machines = () if cut.lost else run_machines_of(self._backend)  # one may have its container
                    machine = next((each for each in machines if each.name == cut.note.machine and each.is_up), machine)
                    plan, found = await self._find_cut(plan, cut, machine)
                retries.start_on(machine)
                with self.control.trial(plan) as controlled:
                    trial = self._trial(plan, retries, controlled, found)
                    try:
                        tear_down = await trial.run(queue_sec=time.monotonic() - queued)
                    except asyncio.CancelledError:
                        if not controlled.is_set_aside or _is_cancelled():
                            raise
                        self._events.emit(phase_event(plan, "queued"))
                        return None
                assert trial.result is not None
                retries.record(trial.result.error)
        except NoMachine:
            await self._stop_policy.may_start()  # reports why no machine is left
            return None

        async def finish() -> None:
            result = await tear_down()
            self._results.append(result)
            if self._image_remover is not None and result.final:
                await self._image_remover.note_finished(plan)

        # The verdict is on disk; without an await before the task is made, a cancellation loses nothing.
        def on_done(teardown: asyncio.Task[None]) -> None:
            self._teardowns.discard(teardown)
            if not teardown.cancelled() and (bug := teardown.exception()) is not None:
                add_failure(self._bugs, bug)

        teardown = asyncio.create_task(finish(), name=f"teardown {plan.trial}")
        self._teardowns.add(teardown)
        teardown.add_done_callback(on_done)
        # Teardown needs no slot, but containers must not pile up if the engine removes them slower than it starts them.
        while len(self._teardowns) > 2 * self.control.slots.number:
            await asyncio.wait(self._teardowns, return_when=asyncio.FIRST_COMPLETED)
        return trial.result, controlled.left

    async def _find_cut(self, plan: TrialPlan, cut: Cut, machine: RunMachine) -> tuple[TrialPlan, Sandbox | None]:
        """Find the sandbox of an interrupted trial, or else prepare its replay, or let it start again."""
        from tbench.runs.going_on import find_sandbox, replay_of

        name = f"{plan.task_name}/{plan.seed}"
        try:
            assert plan.task is not None
            if not cut.note.sandbox:
                return plan, None
            found = await find_sandbox(plan.task, cut, machine)
            if not isinstance(found, str):
                return plan, found
            why = found
        except TrialError as error:
            why = str(error)
        attempts = self._store.attempts(plan.task_name, plan.seed)
        plan = replace(plan, attempt=max(attempts, default=0) + 1)
        try:
            replay = replay_of(cut, plan.attempt, self._plan.config.schedule.go_on)
            self.control.rewinds[plan.trial] = (name, replay)
            self._events.say(f"{name}: {why}; its {replay.step - 1} steps are replayed in a new one")
            return plan, None
        except UsageError as error:
            self._events.say(f"{name} starts again: {why}, and {error}")
            forget(self._store.path, plan.trial)
            return replace(plan, cut=None), None

    def _trial(
        self, plan: TrialPlan, retries: RetryBudget, controlled: TrialControl, found: Sandbox | None = None
    ) -> Trial:
        from tbench.runs.trial import Trial

        node = retries.node
        assert node is not None
        return Trial(
            plan,
            run=self._plan.run,
            make_agent=self._make_agent,
            model=self._plan.locked.model,
            backend=node.backend,
            node=node,
            store=self._store,
            events=self._events,
            is_last=lambda error: (
                (retries.is_last(error, goes_on=controlled.left is not None) and controlled.rewind_to is None)
                or self._stop_policy.reason is not None
            ),
            host=self._host,
            verify=self._plan.config.verify,
            sandbox=self._plan.config.sandbox,
            control=controlled,
            keep_cut_sec=duration_sec(self._plan.config.schedule.keep_cut),
            count_differing=self._plan.config.schedule.count_differing,
            found=found,
        )


def _is_cancelled() -> bool:
    """Whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def make_debugger(trial: TrialControl, *, waits: bool, asks: bool) -> TrialDebugger:
    """Make a trial's debugger."""
    from tbench.runs.live.debugged_trial import DebuggedTrial  # most runs never need it

    return DebuggedTrial(trial, waits=waits, asks=asks)


def trial_demand(plan: TrialPlan, verify: Verify) -> Demand:
    """Return the resources that a trial needs while it runs."""
    return Demand(0, 0) if plan.task is None else task_demand(plan.task, verify)


def task_demand(task: Task, verify: Verify) -> Demand:
    """Return the resources that a trial of the task needs while it runs."""
    agents = agent_environment(task)
    verifiers = [each for part in task.parts if (each := verifier_environment(part)) is not None]
    memory_mb = max((each.memory_mb for each in verifiers), default=0.0)
    if not verifiers:
        # The verifier's copy of the main container needs its memory again; the agent's container is idle meanwhile.
        memory_mb = agents.memory_mb + (0.0 if verify == "shared" else agents.main_memory_mb)
    elif len(task.parts) > 1:
        memory_mb += agents.memory_mb
    else:
        # The agent's container is removed before the verifier's starts.
        memory_mb = max(memory_mb, agents.memory_mb)
    every = (agents, *verifiers)
    return Demand(max(each.cpus for each in every), memory_mb, max(each.settings.gpus for each in every))


def run_document(plan: RunPlan, tasks: TaskSet, backend: Backend, earlier: RunDocument | None) -> RunDocument:
    """Return the content of run.json: configuration, versions, and resolved names (tasks, images, prompts, model).

    `earlier` is the document of a resumed run: the start time and the images it used are taken from there.
    """
    now = datetime.now(UTC).isoformat()
    return RunDocument(
        run=plan.run,
        config=plan.config,
        locked=plan.locked,
        seeds=plan.seeds,
        shard=plan.shard,
        purpose=earlier.purpose if earlier else plan.purpose,
        created_at=earlier.created_at if earlier else now,
        resumed_at=(*earlier.resumed_at, now) if earlier else (),
        tbench_version=__version__,
        python_version=platform.python_version(),
        engine=_describe_engine(backend, earlier),
        dataset=tasks.origin,
        tasks=planned_tasks(tasks, backend, earlier),
    )


def _describe_engine(backend: Backend, earlier: RunDocument | None) -> dict[str, Any]:
    """Return the engine as run.json stores it, with limits that were not in force in the `earlier` start."""
    lacking = lacking_limits(earlier.engine) if earlier is not None else ()
    return {**backend.describe(), **({EARLIER: list(lacking)} if lacking else {})}


def planned_tasks(tasks: TaskSet, backend: Backend, earlier: RunDocument | None = None) -> tuple[PlannedTask, ...]:
    """Return the tasks as run.json lists them, with the images used now or, else, in the `earlier` start."""
    before = {task.name: task for task in earlier.tasks} if earlier else {}
    planned = []
    for task in tasks.tasks:
        image_id, origin = backend.image_ids.get(task.name), backend.image_origins.get(task.name)
        if (known := before.get(task.name)) is not None and image_id in (None, known.image_id):
            # An image pulled or built by the earlier start is only "present" now.
            image_id, origin = known.image_id, known.image_origin or origin
        planned.append(
            PlannedTask(
                name=task.name,
                hash=task.hash,
                reward_range=task.own_reward_range,
                image_id=image_id,
                image_origin=origin,
            )
        )
    return (*planned, *(PlannedTask(name=name, invalid=why) for name, why in tasks.invalid.items()))


async def execute_run(
    plan: RunPlan,
    tasks: TaskSet,
    directory: Path,
    make_agent: Callable[[], TrialAgent],
    events: Events,
    *,
    backend: Backend,
    earlier: EarlierRun | None = None,
    gate: EndpointGate | None = None,
    hold_at: HoldPoint | None = None,
    replay: Sequence[ReplaySteps] = (),
    expected_sec: Mapping[str, float] = MappingProxyType({}),
    pace: Pace | None = None,
    calibrates: Calibrator | None = None,
    on_end: Callable[[RunOutcome], None] = lambda _: None,
    stop: PlannedStop | None = None,
) -> RunOutcome:
    """Execute a run from start to end: directory, backend, trials, final run.json. Raises UsageError.

    `tasks` are as configured. With `earlier`, continue that run: run the trials that have no result, or an error that
    is retried. For `hold_at` and `replay` see Run, for `expected_sec` plan_trials. `pace` has begun. `calibrates`
    measures the tasks in spare capacity; at the end, results are settled against all calibrations. When cancelled,
    clean up, write all results so far, and raise CancelledError; `on_end` gets the outcome in any case.
    """
    config, say = plan.config, events.say
    require_capabilities(config.verify, config.sandbox, backend)
    before = earlier.document if earlier is not None else None
    document = run_document(plan, tasks, backend, before)
    hide = make_redactor(tasks.tasks, proxy=container_proxy(config.sandbox.container_proxy))
    store = RunStore.create(directory, document, hide) if earlier is None else RunStore.open(directory, hide)
    events.subscribe(store.on_event)
    runnable = _runnable_tasks(tasks, config.agent.name, config.sandbox.allow_env, backend, say)
    if config.schedule.stop_after or config.schedule.stop_at:
        from tbench.runs.going_on import anew_note

        if note := anew_note(runnable, make_agent()):
            say(note)
    plans, standing = plan_trials(tasks, plan, expected_sec), list[TrialResult]()
    if earlier is not None:
        from tbench.runs.going_on import go_on
        from tbench.runs.resume import resume

        plans, standing = resume(store, plans, earlier.retry_errors)
        plans = go_on(directory, plans, make_agent, say)
        say(f"{directory}: {len(standing)} of {len(plans) + len(standing)} trials are kept, {len(plans)} to run")
        store.write_document(document)
    status: Status = "failed"
    stop = stop or PlannedStop()
    calibrated = _CalibratedRun(tasks, backend, store, events, standing, document, calibrates)
    try:
        # Emitted before the first trial begins: making engine and images ready is part of the run.
        events.emit(RunStarted(run=plan.run, trials=len(plans)))
        THREADS.submit(import_module, _TRIAL_MODULE)
        async with open_backend(backend, say):
            with contextlib.suppress(OSError):  # it is written again at the end, unless this process is killed
                store.write_document(document.model_copy(update={"engine": _describe_engine(backend, before)}))
            machines = [node.backend.capacity() for node in run_machines_of(backend)]
            demands = ((task.name, task_demand(task, config.verify.mode)) for task in runnable)
            if message := size_warning(demands, machines, config.schedule.cpu_overcommit):
                say(message)
            names_left = {plan.task_name for plan in plans}
            wanted = [task for task in runnable if task.name in names_left]
            await get_ready(backend, wanted, say, offline=config.tasks.offline, prefetch=config.sandbox.prefetch)
            run = Run(
                plan,
                tasks,
                make_agent=make_agent,
                backend=backend,
                store=store,
                events=events,
                plans=plans,
                gate=gate,
                hold_at=hold_at,
                replay=replay,
                pace=pace,
                stop=stop,
            )
            with stop.stopping(config.schedule):
                async with listening(directory, partial(_serve_control, run.control), say):
                    await calibrated.execute(run)
        status = _status(calibrated.outcome)
    except asyncio.CancelledError:
        status = _status(calibrated.outcome)
        raise
    finally:
        results = [*calibrated.standing, *calibrated.outcome.results]
        outcome = replace(calibrated.outcome, results=results)
        if stop.reason:
            outcome = replace(outcome, planned_stop=stop.reason)
        ending = {
            **replies_fields(plan, outcome.results),
            "status": status,
            "stopped": outcome.stopped or outcome.planned_stop or None,
            "engine": _describe_engine(backend, before),
            "unhealthy": calibrated.unhealthy,
            "paced": pace.recorded if pace is not None else None,
            "tasks": planned_tasks(tasks, backend, document),
        }
        try:
            store.write_document(document.model_copy(update={**ending, "ended_at": datetime.now(UTC).isoformat()}))
        except OSError as error:  # a full disk is only reported: the score must not be lost
            say(f"{store.path}: run.json could not be written: {error.strerror or error}")
        store.close()
        if store.unwritten:
            lost = f"results of {store.unwritten} trials could not be written"
            say(f"{store.path}: {lost}; free disk space, then resume")
        on_end(outcome)
    return outcome


async def _serve_control(control: RunControl, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve a client of the run's control socket."""
    from tbench.control.server import serve  # most runs never need it
    from tbench.runs.live.commands import LiveControl

    await serve(reader, writer, LiveControl(control))


def _runnable_tasks(
    tasks: TaskSet, agent: str, allow_env: Sequence[str], backend: Backend, say: Callable[[str], None]
) -> list[Task]:
    """Return the tasks that can run; report the others, and missing features of the runnable ones."""
    if tasks.origin is not None:
        say(tasks.origin.words)
    refused = not_runnable_tasks(tasks, agent, backend.capacity().gpus)
    refused |= tasks_refused_by(backend, [task for task in tasks.tasks if task.name not in refused])
    for name, error in refused.items():
        say(refusal_words(name, error))
    runnable = [task for task in tasks.tasks if task.name not in refused]
    if message := withheld_variables_note((wish for task in runnable for wish in task.requested_variables), allow_env):
        say(message)
    if lacking := [task.name for task in runnable if task.left_out]:
        say(f".gitignore keeps files of {names_text(lacking)} out of containers: 'tbench task check' lists them")
    return runnable


@dataclass
class _CalibratedRun:
    """A run with calibration beside its trials, which may change its results at the end."""

    tasks: TaskSet
    backend: Backend
    store: RunStore
    events: Events
    standing: list[TrialResult]
    """Results of earlier starts, which calibration may change, too."""
    before: RunDocument
    calibrates: Calibrator | None
    unhealthy: dict[str, str] | None = None
    outcome: RunOutcome = field(default_factory=lambda: RunOutcome([], interrupted=True))

    async def execute(self, run: Run) -> None:
        """Execute the run with calibration beside it, and settle its results at the end."""
        try:
            if self.calibrates is None:
                await run.execute()
                return
            async with calibrating(self.calibrates, run.spare, self.events.say) as end:
                await run.execute(end, self._settle)
        finally:
            self.outcome = run.outcome

    def _settle(self, results: list[TrialResult]) -> list[TrialResult]:
        """Settle these results against the calibrations, and return them; also update `standing`."""
        from tbench.runs.resume import known_calibrations, settle_results

        assert self.calibrates is not None
        architecture = architecture_of(self.backend.describe())
        planned = planned_tasks(self.tasks, self.backend, self.before)
        self.unhealthy = self.calibrates.unhealthy(known_calibrations(self.tasks.tasks, planned, architecture))
        try:
            changed = settle_results(self.store, [*self.standing, *results], self.tasks.tasks, architecture)
        except OSError as error:
            why = error.strerror or error
            self.events.say(f"{self.store.path}: results could not be compared with the oracle's: {why}")
            return results
        for after in changed.values():
            self.events.emit(TrialSettled(result=after))
        if changed:
            names = names_text(f"{each.task}/{each.seed}" for each in changed.values())
            self.events.say(
                f"calibration: {counted(len(changed), 'result')} changed by comparison with the oracle's: {names}"
            )
        self.standing, final = (
            [changed.get(each.trial, each) if each.final else each for each in some]
            for some in (self.standing, results)
        )
        return final


def require_capabilities(verify: VerifyConfig, sandbox: SandboxConfig, backend: Backend) -> None:
    """Check that the backend supports what the configuration needs. Raises UsageError."""
    if verify.mode != "shared":
        for capability in (Compares, Copies):
            require(backend, capability, f"--verify {verify.mode}")
    if sandbox.snapshot:
        require(backend, Snapshots, "--snapshot")
    if sandbox.keep != "none":
        require(backend, Keeps, f"--keep {sandbox.keep}")
    for wanted in ("prefetch", "drop_images"):
        if getattr(sandbox, wanted) and not isinstance(backend, HoldsImages):
            raise UsageError(
                f"--{wanted.replace('_', '-')}: {backend.name} has no images of its own; remove this option"
            )


def _status(outcome: RunOutcome) -> Status:
    if outcome.interrupted:
        return "interrupted"
    return "finished" if outcome.stopped is None else "stopped"
