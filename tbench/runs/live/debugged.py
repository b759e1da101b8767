"""A trial as a debugger has it: its steps, the replies that wait, and what is tried beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from harness.oversight import Decided, Draft
from harness.terminal.plain_text import plain_text
from harness.trajectory import Step
from tbench.control.wire import (
    AboutReplies,
    Choose,
    Debugged,
    Drop,
    Edit,
    RunOn,
    Sample,
    SnapshotNow,
    StepOn,
    Stepping,
    StepSeen,
    TrialUnderWay,
    VerdictSeen,
    VerifyNow,
    WaitsFor,
)
from tbench.errors import TrialError, UsageError
from tbench.runs.control import TrialControl, Work
from tbench.runs.course import CourseStep
from tbench.runs.live.shared_terminal import SharedTerminal
from tbench.runs.live.stepping import Decisions, editable
from tbench.sandbox.backend import Snapshots
from tbench.tasks.environment import verifier_environment
from tbench.text import one_line
from tbench.verify.policy import verify_by

_NEWS_SEC = 5.0
"""Longest time for which a debugger waits for something new."""
_MOST_STEPS = 200
"""Steps in one answer."""
_OBSERVATION, _TEXT = 2_000, 20_000
"""Most characters of an observation, its end, and of a reply."""


class DebuggedTrial:
    """What people see and do of one trial: a tbench.runs.control.Attendant."""

    def __init__(self, trial: TrialControl, *, waits: bool = False, asks: bool = False) -> None:
        """With `waits` each reply waits for a decision; with `asks` those that are followed only if somebody says so.

        A trial that is done again waits where its way says so.
        """
        way = trial.way
        self.shared = SharedTerminal(trial)
        self.taken = self.shared.taken
        self.decisions = Decisions(
            trial, on_screen=self._screen, on_change=self.changed, on_touch=trial.touch, on_ask=self._ask_somebody
        )
        self.decisions.is_on = waits or (way is not None and way.waits == "reply")
        self.decisions.asks = asks
        self.version = way.version if way is not None else 0
        """Grows with each change."""
        self._trial = trial
        self._verdicts = list(way.verdicts) if way is not None else []
        self._judging: asyncio.Task[None] | None = None
        self._news: asyncio.Event | None = None
        """Set with the next change; None where nobody waits for one."""

    def rests(self) -> None:
        """As in Attendant."""
        self.shared.tell_taker()

    async def before_query(self, now: CourseStep, known: CourseStep | None) -> None:
        """As in Attendant: what was said and typed before is said and typed again."""
        if known is not None:
            self._compare()
            self._trial.messages.extend(known.said)
            await self._type_again(known.typed[0])
        now.typed[0] = await self._take_back()

    async def decided(self, draft: Draft, now: CourseStep, known: CourseStep | None) -> Decided:
        """As in Attendant: what is typed now comes before what the reply asks for."""
        if known is None or known.decided is None:
            decided = await self.decisions.about(draft)
            await self.shared.until_free()
        else:
            decided = known.decided
            await self._type_again(known.typed[1])
        now.typed[1] = await self._take_back()
        return decided

    async def _type_again(self, typed: bytes) -> None:
        if typed:
            with self._trial.resting():
                await self.shared.type(typed)

    async def _take_back(self) -> bytes:
        """Have the terminal as a person has left it; what they typed. Raises what the terminal does."""
        typed = self.shared.typed
        if (told := await self.shared.handed_back()) is not None:
            self._trial.messages.append(told)
        return typed

    def _compare(self) -> None:
        """Tell the first time that the terminal shows something else than before."""
        trial = self._trial
        if trial.differs or trial.work is None or (trajectory := trial.work.trajectory()) is None:
            return
        trial.differs = trial.course.difference(trajectory.steps)
        if trial.differs and trial.way is not None and trial.way.waits != "reply":
            trial.say(f"{trial.name}: differs at {trial.differs}")

    def _ask_somebody(self, draft: Draft) -> None:
        name = self._trial.name
        self._trial.say(
            f"{name}: step {draft.step} waits for approval: tbench approve {name}, or tbench refuse {name} WHY"
        )

    @property
    def verdicts_so_far(self) -> tuple[VerdictSeen, ...]:
        """What verifiers said that ran in copies."""
        return tuple(each for each in self._verdicts if each.state != "running")

    def changed(self) -> None:
        """Tell those who wait that something can be seen that could not before."""
        self.version += 1
        if self._news is not None:
            self._news.set()
            self._news = None

    async def news(self, version: int | None) -> None:
        """Return when there is something newer than that version, after five seconds at last."""
        if version != self.version:
            return
        self._news = self._news or asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NEWS_SEC):
                await self._news.wait()

    async def ended(self, work: Work) -> None:
        """As in Attendant: before its container goes."""
        if self.decisions.is_on and (trajectory := work.trajectory()) is not None:
            self._trial.steps = trajectory.steps
        if self._judging is not None:
            self._judging.cancel()
            await asyncio.gather(self._judging, return_exceptions=True)

    def shown(self, state: TrialUnderWay, after: int) -> Debugged:
        """The trial now, with its steps after that one."""
        trial = self._trial
        trajectory = trial.work.trajectory() if trial.work is not None else None
        steps = trajectory.steps if trajectory is not None else trial.steps
        samples = self.decisions.samples
        return Debugged(
            version=self.version,
            attempt=state.attempt,
            phase=state.phase,
            waits_for="decision" if samples else self._waits_for(state, len(steps)),
            step=state.step,
            stepping=self.decisions.is_on,
            touched=state.touched,
            steps=shown_after(after, (step for step in steps if step.index < state.step)),
            draft=next((each for each in samples if each.chosen), None),
            samples=samples,
            asking=self.decisions.asking,
            trouble=self.decisions.trouble,
            verdicts=tuple(self._verdicts),
            snapshots=tuple(trial.snapshots),
            rewinding=None if trial.way is None or trial.is_new else trial.way.step,
            differs=trial.differs,
        )

    def _waits_for(self, state: TrialUnderWay, steps: int) -> WaitsFor | None:
        if state.held:
            return "person"
        return "model" if state.phase == "agent" and steps < state.step else None

    async def decide(self, request: AboutReplies) -> str:
        """Do what is asked, and say it. Raises UsageError."""
        match request:
            case Stepping(on=on):
                return self.decisions.set_on(on)
            case StepOn(count=count):
                return self.decisions.step(count)
            case RunOn(to_step=to_step, until_text=until_text):
                return self.decisions.run(to_step=to_step, until_text=until_text)
            case Edit(text=text):
                return self.decisions.edit(text)
            case Drop(why=why):
                return self.decisions.drop(why)
            case Sample(number=number, seed=seed, temperature=temperature):
                return self.decisions.sample(number, seed, temperature)
            case Choose(sample=sample):
                return self.decisions.choose(sample)
            case VerifyNow():
                return self._verify()
            case SnapshotNow():
                return await self._snapshot()
            case _:
                raise UsageError(f"{request.do}: cannot be done here")

    def _at_rest(self) -> Work:
        """The work of an agent that does nothing now. Raises UsageError."""
        if self._trial.work is None:
            raise UsageError("its agent has not begun, or has come to its end")
        if not self._trial.is_resting:
            raise UsageError("is at work; hold it first (tbench pause TRIAL), or have it step")
        return self._trial.work

    def _verify(self) -> str:
        work = self._at_rest()
        if verifier_environment(work.task) is not None:
            raise UsageError("its verifier has a container of its own, which gets the work at the end only")
        if self._judging is not None and not self._judging.done():
            raise UsageError("is being judged already")
        step = self.decisions.step_now or len(getattr(work.trajectory(), "steps", ()))
        self._verdicts.append(VerdictSeen(step=step, state="running"))
        self._judging = asyncio.create_task(self._judge(work, len(self._verdicts) - 1), name="judging a copy")
        self.changed()
        return "its work is judged in a copy"

    async def _judge(self, work: Work, place: int) -> None:
        step = self._verdicts[place].step
        try:
            verdict = await verify_by("isolated", work.task, work.sandbox)
        except TrialError as error:
            found = VerdictSeen(step=step, state="failed", words=one_line(f"{error.type}: {error}"))
        else:
            flags = f"; {len(verdict.integrity.tamper)} signs" if verdict.integrity.tamper else ""
            found = VerdictSeen(
                step=step,
                state="done",
                reward=verdict.reward,
                words=f"reward {verdict.reward:g}{flags}",
                output=plain_text(verdict.stdout)[-_OBSERVATION:],
            )
        self._verdicts[place] = found
        self.changed()

    async def _snapshot(self) -> str:
        sandbox = self._at_rest().sandbox
        if not isinstance(sandbox, Snapshots):
            raise UsageError("its sandbox can give no snapshot")
        try:
            image = await sandbox.snapshot()
        except TrialError as error:
            raise UsageError(f"no snapshot: {error}") from None
        self._trial.snapshots.append(image)
        self.changed()
        return f"its files are kept as the image {image}, which tbench clean --kept removes; processes are not"

    async def _screen(self) -> str:
        """The text of the screen; empty where it cannot be seen."""
        if self._trial.terminal is None:
            return ""
        with contextlib.suppress(ConnectionError):
            return (await self._trial.terminal.drawn()).text
        return ""


def shown_after(after: int, steps: Iterable[Step]) -> tuple[StepSeen, ...]:
    """Those after one of them, as many as go into an answer."""
    return tuple(step_shown(step) for step in steps if step.index > after)[:_MOST_STEPS]


def step_shown(step: Step) -> StepSeen:
    """A step as a debugger shows it."""
    return StepSeen(
        index=step.index,
        reasoning=step.reply.reasoning and step.reply.reasoning[:_TEXT],
        content=editable(step.reply)[:_TEXT],
        actions=step.actions,
        observation=step.observation[-_OBSERVATION:],
        warnings=step.warnings,
        format_error=step.format_error,
        exit_code=step.exit_code,
        model_sec=round(step.model_sec, 3),
        command_sec=round(step.command_sec, 3),
    )
