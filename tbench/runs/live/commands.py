"""A run under way as it can be spoken to: which trials there are, and what somebody wants of them."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import time
from collections.abc import AsyncIterator, Iterator

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
    TrialUnderWay,
)
from tbench.errors import UsageError
from tbench.events import Phase
from tbench.results import TrialResult
from tbench.runs.control import RunControl, TrialControl, WayBack
from tbench.runs.live.debugged import DebuggedTrial, shown_after
from tbench.runs.live.saving import save_cassette
from tbench.text import counted, names_shown, plain

_WAY_BACK_SEC, _WAY_BACK_LOOKS = 0.02, 250
"""How often, and how many times, it is looked whether a trial that was rewound has begun anew."""
_AFTER_THE_AGENT: tuple[Phase, ...] = ("verifier", "teardown", "done")


class LiveControl:
    """What a run can be asked to do while it is under way: a tbench.control.wire.Controls."""

    def __init__(self, run: RunControl) -> None:
        self._run = run

    def state(self) -> RunUnderWay:
        return RunUnderWay(
            run=self._run.run,
            planned=self._run.planned,
            ended=self._run.ended,
            concurrency=self._run.slots.number,
            paused=self._paused,
            trials=tuple(map(state_of, self._run.trials.values())),
        )

    @property
    def _paused(self) -> Paused:
        if self._run.everything.is_set:
            return "holding all"
        return "starting nothing" if self._run.starting.is_set else "no"

    def pause(self, trial: str | None, *, now: bool) -> str:
        if trial is not None:
            found = self._at_work(trial)
            found.own.set()
            return f"{found.name}: is held at its next model call"
        self._run.starting.set()
        if not now:
            return f"no other trial starts; {counted(len(self._run.trials), 'trial')} under way"
        self._run.everything.set()
        return f"no other trial starts; {counted(len(self._run.trials), 'trial')} held at their next model calls"

    def go_on(self, trial: str | None) -> str:
        if trial is not None:
            found = self._found(trial)
            found.own.lift()
            held = "; but all trials are held: continue without naming one" if self._run.everything.is_set else ""
            return f"{found.name}: goes on{held}"
        self._run.starting.lift()
        self._run.everything.lift()
        own = [each for each in self._run.trials.values() if each.own.is_set]
        left = f"; held on their own: {names_shown(each.name for each in own)}" if own else ""
        return f"goes on{left}"

    def abort(self, trial: str) -> str:
        found = self._found(trial)
        if not found.abort():
            raise UsageError(f"{found.name}: has its verdict, or is being ended already")
        return f"{found.name}: is ended without a verdict"

    def say(self, trial: str, text: str) -> str:
        found = self._at_work(trial)
        found.messages.append(text)
        found.touch()
        return f"{found.name}: its model gets this with the next message; the trial does not count"

    def resize(self, number: int) -> str:
        before = self._run.slots.number
        self._run.was_resized = True
        self._run.slots.resize(number)
        return f"concurrency {number}, was {before}"

    async def screen(self, trial: str) -> Screen:
        found = self._at_terminal(trial)
        with _named(found):
            return await self._at(found).shared.screen()

    async def type(self, trial: str, keys: str) -> str:
        found = self._at_terminal(trial)
        shared = self._at(found).shared
        with _named(found):
            if shared.taken.is_set:
                raise UsageError("somebody has taken its terminal, and types there")
            if not await shared.type(keys.replace("\r\n", "\n").replace("\n", "\r").encode("utf-8", "replace")):
                raise UsageError("is at work; hold it first (tbench pause TRIAL), and wait until tbench ps says held")
        return f"{found.name}: typed; its model is told of it, and the trial does not count"

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
            await self._at(self._found(trial)).news(version)
            over = self._ended_as(trial)
        if over is not None:
            error = over.error.type if over.error is not None else None
            ended = DebugEnd(outcome=over.outcome, reward=over.reward, error=error)
            steps = self._run.debugged.get(f"{over.task}/{over.seed}", ())
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
        return self._at(found).shown(state_of(found), after)

    async def _on_its_way_back(self, said: str) -> WayBack | None:
        """The way of a trial that was rewound and has not begun anew; waits a while for that."""
        for _ in range(_WAY_BACK_LOOKS):
            ways = (way for trial, (name, way) in self._run.ways_back.items() if said in (trial, name, _task_of(name)))
            if (way := next(ways, None)) is None:
                return None
            await asyncio.sleep(_WAY_BACK_SEC)
        return way

    def _ended_as(self, said: str) -> TrialResult | None:
        """The result of a trial that is over, and of which no other attempt is under way."""
        if any(said in (each.plan.trial, each.name, each.plan.task_name) for each in self._run.trials.values()):
            return None
        return next((each for name, each in self._run.over.items() if said in (name, _task_of(name))), None)

    async def decide(self, request: AboutReplies) -> str:
        found = self._found(request.trial)
        if isinstance(request, Quit):
            found.is_kept = request.keep
            return f"{self.abort(request.trial)}{'; its container stays' if request.keep else ''}"
        if isinstance(request, Rewind):
            with _named(found):
                self._rewind(found, request.step)
            return f"{found.name}: is done again up to step {request.step}, whose reply waits then"
        with _named(found):
            if isinstance(request, SaveCassette):
                return f"{found.name}: {_saved(found)}"
            return f"{found.name}: {await self._at(found).decide(request)}"

    def _at(self, trial: TrialControl) -> DebuggedTrial:
        """What serves those who are at a trial."""
        attendant = self._run.attend(trial)
        assert isinstance(attendant, DebuggedTrial)
        return attendant

    def _rewind(self, trial: TrialControl, step: int) -> None:
        """End an attempt, and have the next one do the same up to a step. Raises UsageError."""
        if not trial.course.has_begun:
            raise UsageError("no model was asked yet, or none that could be told the same again")
        if step > trial.step:
            raise UsageError(f"is at step {trial.step}; name that, or an earlier one")
        trajectory = trial.work.trajectory() if trial.work is not None else None
        known = trial.course.until(step, trajectory.steps if trajectory is not None else ())
        seen = self._at(trial)
        if not trial.abort(WayBack(trial.plan.attempt + 1, step, known, seen.version + 1, seen.verdicts_so_far)):
            raise UsageError("has its verdict, or is being ended already")

    @contextlib.asynccontextmanager
    async def attach(self, trial: str, *, take: bool, drawn: bool) -> AsyncIterator[Onlooker]:
        found = self._at_terminal(trial)
        with _named(found):
            if take and found.step and not found.is_holdable:
                raise UsageError("its agent is not held, so its terminal cannot be taken; look on without taking it")
            async with self._at(found).shared.occupied(take=take, drawn=drawn) as person:
                yield person

    def _at_terminal(self, said: str) -> TrialControl:
        """A trial under way whose agent is at its terminal. Raises UsageError."""
        found = self._found(said)
        if found.terminal is not None:
            return found
        if found.phase in _AFTER_THE_AGENT and not _has_more_steps(found):
            raise UsageError(f"{found.name}: its agent has come to its end ({found.phase})")
        if found.phase == "agent":
            raise UsageError(f"{found.name}: its agent has no terminal now; the oracle never has one")
        raise UsageError(f"{found.name}: its terminal is not open yet ({found.phase})")

    def _at_work(self, said: str) -> TrialControl:
        """A trial under way whose model is still asked. Raises UsageError."""
        found = self._found(said)
        if found.phase in _AFTER_THE_AGENT and not _has_more_steps(found):
            raise UsageError(f"{found.name}: its agent has come to its end ({found.phase})")
        return found

    def _found(self, said: str) -> TrialControl:
        """The trial of this id, or TASK/SEED, or task where one trial of it is under way. Raises UsageError."""
        fitting = [each for each in self._run.trials.values() if said in (each.plan.trial, each.name)]
        fitting = fitting or [each for each in self._run.trials.values() if said == each.plan.task_name]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            names = names_shown(each.name for each in fitting)
            raise UsageError(f"{plain(said)}: several trials of it are under way: {names}")
        if (over := self._ended_as(said)) is not None:
            raise UsageError(f"{plain(said)}: has ended: {came_to(over)}")
        known = [each.name for each in self._run.trials.values()]
        near = difflib.get_close_matches(said, known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "tbench ps lists those that are"
        raise UsageError(f"{plain(said)}: no such trial is under way; {hint}")


def state_of(trial: TrialControl) -> TrialUnderWay:
    """Where a trial is."""
    now, attendant = time.monotonic(), trial.attendant
    return TrialUnderWay(
        trial=trial.plan.trial,
        task=trial.plan.task_name,
        seed=trial.plan.seed,
        attempt=trial.plan.attempt,
        phase=trial.phase,
        step=trial.step,
        line=trial.line,
        age_sec=round(now - trial.began, 3),
        phase_sec=round(now - trial.phase_began, 3),
        paused=trial.own.is_set,
        held=trial.is_resting,
        touched=trial.touched,
        waits=isinstance(attendant, DebuggedTrial) and attendant.decisions.step_now > 0,
    )


def _has_more_steps(trial: TrialControl) -> bool:
    """Whether the task has several steps, so that another agent may follow a verifier."""
    return trial.plan.task is not None and len(trial.plan.task.parts) > 1


def _saved(trial: TrialControl) -> str:
    """Save the replies of a trial's model; where, in words. Raises UsageError."""
    if trial.work is None:
        raise UsageError("its agent has not begun, or has come to its end")
    return save_cassette(trial.course, trial.work.directory)


def _task_of(name: str) -> str:
    return name.rpartition("/")[0]


@contextlib.contextmanager
def _named(trial: TrialControl) -> Iterator[None]:
    """Say of which trial it is that something cannot be done."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{trial.name}: {error}") from None


def came_to(result: TrialResult) -> str:
    """What became of a trial, in two words."""
    if result.error is not None:
        return f"error {result.error.type}"
    return f"reward {result.reward:g}" if result.reward is not None else "no verdict"
