"""A trial under way, as those see it who speak to its run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.oversight import Declined, Draft, HandedBack
from harness.trajectory import Reply
from tbench.control.wire import TrialUnderWay
from tbench.errors import TrialError
from tbench.events import Phase
from tbench.runs.live.debugged import DebuggedTrial
from tbench.runs.live.hold import Hold
from tbench.runs.live.shared_terminal import SharedTerminal
from tbench.runs.trial_progress import TrialPlan


@dataclass(eq=False)
class ControlledTrial:
    """A trial under way: the oversight of its agent, and the way to end it."""

    plan: TrialPlan
    everything: Hold
    """That of all trials."""
    own: Hold = field(default_factory=Hold)
    phase: Phase = "queued"
    step: int = 0
    line: str = ""
    touched: bool = False
    began: float = field(default_factory=time.monotonic)
    phase_began: float = field(default_factory=time.monotonic)
    is_holdable: bool = False
    """Whether its agent asks before it goes on, as those of the user's own do not."""
    _messages: list[str | HandedBack] = field(default_factory=list)
    _task: asyncio.Task[object] | None = None
    _abort: bool = False

    def __post_init__(self) -> None:
        self.shared = SharedTerminal(self.touch)
        self.debugged = DebuggedTrial(self.shared, self.touch)

    async def before_query(self, step: int) -> Sequence[str | HandedBack]:
        """As in Oversight: hold the agent as long as somebody wants that, then hand over what its model is told."""
        self.is_holdable = True
        while self.everything.is_set or self.own.is_set or self.shared.taken.is_set:
            with self.shared.resting():
                await self.everything.over()
                await self.own.over()
                await self.shared.taken.over()
        await self._take_back()
        messages, self._messages = self._messages, []
        return messages

    async def review(self, draft: Draft) -> Reply | Declined:
        """As in Oversight: what is typed now comes before what the reply asks for."""
        decided = await self.debugged.decisions.about(draft)
        await self.shared.until_free()
        await self._take_back()
        return decided

    async def _take_back(self) -> None:
        """Have the terminal as a person has left it. Raises what the terminal does."""
        if (told := await self.shared.handed_back()) is not None:
            self._messages.append(told)

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
        """A block that `abort` ends. Raises TrialError there."""
        self._task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if not self._abort or self._task is None or self._task.uncancel():
                raise  # the run is ended as well
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

    def say(self, text: str) -> None:
        """Tell the model something with the next message that it gets. From now on the trial does not count."""
        self._messages.append(text)
        self.touch()

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
        )
