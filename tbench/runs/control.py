"""Control over the trials of a running run: their state, pausing, messages, aborting and rewinding.

The code that serves clients of the control socket is in `tbench/runs/live/`, and is loaded for a trial on demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from harness.oversight import Decision, Draft, Query, TerminalHandback
from harness.trajectory import Reply, Trajectory
from tbench.errors import ABORTED, REWOUND, TrialError
from tbench.events import Event, Phase, TrialFinished, TrialPhase, TrialSettled, TrialStep, TrialVerdict
from tbench.results import TrialResult
from tbench.runs.pool import Slots
from tbench.runs.replay_log import ReplayLog, ReplayStep, ReplaySteps
from tbench.runs.stop_policy import PlannedStop
from tbench.runs.trial_progress import Cut, TrialPlan
from tbench.sandbox.backend import Sandbox
from tbench.tasks.task import Task

if TYPE_CHECKING:
    from harness.terminal import Terminal
    from tbench.control.wire import ChangeKind, StepSeen, VerdictSeen

HoldPoint = Literal["query", "reply"]
"""Point at which a trial waits for a person: the next query, or each reply; not those that are replayed."""


class PauseGate(asyncio.Event):
    """A gate at which trials wait while it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.set()

    @property
    def is_closed(self) -> bool:
        """Whether trials have to wait."""
        return not self.is_set()

    close, open = asyncio.Event.clear, asyncio.Event.set


@dataclass(frozen=True)
class ActiveAgent:
    """The agent that is working on a trial now, with its task and sandbox."""

    task: Task
    sandbox: Sandbox
    trajectory: Callable[[], Trajectory | None]
    directory: Path
    """Directory of the trial's files."""


@dataclass(frozen=True)
class RewindPoint:
    """The point at which a rewound trial continues: the steps that its next attempt replays."""

    attempt: int
    """Number of the next attempt."""
    step: int
    """Number of the step whose reply waits after the replay."""
    replay: Sequence[ReplaySteps]
    """Steps to replay, one sequence per task step."""
    version: int = 0
    """Version of the state that debuggers last received."""
    verdicts: tuple[VerdictSeen, ...] = ()
    changes: Mapping[int, Mapping[str, ChangeKind]] = field(default_factory=dict)
    """Changed files by step."""
    goes_on: bool = False
    """Whether this continues an interrupted trial, so that the trial still counts."""
    is_exact: bool = False
    """Whether the trial starts again if the replay differs."""
    hold_at: HoldPoint | None = "reply"
    """Point at which the trial waits after the replay. Unless this is a reply, differences are also logged."""


class TrialDebugger(Protocol):
    """Serves the clients of one trial: they watch it, type into its terminal and decide about its replies."""

    takeover: PauseGate
    """Holds the agent while a client has taken its terminal."""

    def notify_clients(self) -> None:
        """Notify the clients of a change."""

    def on_idle_change(self) -> None:
        """Notify the clients that the agent has become idle, or busy again."""

    async def after_step(self, step: int) -> None:
        """Record the changes of a new step, before a further query."""

    async def before_query(self, now: ReplayStep, earlier: ReplayStep | None) -> None:
        """Act before a query; `earlier` is the replayed step, if any. Raises the terminal's errors."""

    async def review(self, draft: Draft, now: ReplayStep, earlier: ReplayStep | None) -> Decision:
        """Wait for the decision about a reply and return it. Raises the terminal's errors."""

    async def on_agent_end(self, agent: ActiveAgent) -> None:
        """Stop other work that clients began, such as a verifier in a copy of the container."""


@dataclass(eq=False)
class TrialControl:
    """A running trial: oversight of its agent, and the means to end it."""

    plan: TrialPlan
    run_gate: PauseGate = field(default_factory=PauseGate)
    """Holds all trials of the run while it is closed."""
    say: Callable[[str], None] = lambda _: None
    """Shows a message to the user of the run."""
    stop: PlannedStop = field(default_factory=PlannedStop)
    """Planned stop of the run."""
    rewind_point: RewindPoint | None = None
    """Replay with which this attempt begins; None for a fresh one."""
    holds_first_query: bool = False
    """Whether to hold the agent at its first new query."""
    debugger: TrialDebugger | None = None
    """Serves the clients of this trial; None until the first one connects."""
    gate: PauseGate = field(default_factory=PauseGate)
    """Holds this trial while it is closed."""
    phase: Phase = "queued"
    step: int = 0
    line: str = ""
    touched: bool = False
    """Whether a person intervened, so that the trial does not count."""
    on_touch: Callable[[], None] = lambda: None
    """Called when a person has intervened."""
    began: float = field(default_factory=time.monotonic)
    phase_began: float = field(default_factory=time.monotonic)
    is_new: bool = True
    """Whether the current step is new, not a replayed one."""
    is_pausable: bool = False
    """Whether the agent can be paused. Users' own agents cannot: they do not ask before a query."""
    is_idle: bool = False
    """Whether the agent is waiting and does nothing at its terminal."""
    agent: ActiveAgent | None = None
    """The agent; None before it begins and after it has ended."""
    terminal: Terminal | None = None
    """The agent's terminal, while it is open."""
    keeps_container: bool = False
    """Whether the container is kept, because a user asked for it."""
    snapshots: list[str] = field(default_factory=list)
    """Snapshot images of the container that users asked for."""
    steps: tuple[StepSeen, ...] = ()
    """All steps of a debugged trial, once its agent has ended."""
    differs: str = ""
    """First difference between the replayed terminal output and the original, in one line; empty for none."""
    messages: list[str | TerminalHandback] = field(default_factory=list)
    """Messages for the model, sent with its next query."""
    can_go_on: bool = False
    """Whether another process could continue the trial."""
    is_set_aside: bool = False
    """Whether the trial was stopped for another process to continue it."""
    rewind_to: RewindPoint | None = None
    """The point at which the next attempt continues, if the trial was ended in order to rewind it."""
    left: Cut | None = None
    """The remains that the next attempt continues, if the trial has lost its sandbox."""
    _task: asyncio.Task[object] | None = None
    _abort: bool = False

    def __post_init__(self) -> None:
        self.replay_log = ReplayLog(self.rewind_point.replay if self.rewind_point is not None else ())
        self.is_new = self.rewind_point is None
        self.touched = self.rewind_point is not None and not self.rewind_point.goes_on

    def release(self) -> None:
        """Drop the log and the debugger, which reference cycles would keep in memory."""
        self.replay_log, self.debugger = ReplayLog(), None

    # -- harness.oversight.Oversight -----------------------------------------------------------------

    async def before_query(self, step: int) -> Sequence[str | TerminalHandback]:
        """Hold the agent while a gate is closed, then return the messages for its model."""
        self.is_pausable = True
        now, earlier = self.replay_log.begin(step), self.replay_log.earlier
        if earlier is None and self.holds_first_query:
            self.holds_first_query, self.is_new = False, True
            self.gate.close()
        if earlier is None and self.debugger is not None:
            await self.debugger.after_step(step - 1)
        while self._is_held:
            with self.idling():
                await self.run_gate.wait()
                await self.gate.wait()
                if self.debugger is not None:
                    await self.debugger.takeover.wait()
        if self.debugger is not None:
            await self.debugger.before_query(now, earlier)
            if self.is_refuted:
                why = f"the replay in a new one differs at {self.differs}; it starts again (--go-on replay continues)"
                raise TrialError("sandbox_lost", f"its container is gone, and {why}")
        messages, self.messages = self.messages, []
        now.messages = tuple(each for each in messages if isinstance(each, str))
        return messages

    @property
    def _is_held(self) -> bool:
        is_taken = self.debugger is not None and self.debugger.takeover.is_closed
        return self.run_gate.is_closed or self.gate.is_closed or is_taken

    async def reply(self, query: Query) -> Reply:
        """Return the replayed reply, or ask the model."""
        return await self.replay_log.reply(query)

    async def review(self, draft: Draft) -> Decision:
        """Return the decision about a reply; without a debugger, execute it."""
        now, earlier = self.replay_log.now, self.replay_log.earlier
        now.reviewed_after = len(now.queries)
        self.is_new |= earlier is None or earlier.decided is None
        if self.debugger is not None:
            now.decided = await self.debugger.review(draft, now, earlier)
        else:
            now.decided = draft.reply
        return now.decided

    @contextlib.contextmanager
    def idling(self) -> Iterator[None]:
        """Mark the agent as idle during the block, so that a person may type."""
        self._set_idle(True)
        try:
            yield
        finally:
            self._set_idle(False)

    def _set_idle(self, is_idle: bool) -> None:
        self.is_idle = is_idle
        if self.debugger is not None:
            self.debugger.on_idle_change()

    # -- the run's side -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The trial's name, TASK/SEED."""
        return f"{self.plan.task_name}/{self.plan.seed}"

    @property
    def replayed(self) -> dict[str, object] | None:
        """Content of the trial's replay file; None if nothing was replayed."""
        return None if self.rewind_point is None else {"steps": self.rewind_point.step - 1, "differs": self.differs}

    @property
    def is_refuted(self) -> bool:
        """Whether the replay differs from the original although it must not."""
        return bool(self.differs) and self.rewind_point is not None and self.rewind_point.is_exact

    @contextlib.asynccontextmanager
    async def agent_at_work(self, agent: ActiveAgent) -> AsyncIterator[None]:
        """Expose the agent during the block; at its end, other work of clients is stopped, too."""
        self.agent = agent
        try:
            yield
        finally:
            self.agent = None
            if self.debugger is not None:
                await self.debugger.on_agent_end(agent)

    @contextlib.contextmanager
    def abortable(self) -> Iterator[None]:
        """Let `abort` end the block, which then raises TrialError."""
        self._task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if not self._abort or self._task is None or self._task.uncancel():
                raise  # the run was cancelled, too
            if self.is_set_aside:
                raise
            if self.rewind_to is not None:
                raise TrialError(REWOUND, f"by hand, to step {self.rewind_to.step}") from None
            raise TrialError(ABORTED, "ended by hand") from None
        finally:
            self._task = None

    def abort(self, rewind_to: RewindPoint | None = None) -> bool:
        """End the trial without a verdict; return False if it has one already, or is being cleaned up.

        With `rewind_to`, another attempt follows, which begins there.
        """
        if self._task is None or self._abort:
            return False
        self._abort, self.rewind_to = True, rewind_to
        self._task.cancel()
        return True

    def set_aside(self) -> bool:
        """Stop the trial so that another process can continue it; return False if this is impossible."""
        self.is_set_aside = self.can_go_on and self.abort()
        return self.is_set_aside

    def touch(self) -> None:
        """Mark the trial as touched by a person: it no longer counts."""
        self.touched = True
        self.on_touch()
        self.notify_clients()

    def notify_clients(self) -> None:
        """Notify the clients of a change."""
        if self.debugger is not None:
            self.debugger.notify_clients()


class RunControl:
    """The running trials of a run, and the gates that hold them."""

    def __init__(
        self,
        run: str,
        planned: int,
        concurrency: int,
        *,
        make_debugger: Callable[[TrialControl], TrialDebugger],
        debugs_all: bool = False,
        hold_at: HoldPoint | None = None,
        replay: Sequence[ReplaySteps] = (),
        say: Callable[[str], None] = lambda _: None,
        stop: PlannedStop | None = None,
    ) -> None:
        """Make debuggers with `make_debugger` on demand, or with `debugs_all` as each trial begins.

        `hold_at` is where trials wait for a person: at each reply, or at the first new query. Every trial begins with
        the steps in `replay`, without asking its model.
        """
        self.run, self.planned, self.ended = run, planned, 0
        self.slots = Slots(concurrency)
        self.was_resized = False
        """Whether a person has set the number of concurrent trials."""
        self.trials: dict[str, TrialControl] = {}
        """Running trials by id."""
        self.results: dict[str, TrialResult] = {}
        """Result of each finished trial, by TASK/SEED."""
        self.debugged_steps: dict[str, tuple[StepSeen, ...]] = {}
        """Steps of the trials that were debugged to their end, by TASK/SEED."""
        self.rewinds: dict[str, tuple[str, RewindPoint]] = {}
        """TASK/SEED and rewind point of each trial that is being rewound, by its id."""
        self.set_aside: list[str] = []
        """Trials that were stopped for another process, as TASK/SEED."""
        self.start_gate, self.run_gate = PauseGate(), PauseGate()
        self._make_debugger, self._debugs_all = make_debugger, debugs_all or hold_at == "reply" or bool(replay)
        self._hold_at, self._replay, self._say = hold_at, replay, say
        self.stop = stop or PlannedStop()

    async def may_start(self) -> None:
        """Wait until another trial may start."""
        await self.start_gate.wait()

    @contextlib.contextmanager
    def trial(self, plan: TrialPlan) -> Iterator[TrialControl]:
        """Register a trial as running during the block."""
        _, rewind_point = self.rewinds.pop(plan.trial, ("", None))
        if rewind_point is None and self._replay:
            rewind_point = RewindPoint(plan.attempt, len(self._replay[-1]) + 1, self._replay, hold_at=self._hold_at)
        trial = TrialControl(plan, self.run_gate, self._say, self.stop, rewind_point)
        trial.holds_first_query = self._hold_at == "query"
        self.trials[plan.trial] = trial
        if self._debugs_all or rewind_point is not None:
            self.get_debugger(trial)
        try:
            yield trial
        finally:
            del self.trials[plan.trial]
            if trial.is_set_aside:
                self.set_aside.append(trial.name)
            if trial.rewind_to is not None:
                self.rewinds[plan.trial] = (trial.name, trial.rewind_to)
            if trial.steps:
                self.debugged_steps[trial.name] = trial.steps
            trial.notify_clients()
            trial.release()

    def get_debugger(self, trial: TrialControl) -> TrialDebugger:
        """Return the trial's debugger, made on first use."""
        if trial.debugger is None:
            trial.debugger = self._make_debugger(trial)
        return trial.debugger

    def on_event(self, event: Event) -> None:
        """Update the state of the trials."""
        if isinstance(event, TrialFinished):
            self.ended += event.result.final
        elif isinstance(event, TrialVerdict | TrialSettled) and event.result.final:
            self.results[f"{event.result.task}/{event.result.seed}"] = event.result
        elif isinstance(event, TrialPhase | TrialStep) and (trial := self.trials.get(event.trial)):
            if event.attempt != trial.plan.attempt:
                return  # an earlier one is still being torn down
            if isinstance(event, TrialPhase):
                trial.phase, trial.phase_began = event.phase, time.monotonic()
            else:
                trial.step, trial.line = event.step, event.line
            trial.notify_clients()

    @property
    def number(self) -> int:
        """Number of concurrent trials."""
        return self.slots.number

    @property
    def under_way(self) -> int:
        """Number of running trials."""
        return len(self.trials)

    def pace(self, number: int) -> None:
        """Change the number of concurrent trials, as the model's servers allow."""
        self.slots.resize(number)
