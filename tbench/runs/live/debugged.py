"""A trial as a debugger has it: its steps, the replies that wait, and what is tried beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.oversight import Draft
from harness.trajectory import Step, Trajectory
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
from tbench.runs.live.shared_terminal import SharedTerminal
from tbench.runs.live.stepping import Decisions, editable
from tbench.sandbox.backend import Sandbox, Snapshots
from tbench.tasks.environment import verifier_environment
from tbench.tasks.task import Task
from tbench.text import one_line
from tbench.verify.policy import verify_by

_NEWS_SEC = 5.0
"""Longest time for which a debugger waits for something new."""
_MOST_STEPS = 200
"""Steps in one answer."""
_OBSERVATION, _TEXT = 2_000, 20_000
"""Most characters of an observation, its end, and of a reply."""


@dataclass(frozen=True)
class Work:
    """What a trial works on now."""

    task: Task
    sandbox: Sandbox
    trajectory: Callable[[], Trajectory | None]
    directory: Path
    """Directory of its files."""


class DebuggedTrial:
    """What a debugger sees and does of one trial. Where nobody debugs it, it costs a number per event."""

    def __init__(
        self,
        shared: SharedTerminal,
        on_touch: Callable[[], None],
        on_ask: Callable[[Draft], None] = lambda _: None,
    ) -> None:
        self.decisions = Decisions(
            shared, on_screen=self._screen, on_change=self.changed, on_touch=on_touch, on_ask=on_ask
        )
        self.work: Work | None = None
        """The agent's work; None before it begins and after it has ended."""
        self.is_kept = False
        """Whether the container is to stay."""
        self.snapshots: list[str] = []
        """Images that were made of the container."""
        self.steps: tuple[Step, ...] = ()
        """All steps, once the agent has ended, where somebody debugs it."""
        self.differs = ""
        """Where the terminal has shown something else than when this was done before."""
        self.version = 0
        """Grows with each change."""
        self._shared = shared
        self._rewinding: int | None = None
        self._verdicts: list[VerdictSeen] = []
        self._judging: asyncio.Task[None] | None = None
        self._news: asyncio.Event | None = None
        """Set with the next change; None where nobody waits for one."""

    def begins_anew(self, step: int, version: int, verdicts: Sequence[VerdictSeen]) -> None:
        """Take it that the trial is done again up to a step, whose reply waits then."""
        self._rewinding, self.version = step, version
        self._verdicts.extend(verdicts)

    def is_back(self) -> None:
        """Take it that what comes now is new."""
        self._rewinding = None

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

    async def ended(self) -> None:
        """Let what is tried beside the work come to its end before its container goes."""
        if self.work is not None and self.decisions.is_on and (trajectory := self.work.trajectory()) is not None:
            self.steps = trajectory.steps
        self.work = None
        if self._judging is not None:
            self._judging.cancel()
            await asyncio.gather(self._judging, return_exceptions=True)

    def shown(self, state: TrialUnderWay, after: int) -> Debugged:
        """The trial now, with its steps after that one."""
        trajectory = self.work.trajectory() if self.work is not None else None
        steps = trajectory.steps if trajectory is not None else self.steps
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
            snapshots=tuple(self.snapshots),
            rewinding=self._rewinding,
            differs=self.differs,
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
        if self.work is None:
            raise UsageError("its agent has not begun, or has come to its end")
        if not self._shared.is_resting:
            raise UsageError("is at work; hold it first (tbench pause TRIAL), or have it step")
        return self.work

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
        from harness.terminal.plain_text import plain_text

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
        self.snapshots.append(image)
        self.changed()
        return f"its files are kept as the image {image}, which tbench clean --kept removes; processes are not"

    async def _screen(self) -> str:
        """The text of the screen; empty where it cannot be seen."""
        if self._shared.terminal is None:
            return ""
        with contextlib.suppress(ConnectionError):
            return (await self._shared.terminal.drawn()).text
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
