"""Runs of one task, made ready for whoever watches it or does it again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Protocol

from tbench.agents.setup import AgentSetup, connect_if_used, unconnected
from tbench.config.document import RunPlan
from tbench.config.settings import RunConfig
from tbench.events import Event, Events, Note, TrialFinished
from tbench.fleet.backend import connect_backend
from tbench.results import TrialResult
from tbench.runs.live.course import Steps
from tbench.runs.live.hold import Waits
from tbench.runs.overrides import as_configured
from tbench.runs.plan import sandbox_settings, stored_config
from tbench.runs.run import RunOutcome, execute_run
from tbench.sandbox.backend import MakeBackend
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task


class MakesRun(Protocol):
    """Executes the run, once. Raises UsageError."""

    async def __call__(self, *, waits: Waits | None = None, known: Sequence[Steps] = ()) -> RunOutcome: ...


@contextlib.asynccontextmanager
async def run_of_task(
    task: Task,
    config: RunConfig,
    directory: Path,
    on_end: Callable[[TrialResult], None],
    *,
    backend: MakeBackend | None,
    say: Callable[[str], None],
    asks_model: bool = True,
) -> AsyncIterator[MakesRun]:
    """Connect the endpoint of a configuration, and give what executes its seeds of one task into `directory`.

    `on_end` gets each trial's last result, `say` is told of builds and retries. Without `asks_model` the endpoint
    may be away: somebody ends the run before a query. Raises UsageError.
    """
    chosen, events = as_configured(task, config), Events()

    def on_event(event: Event) -> None:
        if isinstance(event, Note):
            say(event.text)
        elif isinstance(event, TrialFinished) and event.result.final:
            on_end(event.result)

    events.subscribe(on_event)
    setup = AgentSetup.of(config)
    if asks_model or not setup.may_use_model:
        chat, served = await connect_if_used(setup, say)
    else:
        chat, served = unconnected(config.model, say), None
    async with contextlib.AsyncExitStack() as stack:
        if chat is not None:
            stack.push_async_callback(chat.close)
        plan = RunPlan(
            run=directory.name,
            config=stored_config(config),
            locked=setup.locked(chat, served),
            seeds=config.tasks.planned_seeds,
        )
        make = backend or connect_backend(config.sandbox, config.schedule.at_once)

        async def execute(*, waits: Waits | None = None, known: Sequence[Steps] = ()) -> RunOutcome:
            return await execute_run(
                plan,
                TaskSet((chosen,), {}),
                directory,
                setup.maker(chat),
                events,
                backend=make(sandbox_settings(plan, directory / "images")),
                gate=chat.outage if chat is not None else None,
                waits=waits,
                known=known,
            )

        yield execute
