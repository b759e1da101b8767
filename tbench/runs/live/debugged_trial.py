"""A trial as its debugging clients see it: its steps, waiting replies, and verifiers in copies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from harness.oversight import Decision, Draft
from harness.terminal.plain_text import plain_text
from harness.thoughts import step_texts
from harness.trajectory import Step
from tbench.checked_tests import failed_tests, read_tests
from tbench.control.wire import (
    Choose,
    DebugCommand,
    DebugState,
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
from tbench.runs.control import ActiveAgent, TrialControl
from tbench.runs.live.breakpoints import REWARD, OnChange, OnExit, OnScreen, OnTest
from tbench.runs.live.changed_files import ChangedFiles, Changes
from tbench.runs.live.shared_terminal import SharedTerminal
from tbench.runs.live.stepping import Breakpoint, ReplyDecisions, cut_thoughts, editable
from tbench.runs.replay_log import ReplayStep
from tbench.sandbox.backend import Snapshots
from tbench.tasks.environment import verifier_environment
from tbench.text import counted, one_line
from tbench.verify.policy import verify_by
from tbench.verify.verifier import Verdict

_NEWS_SEC = 5.0
"""Longest wait of a client for a change."""
_MAX_STEPS = 200
"""Maximum number of steps in one answer."""
_MAX_FILES, _MAX_FAILED = 100, 10
"""Maximum numbers of changed files of a step, and of failed tests of a verdict."""
_LOG_BYTES = 4 << 20
_OBSERVATION, _TEXT = 2_000, 20_000
"""Maximum number of characters of an observation (from its end) and of a reply."""


class DebuggedTrial:
    """Serves the clients that debug one trial. Implements tbench.runs.control.TrialDebugger."""

    def __init__(self, trial: TrialControl, *, waits: bool = False, asks: bool = False) -> None:
        """With `waits` each reply waits for a decision; with `asks`, each reply that needs approval.

        A replayed trial waits where its rewind point says.
        """
        rewind_point = trial.rewind_point
        self.shared = SharedTerminal(trial)
        self.takeover = self.shared.takeover
        waiting = f"waits for approval: tbench approve {trial.name}, or tbench refuse {trial.name} WHY"
        self.decisions = ReplyDecisions(
            trial,
            on_change=self.notify_clients,
            on_touch=trial.touch,
            on_ask=lambda draft: trial.say(f"{trial.name}: step {draft.step} {waiting}"),
        )
        self.decisions.is_stepping = waits or (rewind_point is not None and rewind_point.hold_at == "reply")
        self.decisions.asks_approval = asks
        self.version = rewind_point.version if rewind_point is not None else 0
        """Number of the latest change."""
        self._trial = trial
        self._verdicts = list(rewind_point.verdicts) if rewind_point is not None else []
        self._judging: asyncio.Task[object] | None = None
        self.changes: dict[int, Changes] = dict(rewind_point.changes) if rewind_point is not None else {}
        """Known changed files by step."""
        self._files: ChangedFiles | None = None
        self._is_looking = False
        """Whether the check of the latest step's changed files is still running."""
        self._news: asyncio.Event | None = None
        """Set with the next change; None if no client waits for one."""

    def on_idle_change(self) -> None:
        self.shared.nudge_taker()

    async def before_query(self, now: ReplayStep, earlier: ReplayStep | None) -> None:
        """During a replay, send the earlier messages and keys again."""
        self._compare()
        if earlier is not None:
            self._trial.messages.extend(earlier.messages)
            await self._type_again(earlier.typed[0])
        now.typed[0] = await self._take_back()

    async def review(self, draft: Draft, now: ReplayStep, earlier: ReplayStep | None) -> Decision:
        """Decide, then wait until no client holds the terminal, so that their keys are sent before the reply's."""
        if earlier is None or earlier.decided is None:
            decided = await self.decisions.decide(draft)
            await self.shared.wait_until_free()
        else:
            decided = earlier.decided
            await self._type_again(earlier.typed[1])
        now.typed[1] = await self._take_back()
        return decided

    async def after_step(self, step: int) -> None:
        """Note the files that a step has changed, if the trial is being stepped through."""
        if not self.decisions.is_stepping or self._trial.agent is None:
            self._files = None
            return
        is_first, self._files = self._files is None, self._files or ChangedFiles(self._trial.agent.sandbox)
        self._is_looking = True
        try:
            found = await self._files.look()
        finally:
            self._is_looking = False
        if not is_first and not self._files.problem:
            self.changes[step] = found
        self.notify_clients()

    async def _type_again(self, typed: bytes) -> None:
        if typed:
            with self._trial.idling():
                await self.shared.type(typed)

    async def _take_back(self) -> bytes:
        """Take the terminal back from a person, and return what they typed. Raises the terminal's errors."""
        typed = self.shared.typed_bytes
        if (message := await self.shared.handed_back()) is not None:
            self._trial.messages.append(message)
        return typed

    def _compare(self) -> None:
        """Report the first difference between the replayed terminal output and the original."""
        trial = self._trial
        if trial.differs or trial.agent is None or (trajectory := trial.agent.trajectory()) is None:
            return
        trial.differs = trial.replay_log.difference(trajectory.steps)
        if trial.differs and trial.rewind_point is not None and trial.rewind_point.hold_at != "reply":
            trial.say(f"{trial.name}: the replay differs at {trial.differs}")

    @property
    def verdicts_so_far(self) -> tuple[VerdictSeen, ...]:
        """Verdicts of the verifiers that have run in copies."""
        return tuple(each for each in self._verdicts if each.state != "running")

    def notify_clients(self) -> None:
        """Wake the clients that wait for a change."""
        self.version += 1
        if self._news is not None:
            self._news.set()
            self._news = None

    async def news(self, version: int | None) -> None:
        """Wait for a change after that version, for five seconds at most."""
        if version != self.version:
            return
        self._news = self._news or asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NEWS_SEC):
                await self._news.wait()

    async def on_agent_end(self, agent: ActiveAgent) -> None:
        """Keep the steps, and stop a verifier before the container is removed."""
        if self.decisions.is_stepping and (trajectory := agent.trajectory()) is not None:
            if trajectory.outcome is not None and self._files is not None:  # an aborted one ends at once
                self.changes[len(trajectory.steps)] = await self._files.look()
            self._trial.steps = tuple(self._seen(trajectory.steps))
        if self._judging is not None:
            self._judging.cancel()
            await asyncio.gather(self._judging, return_exceptions=True)

    def make_state(self, state: TrialUnderWay, after: int) -> DebugState:
        """Return the trial's state, with its steps after number `after`."""
        trial, before = self._trial, state.step - self._is_looking
        trajectory = trial.agent.trajectory() if trial.agent is not None else None
        if trajectory is None:
            known, steps = len(trial.steps), steps_after(after, (each for each in trial.steps if each.index < before))
        else:
            known = len(trajectory.steps)
            steps = steps_after(after, self._seen(each for each in trajectory.steps if after < each.index < before))
        samples = self.decisions.samples
        waits_for: WaitsFor | None = "model" if state.phase == "agent" and known < state.step else None
        if samples or state.held:
            waits_for = "decision" if samples else "person"
        return DebugState(
            version=self.version,
            attempt=state.attempt,
            phase=state.phase,
            waits_for=waits_for,
            step=state.step,
            stepping=self.decisions.is_stepping,
            touched=state.touched,
            steps=steps,
            draft=next((each for each in samples if each.chosen), None),
            samples=samples,
            asking=self.decisions.asking,
            trouble=self.decisions.trouble,
            stopped=self.decisions.stopped if samples else "",
            verdicts=tuple(self._verdicts),
            snapshots=tuple(trial.snapshots),
            rewinding=None if trial.rewind_point is None or trial.is_new else trial.rewind_point.step,
            differs=trial.differs,
        )

    def _seen(self, steps: Iterable[Step]) -> Iterator[StepSeen]:
        """Yield steps with the files that they changed, without directories in which only entries were added or
        removed."""
        for step in steps:
            found, files = dict(self.changes.get(step.index, {})), self._files
            for path in [
                path for path, kind in found.items() if kind == "changed" and files and files.is_directory(path)
            ]:
                del found[path]
            first = dict(islice(found.items(), _MAX_FILES))
            yield make_step_seen(step).model_copy(update={"files": first, "more_files": len(found) - len(first)})

    async def decide(self, request: DebugCommand) -> str:
        """Carry out a command, and return a message about it. Raises UsageError."""
        match request:
            case Stepping(on=on):
                return self.decisions.set_stepping(on)
            case StepOn(count=count):
                return self.decisions.step(count)
            case RunOn(to_step=to_step):
                return self.decisions.run(to_step=to_step, breakpoints=tuple(self._breakpoints(request)))
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
                raise UsageError(f"{request.do}: not possible here")

    def _breakpoints(self, asked: RunOn) -> Iterator[Breakpoint]:
        """Yield the breakpoints of a request. Raises UsageError."""
        if asked.until_text is not None:
            yield OnScreen(asked.until_text, self._screen)
        if asked.until_exit:
            yield OnExit(self._done_steps)
        if asked.until_changed is not None:
            self._files = self._files or ChangedFiles(self._idle_agent().sandbox)
            yield OnChange(asked.until_changed, self._files, lambda: self.changes.get(len(self._done_steps()), {}))
        if asked.until_test is not None:
            self._require_verifier()
            yield OnTest(asked.until_test, self._judge_again)

    def _done_steps(self) -> Sequence[Step]:
        """Return the finished steps, while the next one's reply is reviewed."""
        trajectory = self._trial.agent.trajectory() if self._trial.agent is not None else None
        return trajectory.steps[:-1] if trajectory is not None else ()

    def _idle_agent(self) -> ActiveAgent:
        """Return the agent, which must be idle. Raises UsageError."""
        if self._trial.agent is None:
            raise UsageError("its agent has not begun, or has ended")
        if not self._trial.is_idle:
            raise UsageError("is at work; pause it first (tbench pause TRIAL), or use stepping mode")
        return self._trial.agent

    def _verify(self) -> str:
        agent = self._idle_agent()
        self._require_verifier()
        if self._judging is not None and not self._judging.done():
            raise UsageError("a verifier is already running")
        step = self.decisions.step_now or len(getattr(agent.trajectory(), "steps", ()))
        self._judging = asyncio.create_task(self._judge(agent, self._begin_verdict(step)), name="judging a copy")
        return "a verifier runs in a copy of its container"

    def _require_verifier(self) -> None:
        """Raise UsageError if the verifier cannot run in a copy of the agent's container."""
        if self._trial.agent is not None and verifier_environment(self._trial.agent.task) is not None:
            raise UsageError("its verifier runs in a separate container, only at the end of the trial")

    async def _judge_again(self) -> Mapping[str, str]:
        """Run the verifier for a breakpoint, and return the state of each test."""
        agent = self._trial.agent
        assert agent is not None
        if self._judging is not None:  # two must not overlap: each stops the container's processes for a moment
            await asyncio.wait([self._judging])
        return await self._judge(agent, self._begin_verdict(len(self._done_steps()) + 1))

    def _begin_verdict(self, step: int) -> VerdictSeen:
        """Show that a verifier runs on the work before step `step`."""
        self._verdicts.append(running := VerdictSeen(step=step, state="running"))
        self.notify_clients()
        return running

    async def _judge(self, agent: ActiveAgent, running: VerdictSeen) -> Mapping[str, str]:
        """Verify a copy, show the verdict in place of `running`, and return the state of each test."""
        try:
            verdict = await verify_by("isolated", agent.task, agent.sandbox)
            found = running.model_copy(update={"state": "done", "reward": verdict.reward, "words": _words(verdict)})
            files = verdict.files
        except TrialError as error:
            found = running.model_copy(update={"state": "failed", "words": one_line(f"{error.type}: {error}")})
            files = error.files
        tests = read_tests(lambda name: plain_text(files.get(f"verifier/{name}", b"")[-_LOG_BYTES:]))[1]
        failed = failed_tests(tests)
        update = {"tests": len(tests), "failures": len(failed), "failed": failed[:_MAX_FAILED]}
        output = plain_text(files.get("verifier/stdout.txt", b""))[-_OBSERVATION:]
        found = found.model_copy(update={**update, "output": output})
        self._verdicts[:] = [found if each is running else each for each in self._verdicts]
        self.notify_clients()
        reward = {} if found.reward is None else {REWARD: f"{found.reward:g}"}
        return {test.name: test.status for test in tests} | reward

    async def _snapshot(self) -> str:
        sandbox = self._idle_agent().sandbox
        if not isinstance(sandbox, Snapshots):
            raise UsageError("its sandbox has no snapshots")
        try:
            image = await sandbox.snapshot()
        except TrialError as error:
            raise UsageError(f"no snapshot: {error}") from None
        self._trial.snapshots.append(image)
        self.notify_clients()
        return f"its files are saved as the image {image}, without processes; tbench clean --kept removes it"

    async def _screen(self) -> str:
        """Return the text of the screen; empty if it cannot be read."""
        if self._trial.terminal is None:
            return ""
        with contextlib.suppress(ConnectionError):
            return (await self._trial.terminal.draw_screen()).text
        return ""


def _words(verdict: Verdict) -> str:
    flags = f"; {counted(len(verdict.integrity.tamper), 'sign')}" if verdict.integrity.tamper else ""
    return f"reward {verdict.reward:g}{flags}"


def steps_after(after: int, steps: Iterable[StepSeen]) -> tuple[StepSeen, ...]:
    """Return the steps after number `after`, as many as fit into one answer."""
    return tuple(islice((step for step in steps if step.index > after), _MAX_STEPS))


def make_step_seen(step: Step) -> StepSeen:
    """Return a step in the form that clients get."""
    return StepSeen(
        index=step.index,
        reasoning=step.reply.reasoning and step.reply.reasoning[:_TEXT],
        thoughts=cut_thoughts(step_texts(step)),
        content=editable(step.reply)[:_TEXT],
        actions=step.actions,
        observation=step.observation[-_OBSERVATION:],
        warnings=step.warnings,
        format_error=step.format_error,
        exit_code=step.exit_code,
        model_sec=round(step.model_sec, 3),
        command_sec=round(step.command_sec, 3),
    )
