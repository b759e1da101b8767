"""A trial under way, as those see it who speak to its run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.oversight import Decided, Draft, HandedBack, Query
from harness.trajectory import Reply
from tbench.control.wire import TrialUnderWay, VerdictSeen
from tbench.errors import REWOUND, TrialError, UsageError
from tbench.events import Phase
from tbench.runs.live.course import Course, Steps, save_cassette
from tbench.runs.live.debugged import DebuggedTrial
from tbench.runs.live.hold import Hold, Waits
from tbench.runs.live.shared_terminal import SharedTerminal
from tbench.runs.trial_progress import TrialPlan


@dataclass(frozen=True)
class WayBack:
    """What the next attempt at a trial that is rewound begins with."""

    attempt: int
    """The number of the next attempt."""
    step: int
    """The one whose reply is to wait."""
    known: Sequence[Steps]
    version: int
    """That of what debuggers were shown last."""
    verdicts: tuple[VerdictSeen, ...]
    waits: Waits | None = "reply"
    """What waits from then on; where it is the replies, somebody sees what differs, else it is said."""


@dataclass(eq=False)
class ControlledTrial:
    """A trial under way: the oversight of its agent, and the way to end it."""

    plan: TrialPlan
    everything: Hold
    """That of all trials."""
    say: Callable[[str], None] = lambda _: None
    """Tells the user of the run."""
    way: WayBack | None = None
    """How it got here, where it was rewound."""
    own: Hold = field(default_factory=Hold)
    phase: Phase = "queued"
    step: int = 0
    line: str = ""
    touched: bool = False
    began: float = field(default_factory=time.monotonic)
    phase_began: float = field(default_factory=time.monotonic)
    is_holdable: bool = False
    """Whether its agent asks before it goes on, as those of the user's own do not."""
    holds_query: bool = False
    """Whether it is to be held at the first query that is not known."""
    goes_back: WayBack | None = None
    """What follows, where it is ended to be rewound."""
    _messages: list[str | HandedBack] = field(default_factory=list)
    _task: asyncio.Task[object] | None = None
    _abort: bool = False

    def __post_init__(self) -> None:
        self.shared = SharedTerminal(self.touch)
        self.debugged = DebuggedTrial(self.shared, self.touch, self._ask)
        self._course = Course(self.way.known if self.way is not None else ())
        if self.way is not None:
            self.touched = True
            self.debugged.begins_anew(self.way.step, self.way.version, self.way.verdicts)
            self.debugged.decisions.is_on = self.way.waits == "reply"

    def let_go(self) -> None:
        """Drop what has happened in it: a trial and its debugger refer to each other, so it would stay in memory."""
        self._course = Course()

    # -- as in Oversight -----------------------------------------------------------------------------

    async def before_query(self, step: int) -> Sequence[str | HandedBack]:
        """As in Oversight: hold the agent as long as somebody wants that, then hand over what its model is told."""
        self.is_holdable = True
        now, known = self._course.begin(step), self._course.known
        if known is None and self.holds_query:
            self.holds_query = False
            self.debugged.is_back()
            self.own.set()
        while self.everything.is_set or self.own.is_set or self.shared.taken.is_set:
            with self.shared.resting():
                await self.everything.over()
                await self.own.over()
                await self.shared.taken.over()
        if known is not None:
            self._compare()
            self._messages.extend(known.said)
            await self._type_again(known.typed[0])
        now.typed[0] = await self._take_back()
        messages, self._messages = self._messages, []
        now.said = tuple(each for each in messages if isinstance(each, str))
        return messages

    async def reply(self, query: Query) -> Reply:
        """As in Oversight: a reply that is known is not asked for again."""
        return await self._course.reply(query)

    async def review(self, draft: Draft) -> Decided:
        """As in Oversight: what is typed now comes before what the reply asks for."""
        now, known = self._course.now, self._course.known
        now.drafted = len(now.asked)
        if known is None or known.decided is None:
            self.debugged.is_back()
            now.decided = await self.debugged.decisions.about(draft)
            await self.shared.until_free()
        else:
            now.decided = known.decided
            await self._type_again(known.typed[1])
        now.typed[1] = await self._take_back()
        return now.decided

    async def _type_again(self, typed: bytes) -> None:
        if typed:
            with self.shared.resting():
                await self.shared.type(typed)

    async def _take_back(self) -> bytes:
        """Have the terminal as a person has left it; what they typed. Raises what the terminal does."""
        typed = self.shared.typed
        if (told := await self.shared.handed_back()) is not None:
            self._messages.append(told)
        return typed

    def _compare(self) -> None:
        """Tell the first time that the terminal shows something else than before."""
        work = self.debugged.work
        if self.debugged.differs or work is None or (trajectory := work.trajectory()) is None:
            return
        self.debugged.differs = self._course.difference(trajectory.steps)
        if self.debugged.differs and self.way is not None and self.way.waits != "reply":
            self.say(f"{self._name}: differs at {self.debugged.differs}")

    @property
    def replayed(self) -> dict[str, object] | None:
        """What was done again in it, for its files; None where all is new."""
        if self.way is None:
            return None
        return {"steps": self.way.step - 1, "differs": self.debugged.differs}

    @property
    def _name(self) -> str:
        return f"{self.plan.task_name}/{self.plan.seed}"

    def _ask(self, draft: Draft) -> None:
        trial = self._name
        self.say(f"{trial}: step {draft.step} waits for approval: tbench approve {trial}, or tbench refuse {trial} WHY")

    # -- as its run and its users have it ------------------------------------------------------------

    def touch(self) -> None:
        """Have the trial count no longer: a person had a hand in it."""
        self.touched = True
        self.debugged.changed()

    @property
    def has_more_steps(self) -> bool:
        """Whether the task has several steps, so that another agent may follow a verifier."""
        return self.plan.task is not None and len(self.plan.task.parts) > 1

    @contextlib.contextmanager
    def abortable(self) -> Iterator[None]:
        """A block that `abort` and `rewind` end. Raises TrialError there."""
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

    def abort(self) -> bool:
        """End the trial without a verdict; False where it has one already, or is only being cleaned up."""
        if self._task is None or self._abort:
            return False
        self._abort = True
        self._task.cancel()
        return True

    def rewind(self, step: int) -> None:
        """End this attempt, and have the next one do the same up to a step. Raises UsageError."""
        if not self._course.has_begun:
            raise UsageError("no model was asked yet, or none that could be told the same again")
        if step > self.step:
            raise UsageError(f"is at step {self.step}; name that, or an earlier one")
        work = self.debugged.work
        trajectory = work.trajectory() if work is not None else None
        known = self._course.until(step, trajectory.steps if trajectory is not None else ())
        way = WayBack(self.plan.attempt + 1, step, known, self.debugged.version + 1, self.debugged.verdicts_so_far)
        if not self.abort():
            raise UsageError("has its verdict, or is being ended already")
        self.goes_back = way

    def say_to_model(self, text: str) -> None:
        """Tell the model something with the next message that it gets. From now on the trial does not count."""
        self._messages.append(text)
        self.touch()

    def save_cassette(self) -> str:
        """Save the replies of its model; where, in words. Raises UsageError."""
        if self.debugged.work is None:
            raise UsageError("its agent has not begun, or has come to its end")
        return save_cassette(self._course, self.debugged.work.directory)

    @property
    def state(self) -> TrialUnderWay:
        now = time.monotonic()
        return TrialUnderWay(
            trial=self.plan.trial,
            task=self.plan.task_name,
            seed=self.plan.seed,
            attempt=self.plan.attempt,
            phase=self.phase,
            step=self.step,
            line=self.line,
            age_sec=round(now - self.began, 3),
            phase_sec=round(now - self.phase_began, 3),
            paused=self.own.is_set,
            held=self.shared.is_resting,
            touched=self.touched,
            waits=bool(self.debugged.decisions.step_now),
        )
