"""Where the trials of a run are, and what may hold, tell or end them: what a trial carries so that it can be watched.

Whoever speaks to a run is served in `tbench/runs/live/`, which is put into a trial only then.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from harness.oversight import Decided, Draft, HandedBack, Query
from harness.trajectory import Reply, Step, Trajectory
from tbench.errors import REWOUND, TrialError
from tbench.events import Event, Phase, TrialFinished, TrialPhase, TrialSettled, TrialStep, TrialVerdict
from tbench.results import TrialResult
from tbench.runs.course import Course, CourseStep, Steps
from tbench.runs.pool import Slots
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.backend import Sandbox
from tbench.tasks.task import Task

if TYPE_CHECKING:
    from harness.terminal import Terminal
    from tbench.control.wire import VerdictSeen

Waits = Literal["query", "reply"]
"""What waits for somebody, from the beginning or from where nothing is done again: the next query, or each reply."""


class Hold:
    """A gate at which trials wait while it is closed."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_set(self) -> bool:
        """Whether they have to wait."""
        return not self._open.is_set()

    def set(self) -> None:
        self._open.clear()

    def lift(self) -> None:
        self._open.set()

    async def over(self) -> None:
        """Return when they may go on."""
        await self._open.wait()


@dataclass(frozen=True)
class Work:
    """What a trial works on now."""

    task: Task
    sandbox: Sandbox
    trajectory: Callable[[], Trajectory | None]
    directory: Path
    """Directory of its files."""


@dataclass(frozen=True)
class WayBack:
    """What the next attempt at a trial that is rewound begins with."""

    attempt: int
    """The number of the next attempt."""
    step: int
    """The one whose reply is to wait."""
    known: Sequence[Steps]
    version: int = 0
    """The version of what debuggers were shown last."""
    verdicts: tuple[VerdictSeen, ...] = ()
    waits: Waits | None = "reply"
    """What waits from then on; where it is the replies, somebody sees what differs, else it is said."""


class Attendant(Protocol):
    """Those who are at one trial: they look on, type into its terminal, and decide about its replies."""

    taken: Hold
    """Holds the agent while one of them has its terminal."""

    def changed(self) -> None:
        """Show them that something has happened."""

    def rests(self) -> None:
        """Show them that the agent begins or ceases to leave its terminal alone."""

    async def before_query(self, now: CourseStep, known: CourseStep | None) -> None:
        """Do what they want done before a query; `known` is what is done again. Raises what the terminal does."""

    async def decided(self, draft: Draft, now: CourseStep, known: CourseStep | None) -> Decided:
        """What becomes of a reply, as soon as they have decided. Raises what the terminal does."""

    async def ended(self, work: Work) -> None:
        """Let what they try beside the work come to its end."""


@dataclass(eq=False)
class TrialControl:
    """A trial under way: the oversight of its agent, and the way to end it."""

    plan: TrialPlan
    everything: Hold = field(default_factory=Hold)
    """Holds all trials of the run."""
    say: Callable[[str], None] = lambda _: None
    """Tells the user of the run."""
    way: WayBack | None = None
    """How it got here, where it was rewound."""
    holds_query: bool = False
    """Whether it is to be held at the first query that is not known."""
    attendant: Attendant | None = None
    """Those who are at it; None until somebody comes."""
    own: Hold = field(default_factory=Hold)
    phase: Phase = "queued"
    step: int = 0
    line: str = ""
    touched: bool = False
    """Whether a person had a hand in it, so that it does not count."""
    began: float = field(default_factory=time.monotonic)
    phase_began: float = field(default_factory=time.monotonic)
    is_new: bool = True
    """Whether what it does now was not done before."""
    is_holdable: bool = False
    """Whether its agent asks before it goes on, as those of the user's own do not."""
    is_resting: bool = False
    """Whether its agent waits for others and does nothing at its terminal."""
    work: Work | None = None
    """The agent's work; None before it begins and after it has ended."""
    terminal: Terminal | None = None
    """The terminal while an agent works at it."""
    is_kept: bool = False
    """Whether somebody wants its container to stay."""
    snapshots: list[str] = field(default_factory=list)
    """Images that somebody had made of the container."""
    steps: tuple[Step, ...] = ()
    """All steps, once the agent has ended, where somebody debugs it."""
    differs: str = ""
    """Where the terminal has shown something else than when this was done before."""
    messages: list[str | HandedBack] = field(default_factory=list)
    """What its model is told before the next query."""
    goes_back: WayBack | None = None
    """What follows, where it is ended to be rewound."""
    _task: asyncio.Task[object] | None = None
    _abort: bool = False

    def __post_init__(self) -> None:
        self.course = Course(self.way.known if self.way is not None else ())
        self.touched, self.is_new = self.way is not None, self.way is None

    def let_go(self) -> None:
        """Drop what has happened in it: a trial and its attendant refer to each other, so it would stay in memory."""
        self.course, self.attendant = Course(), None

    # -- as in Oversight -----------------------------------------------------------------------------

    async def before_query(self, step: int) -> Sequence[str | HandedBack]:
        """As in Oversight: hold the agent as long as somebody wants that, then hand over what its model is told."""
        self.is_holdable = True
        now, known = self.course.begin(step), self.course.known
        if known is None and self.holds_query:
            self.holds_query, self.is_new = False, True
            self.own.set()
        while self.everything.is_set or self.own.is_set or (self.attendant is not None and self.attendant.taken.is_set):
            with self.resting():
                await self.everything.over()
                await self.own.over()
                if self.attendant is not None:
                    await self.attendant.taken.over()
        if self.attendant is not None:
            await self.attendant.before_query(now, known)
        messages, self.messages = self.messages, []
        now.said = tuple(each for each in messages if isinstance(each, str))
        return messages

    async def reply(self, query: Query) -> Reply:
        """As in Oversight: a reply that is known is not asked for again."""
        return await self.course.reply(query)

    async def review(self, draft: Draft) -> Decided:
        """As in Oversight: a reply is followed where nobody is there to decide."""
        now, known = self.course.now, self.course.known
        now.drafted = len(now.asked)
        self.is_new |= known is None or known.decided is None
        if self.attendant is not None:
            now.decided = await self.attendant.decided(draft, now, known)
        else:
            now.decided = draft.reply
        return now.decided

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """A block in which the agent leaves its terminal alone, so that a person may type."""
        self._rest(True)
        try:
            yield
        finally:
            self._rest(False)

    def _rest(self, rests: bool) -> None:
        self.is_resting = rests
        if self.attendant is not None:
            self.attendant.rests()

    # -- as its run has it ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """TASK/SEED."""
        return f"{self.plan.task_name}/{self.plan.seed}"

    @property
    def replayed(self) -> dict[str, object] | None:
        """What was done again in it, for its files; None where all is new."""
        return None if self.way is None else {"steps": self.way.step - 1, "differs": self.differs}

    @contextlib.asynccontextmanager
    async def at_work(self, work: Work) -> AsyncIterator[None]:
        """A block in which an agent works; what is tried beside it ends with it."""
        self.work = work
        try:
            yield
        finally:
            self.work = None
            if self.attendant is not None:
                await self.attendant.ended(work)

    @contextlib.contextmanager
    def abortable(self) -> Iterator[None]:
        """A block that `abort` ends. Raises TrialError there."""
        self._task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if not self._abort or self._task is None or self._task.uncancel():
                raise  # the run is ended as well
            if self.goes_back is not None:
                raise TrialError(REWOUND, f"by hand, to step {self.goes_back.step}") from None
            raise TrialError("aborted", "ended by hand") from None
        finally:
            self._task = None

    def abort(self, goes_back: WayBack | None = None) -> bool:
        """End the trial without a verdict; False where it has one already, or is only being cleaned up.

        With `goes_back` another attempt follows, which begins with that.
        """
        if self._task is None or self._abort:
            return False
        self._abort, self.goes_back = True, goes_back
        self._task.cancel()
        return True

    def touch(self) -> None:
        """Have the trial count no longer: a person had a hand in it."""
        self.touched = True
        self.changed()

    def changed(self) -> None:
        """Show those who are at it that something has happened."""
        if self.attendant is not None:
            self.attendant.changed()


class RunControl:
    """The trials of a run under way, and what holds them."""

    def __init__(
        self,
        run: str,
        planned: int,
        concurrency: int,
        *,
        attend: Callable[[TrialControl], Attendant],
        attends_all: bool = False,
        waits: Waits | None = None,
        known: Sequence[Steps] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`attend` puts into a trial what serves those who are at it; with `attends_all` into each as it begins.

        `waits` is what waits for somebody: each reply for a decision, or the first query that is not known. What is
        `known` every trial does first, without its model being asked.
        """
        self.run, self.planned, self.ended = run, planned, 0
        self.slots = Slots(concurrency)
        self.was_resized = False
        """Whether a person has said how many trials go at once."""
        self.trials: dict[str, TrialControl] = {}
        """Those under way, by id."""
        self.over: dict[str, TrialResult] = {}
        """The result of each trial that has ended, by TASK/SEED."""
        self.debugged: dict[str, tuple[Step, ...]] = {}
        """The steps of trials that were debugged to their end."""
        self.ways_back: dict[str, tuple[str, WayBack]] = {}
        """By the id of a trial that is being rewound: TASK/SEED, and what its next attempt begins with."""
        self.starting, self.everything = Hold(), Hold()
        self._attend, self._attends_all = attend, attends_all or waits == "reply" or bool(known)
        self._waits, self._known, self._say = waits, known, say

    async def may_start(self) -> None:
        """Return when another trial may start."""
        await self.starting.over()

    @contextlib.contextmanager
    def trial(self, plan: TrialPlan) -> Iterator[TrialControl]:
        """A trial that is under way during the block."""
        _, way = self.ways_back.pop(plan.trial, ("", None))
        if way is None and self._known:
            way = WayBack(plan.attempt, len(self._known[-1]) + 1, self._known, waits=self._waits)
        trial = TrialControl(plan, self.everything, self._say, way, holds_query=self._waits == "query")
        self.trials[plan.trial] = trial
        if self._attends_all or way is not None:
            self.attend(trial)
        try:
            yield trial
        finally:
            del self.trials[plan.trial]
            if trial.goes_back is not None:
                self.ways_back[plan.trial] = (trial.name, trial.goes_back)
            if trial.steps:
                self.debugged[trial.name] = trial.steps
            trial.changed()
            trial.let_go()

    def attend(self, trial: TrialControl) -> Attendant:
        """What serves those who are at a trial, put into it where it is not there yet."""
        if trial.attendant is None:
            trial.attendant = self._attend(trial)
        return trial.attendant

    def on_event(self, event: Event) -> None:
        """Notice where trials are."""
        if isinstance(event, TrialFinished):
            self.ended += event.result.final
        elif isinstance(event, TrialVerdict | TrialSettled) and event.result.final:
            self.over[f"{event.result.task}/{event.result.seed}"] = event.result
        elif isinstance(event, TrialPhase | TrialStep) and (trial := self.trials.get(event.trial)):
            if event.attempt != trial.plan.attempt:
                return  # an earlier one is still being torn down
            if isinstance(event, TrialPhase):
                trial.phase, trial.phase_began = event.phase, time.monotonic()
            else:
                trial.step, trial.line = event.step, event.line
            trial.changed()

    @property
    def number(self) -> int:
        """Trials at once."""
        return self.slots.number

    @property
    def under_way(self) -> int:
        """Trials that have begun, and have not ended."""
        return len(self.trials)

    def pace(self, number: int) -> None:
        """Have another number of trials at once, as the model's servers have room for."""
        self.slots.resize(number)
