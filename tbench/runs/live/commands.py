"""Commands on a running run, as clients of its control socket send them."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import time
from collections.abc import AsyncIterator, Iterator

from tbench.control.wire import (
    DebugCommand,
    DebugEnd,
    DebugState,
    Paused,
    Quit,
    Rewind,
    RunUnderWay,
    SaveCassette,
    Screen,
    TerminalViewer,
    TrialUnderWay,
)
from tbench.errors import ABORTED, UsageError
from tbench.events import Phase
from tbench.results import TrialResult
from tbench.runs.control import RewindPoint, RunControl, TrialControl
from tbench.runs.live.cassette import save_cassette
from tbench.runs.live.debugged_trial import DebuggedTrial, steps_after
from tbench.text import counted, names_text, plain

_REWIND_POLL_SEC, _REWIND_POLLS = 0.02, 250
"""Interval and number of checks for whether a rewound trial has begun again."""
_AFTER_THE_AGENT: tuple[Phase, ...] = ("verifier", "teardown", "done")


class LiveControl:
    """Carries out commands on a running run: a tbench.control.wire.ControlHandler."""

    def __init__(self, run: RunControl) -> None:
        self._run = run

    def state(self) -> RunUnderWay:
        paused: Paused = "starting nothing" if self._run.start_gate.is_closed else "no"
        return RunUnderWay(
            run=self._run.run,
            planned=self._run.planned,
            ended=self._run.ended,
            concurrency=self._run.slots.number,
            paused="holding all" if self._run.run_gate.is_closed else paused,
            trials=tuple(map(trial_state, self._run.trials.values())),
        )

    def pause(self, trial: str | None, *, now: bool) -> str:
        if trial is not None:
            found = self._trial_at_work(trial)
            found.gate.close()
            return f"{found.name}: will be held at its next model call"
        self._run.start_gate.close()
        if not now:
            return f"no other trial starts; {counted(len(self._run.trials), 'trial')} under way"
        self._run.run_gate.close()
        return f"no other trial starts; {counted(len(self._run.trials), 'trial')} held at their next model calls"

    def go_on(self, trial: str | None) -> str:
        if trial is not None:
            found = self._find(trial)
            found.gate.open()
            held = "; but all trials are held: continue without naming one" if self._run.run_gate.is_closed else ""
            return f"{found.name}: goes on{held}"
        self._run.start_gate.open()
        self._run.run_gate.open()
        own = [each for each in self._run.trials.values() if each.gate.is_closed]
        left = f"; held on their own: {names_text(each.name for each in own)}" if own else ""
        return f"goes on{left}"

    def abort(self, trial: str) -> str:
        found = self._find(trial)
        if not found.abort():
            raise UsageError(f"{found.name}: already has a verdict, or is being ended")
        return f"{found.name}: is ended without a verdict"

    def stop(self, trial: str | None) -> str:
        if trial is not None:
            found = self._find(trial)
            if not found.set_aside():
                raise UsageError(f"{found.name}: cannot be continued; tbench pause holds it, tbench abort ends it")
            return f"{found.name}: is stopped; tbench resume continues it when its run has ended"
        self._run.stop.begin("tbench stop")
        return f"stopping; {counted(len(self._run.trials), 'trial')} under way can be continued with tbench resume"

    def say(self, trial: str, text: str) -> str:
        found = self._trial_at_work(trial)
        found.messages.append(text)
        found.touch()
        return f"{found.name}: its model gets this with the next observation; the trial does not count"

    def resize(self, number: int) -> str:
        before = self._run.slots.number
        self._run.was_resized = True
        self._run.slots.resize(number)
        return f"concurrency {number}, was {before}"

    async def screen(self, trial: str) -> Screen:
        found = self._trial_at_terminal(trial)
        with _prefixing(found):
            return await self._debugger(found).shared.screen()

    async def type(self, trial: str, keys: str) -> str:
        found = self._trial_at_terminal(trial)
        shared = self._debugger(found).shared
        with _prefixing(found):
            if shared.takeover.is_closed:
                raise UsageError("another client has taken its terminal")
            if not await shared.type(keys.replace("\r\n", "\n").replace("\n", "\r").encode("utf-8", "replace")):
                raise UsageError("is at work; pause it (tbench pause TRIAL) and wait until tbench ps shows it as held")
        return f"{found.name}: typed; its model will be shown it, and the trial does not count"

    async def debug(self, trial: str, *, after: int, version: int | None) -> DebugState:
        if (over := self._finished_result(trial)) is None:
            if (rewind := await self._pending_rewind(trial)) is not None:
                return DebugState(
                    version=rewind.version,
                    attempt=rewind.attempt,
                    phase="queued",
                    rewinding=rewind.step,
                    verdicts=rewind.verdicts,
                )
            await self._debugger(self._find(trial)).news(version)
            over = self._finished_result(trial)
        if over is not None:
            error = over.error.type if over.error is not None else None
            ended = DebugEnd(outcome=over.outcome, reward=over.reward, error=error)
            steps = self._run.debugged_steps.get(f"{over.task}/{over.seed}", ())
            seen = steps_after(after, steps)
            return DebugState(
                version=(version or 0) + 1,
                attempt=over.attempt,
                phase="done",
                step=len(steps),
                steps=seen,
                ended=ended,
            )
        found = self._find(trial)
        return self._debugger(found).make_state(trial_state(found), after)

    async def _pending_rewind(self, name: str) -> RewindPoint | None:
        """Return the rewind point of a trial that has not begun again; waits a while for it to begin."""
        for _ in range(_REWIND_POLLS):
            pending = self._run.rewinds.items()
            found = (point for trial, (full, point) in pending if name in (trial, full, _task_name(full)))
            if (rewind := next(found, None)) is None:
                return None
            await asyncio.sleep(_REWIND_POLL_SEC)
        return rewind

    def _finished_result(self, name: str) -> TrialResult | None:
        """Return the result of a finished trial; None if another attempt at it is running."""
        if any(name in (each.plan.trial, each.name, each.plan.task_name) for each in self._run.trials.values()):
            return None
        return next((each for full, each in self._run.results.items() if name in (full, _task_name(full))), None)

    async def decide(self, request: DebugCommand) -> str:
        found = self._find(request.trial)
        if isinstance(request, Quit):
            found.keeps_container = request.keep
            return f"{self.abort(request.trial)}{'; its container stays' if request.keep else ''}"
        if isinstance(request, Rewind):
            with _prefixing(found):
                self._rewind(found, request.step)
            return f"{found.name}: is replayed up to step {request.step}, whose reply then waits for a decision"
        with _prefixing(found):
            if isinstance(request, SaveCassette):
                return f"{found.name}: {_save_replies(found)}"
            return f"{found.name}: {await self._debugger(found).decide(request)}"

    def _debugger(self, trial: TrialControl) -> DebuggedTrial:
        """Return the trial's debugger."""
        debugger = self._run.get_debugger(trial)
        assert isinstance(debugger, DebuggedTrial)
        return debugger

    def _rewind(self, trial: TrialControl, step: int) -> None:
        """End an attempt, and let the next one replay it up to a step. Raises UsageError."""
        if not trial.replay_log.has_begun:
            raise UsageError("no model has been asked yet, or its agent cannot be replayed")
        if step > trial.step:
            raise UsageError(f"is at step {trial.step}; choose that step or an earlier one")
        trajectory = trial.agent.trajectory() if trial.agent is not None else None
        known = trial.replay_log.steps_before(step, trajectory.steps if trajectory is not None else ())
        seen = self._debugger(trial)
        before = {index: changes for index, changes in seen.changes.items() if index < step}
        version, verdicts = seen.version + 1, seen.verdicts_so_far
        if not trial.abort(RewindPoint(trial.plan.attempt + 1, step, known, version, verdicts, before)):
            raise UsageError("already has a verdict, or is being ended")

    @contextlib.asynccontextmanager
    async def attach(self, trial: str, *, take: bool, drawn: bool) -> AsyncIterator[TerminalViewer]:
        found = self._trial_at_terminal(trial)
        with _prefixing(found):
            if take and found.step and not found.is_pausable:
                raise UsageError("its agent cannot be paused, so its terminal cannot be taken; attach without --take")
            async with self._debugger(found).shared.attach(take=take, drawn=drawn) as person:
                yield person

    def _trial_at_terminal(self, name: str) -> TrialControl:
        """Return a running trial whose agent has an open terminal. Raises UsageError."""
        found = self._find(name)
        if found.terminal is not None:
            return found
        if found.phase in _AFTER_THE_AGENT and not _has_more_steps(found):
            raise UsageError(f"{found.name}: its agent has ended ({found.phase})")
        if found.phase == "agent":
            raise UsageError(f"{found.name}: its agent has no terminal now; the oracle never has one")
        raise UsageError(f"{found.name}: its terminal is not open yet ({found.phase})")

    def _trial_at_work(self, name: str) -> TrialControl:
        """Return a running trial whose model may still be asked. Raises UsageError."""
        found = self._find(name)
        if found.phase in _AFTER_THE_AGENT and not _has_more_steps(found):
            raise UsageError(f"{found.name}: its agent has ended ({found.phase})")
        return found

    def _find(self, name: str) -> TrialControl:
        """Return the running trial with this id or TASK/SEED, or the only one of this task. Raises UsageError."""
        fitting = [each for each in self._run.trials.values() if name in (each.plan.trial, each.name)]
        fitting = fitting or [each for each in self._run.trials.values() if name == each.plan.task_name]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            names = names_text(each.name for each in fitting)
            raise UsageError(f"{plain(name)}: several trials of this task are running: {names}")
        if (over := self._finished_result(name)) is not None:
            raise UsageError(f"{plain(name)}: has ended with {outcome_text(over)}")
        known = [each.name for each in self._run.trials.values()]
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "tbench ps lists running trials"
        raise UsageError(f"{plain(name)}: no such trial is running; {hint}")


def trial_state(trial: TrialControl) -> TrialUnderWay:
    """Return the state of a trial."""
    now, debugger = time.monotonic(), trial.debugger
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
        paused=trial.gate.is_closed,
        held=trial.is_idle,
        touched=trial.touched,
        waits=isinstance(debugger, DebuggedTrial) and debugger.decisions.step_now > 0,
    )


def _has_more_steps(trial: TrialControl) -> bool:
    """Whether the task has several steps, so that another agent may follow a verifier."""
    return trial.plan.task is not None and len(trial.plan.task.parts) > 1


def _save_replies(trial: TrialControl) -> str:
    """Save the replies of a trial's model, and return a message about it. Raises UsageError."""
    if trial.agent is None:
        raise UsageError("its agent has not begun, or has ended")
    return save_cassette(trial.replay_log, trial.agent.directory)


def _task_name(name: str) -> str:
    return name.rpartition("/")[0]


@contextlib.contextmanager
def _prefixing(trial: TrialControl) -> Iterator[None]:
    """Put the trial's name in front of errors."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{trial.name}: {error}") from None


def outcome_text(result: TrialResult) -> str:
    """Return a trial's outcome in a few words; to quit is no error."""
    if result.error is not None:
        return "ended by hand" if result.error.type == ABORTED else f"error {result.error.type}"
    return f"reward {result.reward:g}" if result.reward is not None else "no verdict"
