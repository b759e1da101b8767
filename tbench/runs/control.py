"""A run under way as it can be spoken to: which trials there are, and what somebody wants of them."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from harness.trajectory import Step
from tbench.control.wire import (
    AboutReplies,
    DebugEnd,
    Debugged,
    Onlooker,
    Paused,
    Quit,
    Rewind,
    RunUnderWay,
    SaveCassette,
    Screen,
)
from tbench.errors import UsageError
from tbench.events import Event, Phase, TrialFinished, TrialPhase, TrialSettled, TrialStep, TrialVerdict
from tbench.results import TrialResult
from tbench.runs.live.controlled_trial import ControlledTrial, WayBack
from tbench.runs.live.course import Steps
from tbench.runs.live.debugged import shown_after
from tbench.runs.live.hold import Hold, Waits
from tbench.runs.pool import Slots
from tbench.runs.trial_progress import TrialPlan
from tbench.text import counted, names_shown, plain

_WAY_BACK_SEC, _WAY_BACK_LOOKS = 0.02, 250
"""How often, and how many times, it is looked whether a trial that was rewound has begun anew."""
_AFTER_THE_AGENT: tuple[Phase, ...] = ("verifier", "teardown", "done")


class RunControl:
    """What a run can be asked to do while it is under way: a tbench.control.wire.Controls."""

    def __init__(
        self,
        run: str,
        planned: int,
        concurrency: int,
        *,
        waits: Waits | None = None,
        asks: bool = False,
        known: Sequence[Steps] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`waits` is what waits for somebody: each reply for a decision, or the first query that is not known.

        With `asks` those wait that are followed only if somebody says so, which `say` is told. What is `known` every
        trial does first, without its model being asked.
        """
        self.slots = Slots(concurrency)
        self.was_resized = False
        """Whether a person has said how many trials go at once."""
        self._run, self._planned, self._ended = run, planned, 0
        self._trials: dict[str, ControlledTrial] = {}
        self._over: dict[str, TrialResult] = {}
        """The result of each trial that has ended, by TASK/SEED."""
        self._debugged: dict[str, tuple[Step, ...]] = {}
        """The steps of trials that were debugged to their end."""
        self._ways_back: dict[str, tuple[str, WayBack]] = {}
        """By the id of a trial that is being rewound: TASK/SEED, and what its next attempt begins with."""
        self._starting, self._everything = Hold(), Hold()
        self._waits, self._asks, self._say = waits, asks, say
        self._known = known

    # -- the run's side ----------------------------------------------------------------------------

    async def may_start(self) -> None:
        """Return when another trial may start."""
        await self._starting.over()

    @contextlib.contextmanager
    def trial(self, plan: TrialPlan) -> Iterator[ControlledTrial]:
        """A trial that is under way during the block."""
        _, way = self._ways_back.pop(plan.trial, ("", None))
        if way is None and self._known:
            way = WayBack(plan.attempt, len(self._known[-1]) + 1, self._known, 0, (), waits=self._waits)
        trial = self._trials[plan.trial] = ControlledTrial(plan, self._everything, self._say, way)
        trial.debugged.decisions.is_on |= self._waits == "reply"
        trial.holds_query = self._waits == "query"
        trial.debugged.decisions.asks = self._asks
        try:
            yield trial
        finally:
            del self._trials[plan.trial]
            if trial.goes_back is not None:
                self._ways_back[plan.trial] = (_called(trial), trial.goes_back)
            if trial.debugged.steps:
                self._debugged[_called(trial)] = trial.debugged.steps
            trial.debugged.changed()
            trial.let_go()

    def on_event(self, event: Event) -> None:
        """Notice where trials are."""
        if isinstance(event, TrialFinished):
            self._ended += event.result.final
        elif isinstance(event, TrialVerdict | TrialSettled) and event.result.final:
            self._over[f"{event.result.task}/{event.result.seed}"] = event.result
        elif isinstance(event, TrialPhase | TrialStep) and (trial := self._trials.get(event.trial)):
            if event.attempt != trial.plan.attempt:
                return  # an earlier one is still being torn down
            if isinstance(event, TrialPhase):
                trial.phase, trial.phase_began = event.phase, time.monotonic()
            else:
                trial.step, trial.line = event.step, event.line
            trial.debugged.changed()

    # -- that of whoever speaks to it --------------------------------------------------------------

    def state(self) -> RunUnderWay:
        return RunUnderWay(
            run=self._run,
            planned=self._planned,
            ended=self._ended,
            concurrency=self.slots.number,
            paused=self._paused,
            trials=tuple(trial.state for trial in self._trials.values()),
        )

    @property
    def _paused(self) -> Paused:
        if self._everything.is_set:
            return "holding all"
        return "starting nothing" if self._starting.is_set else "no"

    def pause(self, trial: str | None, *, now: bool) -> str:
        if trial is not None:
            found = self._at_work(trial)
            found.own.set()
            return f"{_called(found)}: is held at its next model call"
        self._starting.set()
        if not now:
            return f"no other trial starts; {counted(len(self._trials), 'trial')} under way"
        self._everything.set()
        return f"no other trial starts; {counted(len(self._trials), 'trial')} held at their next model calls"

    def go_on(self, trial: str | None) -> str:
        if trial is not None:
            found = self._found(trial)
            found.own.lift()
            held = "; but all trials are held: continue without naming one" if self._everything.is_set else ""
            return f"{_called(found)}: goes on{held}"
        self._starting.lift()
        self._everything.lift()
        own = [each for each in self._trials.values() if each.own.is_set]
        left = f"; held on their own: {names_shown(map(_called, own))}" if own else ""
        return f"goes on{left}"

    def abort(self, trial: str) -> str:
        found = self._found(trial)
        if not found.abort():
            raise UsageError(f"{_called(found)}: has its verdict, or is being ended already")
        return f"{_called(found)}: is ended without a verdict"

    def say(self, trial: str, text: str) -> str:
        found = self._at_work(trial)
        found.say_to_model(text)
        return f"{_called(found)}: its model gets this with the next message; the trial does not count"

    @property
    def number(self) -> int:
        """Trials at once."""
        return self.slots.number

    @property
    def under_way(self) -> int:
        """Trials that have begun, and have not ended."""
        return len(self._trials)

    @property
    def ended(self) -> int:
        """Trials that have ended."""
        return self._ended

    def pace(self, number: int) -> None:
        """Have another number of trials at once, as the model's servers have room for."""
        self.slots.resize(number)

    def resize(self, number: int) -> str:
        before = self.slots.number
        self.was_resized = True
        self.slots.resize(number)
        return f"concurrency {number}, was {before}"

    async def screen(self, trial: str) -> Screen:
        found = self._at_terminal(trial)
        with _named(found):
            return await found.shared.screen()

    async def type(self, trial: str, keys: str) -> str:
        found = self._at_terminal(trial)
        with _named(found):
            if found.shared.taken.is_set:
                raise UsageError("somebody has taken its terminal, and types there")
            if not await found.shared.type(keys.replace("\r\n", "\n").replace("\n", "\r").encode("utf-8", "replace")):
                raise UsageError("is at work; hold it first (tbench pause TRIAL), and wait until tbench ps says held")
        return f"{_called(found)}: typed; its model is told of it, and the trial does not count"

    async def debug(self, trial: str, *, after: int, version: int | None) -> Debugged:
        if (over := self._ended_as(trial)) is None:
            if (way := await self._on_its_way_back(trial)) is not None:
                return Debugged(
                    version=way.version,
                    attempt=way.attempt,
                    phase="queued",
                    rewinding=way.step,
                    verdicts=way.verdicts,
                )
            await self._found(trial).debugged.news(version)
            over = self._ended_as(trial)
        if over is not None:
            error = over.error.type if over.error is not None else None
            ended = DebugEnd(outcome=over.outcome, reward=over.reward, error=error)
            steps = self._debugged.get(f"{over.task}/{over.seed}", ())
            seen = shown_after(after, steps)
            return Debugged(
                version=(version or 0) + 1,
                attempt=over.attempt,
                phase="done",
                step=len(steps),
                steps=seen,
                ended=ended,
            )
        found = self._found(trial)
        return found.debugged.shown(found.state, after)

    async def _on_its_way_back(self, said: str) -> WayBack | None:
        """The way of a trial that was rewound and has not begun anew; waits a while for that."""
        for _ in range(_WAY_BACK_LOOKS):
            ways = (way for trial, (name, way) in self._ways_back.items() if said in (trial, name, _task_of(name)))
            if (way := next(ways, None)) is None:
                return None
            await asyncio.sleep(_WAY_BACK_SEC)
        return way

    def _ended_as(self, said: str) -> TrialResult | None:
        """The result of a trial that is over, and of which no other attempt is under way."""
        if any(said in (each.plan.trial, _called(each), each.plan.task_name) for each in self._trials.values()):
            return None
        return next((each for name, each in self._over.items() if said in (name, _task_of(name))), None)

    async def decide(self, request: AboutReplies) -> str:
        found = self._found(request.trial)
        if isinstance(request, Quit):
            found.debugged.is_kept = request.keep
            return f"{self.abort(request.trial)}{'; its container stays' if request.keep else ''}"
        if isinstance(request, Rewind):
            with _named(found):
                found.rewind(request.step)
            return f"{_called(found)}: is done again up to step {request.step}, whose reply waits then"
        with _named(found):
            if isinstance(request, SaveCassette):
                return f"{_called(found)}: {found.save_cassette()}"
            return f"{_called(found)}: {await found.debugged.decide(request)}"

    @contextlib.asynccontextmanager
    async def attach(self, trial: str, *, take: bool, drawn: bool) -> AsyncIterator[Onlooker]:
        found = self._at_terminal(trial)
        with _named(found):
            if take and found.step and not found.is_holdable:
                raise UsageError("its agent is not held, so its terminal cannot be taken; look on without taking it")
            async with found.shared.occupied(take=take, drawn=drawn) as person:
                yield person

    def _at_terminal(self, said: str) -> ControlledTrial:
        """The same, of a trial whose agent is at its terminal. Raises UsageError."""
        found = self._found(said)
        if found.shared.terminal is not None:
            return found
        if found.phase in _AFTER_THE_AGENT and not found.has_more_steps:
            raise UsageError(f"{_called(found)}: its agent has come to its end ({found.phase})")
        if found.phase == "agent":
            raise UsageError(f"{_called(found)}: its agent has no terminal now; the oracle never has one")
        raise UsageError(f"{_called(found)}: its terminal is not open yet ({found.phase})")

    def _at_work(self, said: str) -> ControlledTrial:
        """The same, of a trial whose model is still asked. Raises UsageError."""
        found = self._found(said)
        if found.phase in _AFTER_THE_AGENT and not found.has_more_steps:
            raise UsageError(f"{_called(found)}: its agent has come to its end ({found.phase})")
        return found

    def _found(self, said: str) -> ControlledTrial:
        """The trial of this id, or TASK/SEED, or task where one trial of it is under way. Raises UsageError."""
        fitting = [each for each in self._trials.values() if said in (each.plan.trial, _called(each))]
        fitting = fitting or [each for each in self._trials.values() if said == each.plan.task_name]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise UsageError(f"{plain(said)}: several trials of it are under way: {names_shown(map(_called, fitting))}")
        if (over := self._ended_as(said)) is not None:
            raise UsageError(f"{plain(said)}: has ended: {came_to(over)}")
        known = [_called(each) for each in self._trials.values()]
        near = difflib.get_close_matches(said, known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "tbench ps lists those that are"
        raise UsageError(f"{plain(said)}: no such trial is under way; {hint}")


def _task_of(name: str) -> str:
    return name.rpartition("/")[0]


def _called(trial: ControlledTrial) -> str:
    return f"{trial.plan.task_name}/{trial.plan.seed}"


@contextlib.contextmanager
def _named(trial: ControlledTrial) -> Iterator[None]:
    """Say of which trial it is that something cannot be done."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{_called(trial)}: {error}") from None


def came_to(result: TrialResult) -> str:
    """What became of a trial, in two words."""
    if result.error is not None:
        return f"error {result.error.type}"
    return f"reward {result.reward:g}" if result.reward is not None else "no verdict"
