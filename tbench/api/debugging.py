"""Debugs one trial step by step from Python, with a decision about each reply of the model."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from harness.concurrency import wait_until_ended
from harness.terminal.plain_text import without_escapes
from tbench.agents.endpoints import make_endpoint
from tbench.agents.setup import AgentSetup, connect_if_used
from tbench.config.document import Purpose, RunPlan
from tbench.config.settings import RunConfig
from tbench.control import wire
from tbench.control.client import ask
from tbench.control.listener import SOCKET_NAME
from tbench.errors import UsageError
from tbench.events import Event, Events, Note, TrialFinished
from tbench.fleet.engines import connect_backend
from tbench.results import TrialResult
from tbench.runs.control import HoldPoint
from tbench.runs.live.cassette import CASSETTE_NAME
from tbench.runs.live.debugged_trial import make_step_seen
from tbench.runs.plan import as_configured, sandbox_settings, stored_config
from tbench.runs.replay_log import ReplaySteps
from tbench.runs.run import RunOutcome, execute_run
from tbench.sandbox.backend import MakeBackend
from tbench.storage.read_run import RunUnreadable, read_steps
from tbench.storage.run_files import trial_directory
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task


class ExecuteRun(Protocol):
    """Executes the prepared run, once. Raises UsageError."""

    async def __call__(self, *, hold_at: HoldPoint | None = None, replay: Sequence[ReplaySteps] = ()) -> RunOutcome: ...


@contextlib.asynccontextmanager
async def prepare_run(
    task: Task,
    config: RunConfig,
    directory: Path,
    on_end: Callable[[TrialResult], None],
    *,
    backend: MakeBackend | None,
    say: Callable[[str], None],
    asks_model: bool = True,
    purpose: Purpose = "debug",
) -> AsyncIterator[ExecuteRun]:
    """Connect the configuration's endpoint, and yield a function that runs one task with all seeds into `directory`.

    `on_end` gets each trial's final result; `say` is called with messages about builds and retries. Without
    `asks_model` the endpoint may be unavailable: the run is ended before a query. Raises UsageError.
    """
    chosen, events = as_configured(task, config), Events()

    def on_event(event: Event) -> None:
        if isinstance(event, Note):
            say(event.text)
        elif isinstance(event, TrialFinished) and event.result.final:
            on_end(event.result)

    events.subscribe(on_event)
    setup = AgentSetup.from_config(config.agent, config.model, config.limits)
    if asks_model or not setup.may_use_model:
        chat, served = await connect_if_used(setup, say)
    else:
        chat, served = make_endpoint(config.model, say), None
    async with contextlib.AsyncExitStack() as stack:
        if chat is not None:
            stack.push_async_callback(chat.close)
        plan = RunPlan(
            run=directory.name,
            config=stored_config(config),
            locked=setup.resolve_names(chat, served),
            seeds=config.tasks.planned_seeds,
            purpose=purpose,
        )
        make = backend or connect_backend(config.sandbox, config.schedule.at_once)

        async def execute(*, hold_at: HoldPoint | None = None, replay: Sequence[ReplaySteps] = ()) -> RunOutcome:
            return await execute_run(
                plan,
                TaskSet((chosen,), {}),
                directory,
                setup.maker(chat),
                events,
                backend=make(sandbox_settings(plan, directory / "images", setup.package)),
                gate=chat.outage if chat is not None else None,
                hold_at=hold_at,
                replay=replay,
            )

        yield execute


_POLL_SEC = 0.02
_END_SEC = 120.0
"""Longest wait for an ended trial to be removed."""


class DebugSession:
    """A trial in which each reply waits until `step`, `run` or `drop` decides about it.

    `steps`, `samples` and `screen` show the state at the end of the last call.
    """

    def __init__(
        self, directory: Path, task: str, seed: int, run: asyncio.Task[RunOutcome], ended: Sequence[TrialResult]
    ) -> None:
        """`directory` is the run's; `run` puts the trial's result into `ended`."""
        self.directory = directory
        self.steps: list[wire.StepSeen] = []
        """Finished steps."""
        self.screen = ""
        """Text of the terminal's screen."""
        self.trial = f"{task}/{seed}"
        """The trial's name on the control socket, TASK/SEED."""
        self._task, self._seed = task, seed
        self._run = run
        self._ended = ended
        self._shown = wire.DebugState(version=0)

    # -- state --------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the trial has ended."""
        return self._run.done()

    @property
    def result(self) -> TrialResult | None:
        """Result of the trial; None before its end."""
        return self._ended[-1] if self._ended else None

    @property
    def samples(self) -> tuple[wire.DraftSeen, ...]:
        """Candidate replies that wait; `draft` is one of them."""
        return () if self.is_over else self._shown.samples

    @property
    def draft(self) -> wire.DraftSeen | None:
        """The reply that the next `step` executes; None if none waits."""
        return next((each for each in self.samples if each.chosen), None)

    @property
    def verdicts(self) -> tuple[wire.VerdictSeen, ...]:
        """Verdicts of the verifiers that have run in copies of the container."""
        return self._shown.verdicts

    @property
    def stopped(self) -> str:
        """Why the last `run` stopped: its breakpoint, or the end of the trial; empty for other reasons."""
        return "the trial has ended" if self.is_over else self._shown.stopped

    @property
    def differs(self) -> str:
        """First difference between the replayed terminal output and the original, in one line."""
        return self._shown.differs

    async def begun(self) -> None:
        """Wait until the run accepts requests. Raises the run's error if it ends before."""
        while not self._run.done() and not (self.directory / SOCKET_NAME).is_socket():
            await asyncio.wait([self._run], timeout=_POLL_SEC)
        if self._run.done():
            self._run.result()

    # -- continuing ----------------------------------------------------------------------------------

    async def step(self, count: int = 1) -> wire.StepSeen | None:
        """Execute `count` replies from the draft on; return the last step, if any, when the next reply waits.

        Raises UsageError if the trial has ended.
        """
        return await self._advance(wire.StepOn(trial=self.trial, count=count))

    async def run(
        self,
        *,
        to_step: int | None = None,
        until_text: str | None = None,
        until_changed: str | None = None,
        until_test: str | None = None,
        until_exit: bool = False,
    ) -> wire.StepSeen | None:
        """Execute replies until the reply of `to_step` waits, a breakpoint is reached, or the trial ends.

        Breakpoints: a text on the screen, a change at or below a path, a test (by a part of its name; "" for any) that
        changes between passed and failed, an exit code other than 0. `stopped` says which one was reached.
        """
        request = wire.RunOn(
            trial=self.trial,
            to_step=to_step,
            until_text=until_text,
            until_changed=until_changed,
            until_test=until_test,
            until_exit=until_exit,
        )
        return await self._advance(request)

    async def drop(self, why: str) -> wire.StepSeen | None:
        """Discard the draft; the model gets `why` instead. The trial no longer counts."""
        return await self._advance(wire.Drop(trial=self.trial, why=why))

    async def _advance(self, request: wire.DebugCommand) -> wire.StepSeen | None:
        await self.waits()
        before = self._shown.version
        await self._ask(request)
        await self._wait_until(lambda shown: shown.version > before and shown.waits_for == "decision")
        return self.steps[-1] if self.steps else None

    async def waits(self) -> wire.DraftSeen | None:
        """Wait for a draft and return it; None if the trial has ended."""
        await self._wait_until(lambda shown: shown.waits_for == "decision")
        return self.draft

    async def rewind(self, step: int) -> wire.DraftSeen | None:
        """Replay the trial up to a step, in a fresh container; the step's reply becomes the draft.

        `differs` has the first difference in the replayed terminal output. The trial no longer counts.
        """
        await self.waits()
        before = self._shown.attempt
        await self._ask(wire.Rewind(trial=self.trial, step=step))
        await self._wait_until(lambda shown: shown.attempt > before and shown.waits_for == "decision")
        return self.draft

    # -- deciding ----------------------------------------------------------------------------------

    async def edit(self, text: str) -> wire.DraftSeen | None:
        """Replace the draft's text. Once the step is taken, the trial no longer counts."""
        return await self._ask_and_wait(wire.Edit(trial=self.trial, text=text))

    async def sample(
        self, number: int = 1, *, seed: int | None = None, temperature: float | None = None
    ) -> tuple[wire.DraftSeen, ...]:
        """Ask the model for more candidate replies; the last one becomes the draft. Raises UsageError."""
        await self.waits()
        await self._ask(wire.Sample(trial=self.trial, number=number, seed=seed, temperature=temperature))
        await self._wait_until(lambda shown: shown.waits_for != "decision" or not shown.asking)
        if self._shown.trouble:
            raise UsageError(f"{self.trial}: {self._shown.trouble}")
        return self.samples

    async def choose(self, sample: int) -> wire.DraftSeen | None:
        """Make another sample the draft; they count from 1."""
        return await self._ask_and_wait(wire.Choose(trial=self.trial, sample=sample))

    async def _ask_and_wait(self, request: wire.DebugCommand) -> wire.DraftSeen | None:
        await self.waits()
        await self._ask(request)
        return await self.waits()

    # -- further actions ----------------------------------------------------------------------------

    async def say(self, text: str) -> None:
        """Send a message to the model with its next query. The trial no longer counts."""
        await self._ask(wire.Say(trial=self.trial, text=text))

    async def type(self, keys: str) -> None:
        r"""Type into the agent's terminal; `\n` is the Enter key. The model is informed; the trial no longer counts."""
        await self.waits()
        await self._ask(wire.TypeKeys(trial=self.trial, keys=keys))
        await asyncio.sleep(_POLL_SEC)
        await self._update_screen()

    async def rests(self) -> None:
        """Wait until the agent is idle: its reply waits, or it is paused, or the trial has ended."""
        await self._wait_until(lambda shown: shown.waits_for in ("decision", "person"))

    async def verify(self) -> wire.VerdictSeen:
        """Run the verifier in a copy of the container; the trial continues afterwards. Raises UsageError."""
        await self.rests()
        await self._ask(wire.VerifyNow(trial=self.trial))
        await self._wait_until(lambda shown: bool(shown.verdicts) and shown.verdicts[-1].state != "running")
        return self.verdicts[-1]

    async def snapshot(self) -> str:
        """Save the container's files as an image, and return its name. Raises UsageError."""
        await self.waits()
        await self._ask(wire.SnapshotNow(trial=self.trial))
        await self.waits()
        return self._shown.snapshots[-1]

    async def save_cassette(self) -> Path:
        """Save the queries and replies as a cassette, and return the file. Raises UsageError."""
        await self.waits()
        await self._ask(wire.SaveCassette(trial=self.trial))
        return trial_directory(self.directory, self._task, self._seed, self._shown.attempt) / CASSETTE_NAME

    async def quit(self, *, keep: bool = False) -> None:
        """End the trial; with `keep`, keep its container for `tbench shell`."""
        if not self.is_over:
            with contextlib.suppress(UsageError):  # it has just ended by itself
                await self._ask(wire.Quit(trial=self.trial, keep=keep))
        async with asyncio.timeout(_END_SEC):
            await asyncio.wait([self._run])

    # -- requests -----------------------------------------------------------------------------------

    async def _wait_until(self, condition: Callable[[wire.DebugState], bool]) -> None:
        """Poll until the condition holds, or the trial has ended. Raises the run's error."""
        version: int | None = None
        while not self.is_over:
            try:
                answer = await self._request(wire.Debug(trial=self.trial, after=len(self.steps), version=version))
            except UsageError:
                # The trial has not begun, or is being removed.
                await asyncio.wait([self._run], timeout=_POLL_SEC)
                continue
            shown = answer.debug
            assert shown is not None
            if shown.ended is not None:
                await asyncio.wait([self._run], timeout=_END_SEC)
                continue
            if shown.attempt != self._shown.attempt:
                self.steps, self._shown, version = [], shown, None
                continue
            self.steps.extend(shown.steps)
            self._shown, version = shown, shown.version
            if condition(shown):
                await self._update_screen()
                return
        self._run.result()
        with contextlib.suppress(RunUnreadable):
            attempt = self.result.attempt if self.result is not None else 1
            files = trial_directory(self.directory, self._task, self._seed, attempt)
            self.steps.extend(make_step_seen(step) for step in read_steps(files)[len(self.steps) :])
        self._shown = self._shown.model_copy(update={"samples": (), "draft": None})

    async def _update_screen(self) -> None:
        with contextlib.suppress(UsageError):
            screen = (await self._request(wire.ReadScreen(trial=self.trial))).screen
            assert screen is not None
            self.screen = "\n".join(without_escapes(line).rstrip() for line in screen.lines).rstrip("\n")

    async def _ask(self, request: wire.Request) -> str:
        if self.is_over:
            raise UsageError(f"{self.trial}: has ended")
        return (await self._request(request)).words

    def _request(self, request: wire.Request) -> Awaitable[wire.Answer]:
        return asyncio.to_thread(ask, self.directory, request)


@contextlib.asynccontextmanager
async def debug(
    task: Task | Path | str,
    endpoint: str | None = None,
    *,
    config: RunConfig | None = None,
    seed: int = 0,
    directory: Path | str | None = None,
    backend: MakeBackend | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[DebugSession]:
    """Start one trial in which each reply waits; it is ended and removed at the end of the block.

    `endpoint` is a base URL, by default the configuration's. The run's files go into `directory`, which must be new or
    empty; by default they are deleted after the block. `say` is called with messages about builds and retries. Raises
    UsageError for mistakes of the caller.
    """
    values: dict[str, Mapping[str, object]] = {"model": {"base_url": endpoint}} if endpoint is not None else {}
    config = (config or RunConfig()).with_values(**values, tasks={"first_seed": seed})
    chosen = task if isinstance(task, Task) else Task.read(Path(task))
    async with debug_from(chosen, config, directory=directory, backend=backend, say=say) as session:
        yield session


@contextlib.asynccontextmanager
async def debug_from(
    task: Task,
    config: RunConfig,
    *,
    replay: Sequence[ReplaySteps] = (),
    hold_at: HoldPoint = "reply",
    directory: Path | str | None = None,
    backend: MakeBackend | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[DebugSession]:
    """Start a trial as `debug` does; it begins with the steps in `replay`.

    With `hold_at="query"`, no endpoint is needed: the agent is held before it asks the model.
    """
    once = {"concurrency": 1, "retries": 0}
    config, seed = config.with_values(schedule=once, tasks={"seeds": 1}), config.tasks.first_seed
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tbench-")) if directory is None else directory
        path = Path(folder) / "debug" if directory is None else Path(folder)
        ended = list[TrialResult]()
        make = await stack.enter_async_context(
            prepare_run(task, config, path, ended.append, backend=backend, say=say, asks_model=hold_at == "reply")
        )
        run = asyncio.create_task(make(hold_at=hold_at, replay=replay), name=f"debugging {task.name}")
        session = DebugSession(path, task.name, seed, run, ended)
        try:
            await session.begun()
            yield session
        finally:
            try:
                with contextlib.suppress(UsageError, TimeoutError):
                    await session.quit()
            finally:
                run.cancel()
                await wait_until_ended(run)
