"""Executes a run from its resolved options: connects engine and endpoint, shows progress, prints the score."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import click

from harness.chat import ChatModel, OutagePolicy, RetryPolicy
from harness.errors import EndpointError
from harness.model import ServedModel
from tbench.agents.model_agent import ModelAgent, UserAgent
from tbench.agents.trial_agent import NopAgent, OracleAgent, TrialAgent
from tbench.cli.interruption import run_interruptibly, tell
from tbench.cli.live import progress
from tbench.cli.options import AgentSetup, ModelOptions, RunOptions, as_stored, for_earlier_run
from tbench.cli.run_log import run_log
from tbench.errors import UsageError
from tbench.events import Event, Events, Note
from tbench.runs.plan import RunConfig, check_same_run
from tbench.runs.redaction import hiding
from tbench.runs.resume import EarlierRun, RetryErrors
from tbench.runs.run import RunOutcome, execute_run
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.cleaning import leave_removing_to_a_child
from tbench.sandbox.docker.engine import Engine
from tbench.storage.run_files import RUN
from tbench.tasks.sources import TaskSet, read_tasks

_PREFLIGHT_SEC = 20.0
_FULL_COLLECTION_EVERY = 100
"""Collections of the middle generation before a full one; Python's own number is 10. Until then cycles can hold about
700,000 small objects."""


def execute(
    options: RunOptions, *, resume: bool = False, retry_errors: str | None = None, log_level: str = "info"
) -> RunOutcome:
    """Execute a run and print its score. Raises UsageError for what the user can mend, before anything was started."""
    earlier, wanted_errors = _earlier(options, resume), RetryErrors.parse(retry_errors)
    if retry_errors is not None and not resume:
        raise UsageError("--retry-errors: belongs to --resume; a new run tries again by itself (--retries)")
    tasks = read_tasks(options.source, options.patterns)
    setup = AgentSetup.of(options)
    if earlier is not None:
        setup = for_earlier_run(setup, options, earlier.document)
    engine = Engine.connect(options.concurrency)
    try:
        if options.max_load is not None and not engine.shares_kernel:
            raise UsageError("--max-load: the engine runs on another machine, whose load cannot be seen; leave it out")
        with few_full_collections():
            return run_interruptibly(
                _execute(options, tasks, setup, engine, earlier, wanted_errors, log_level),
                stopping="stopping; finished trials are kept",
                at_once=_end_at_once,
            )
    finally:
        engine.close()


def _earlier(options: RunOptions, resume: bool) -> EarlierRun | None:
    """The run to go on with; None for a new one, also where --resume finds none yet."""
    if resume and options.output is None:
        raise UsageError("--resume: which run? Give its directory with --output, or use tbench resume RUN")
    if options.output is None:
        return None
    directory = Path(options.output)
    if not resume or RUN.is_new(directory):
        RUN.refuse_to_overwrite(directory)
        return None
    return EarlierRun.read(directory)


async def _execute(
    options: RunOptions,
    tasks: TaskSet,
    setup: AgentSetup,
    engine: Engine,
    earlier: EarlierRun | None,
    retry_errors: RetryErrors,
    log_level: str,
) -> RunOutcome:
    events = Events(say_before_the_run)
    chat, served = await connect(options.model, setup, events)
    directory = Path(options.output or _default_directory(options, served))
    config = RunConfig(
        run=str(earlier.document.get("run", directory.name)) if earlier else directory.name,
        model=served.id if served else None,
        base_url=chat.url if chat else None,
        served=served.model_dump() if served else None,
        options=as_stored(options),
        **options.as_config(),
        **setup.as_config(),
    )
    if earlier is not None:
        check_same_run(earlier, config, tasks)
    try:
        with run_log(directory, log_level, hiding(tasks.tasks)) as log, progress(config, tasks) as show:
            events.replace(show)
            events.subscribe(log)
            outcome = await execute_run(
                config,
                tasks,
                directory,
                _agent_maker(setup, chat),
                events,
                backend=DockerBackend(engine, config.sandbox_settings(directory / "images")),
                earlier=earlier,
                retry_errors=retry_errors,
                gate=chat.outage if chat is not None else None,
            )
    finally:
        if chat is not None:
            await chat.close()
    print_summary(directory)
    if outcome.stopped is not None and chat is not None:
        click.echo(f"tbench: stopped: {chat.url}: {outcome.stopped}; go on with: tbench resume {directory}", err=True)
    return outcome


def say_before_the_run(event: Event) -> None:
    """Print notes, such as waiting for the endpoint, before there is a display."""
    if isinstance(event, Note):
        click.echo(event.text, err=True)


async def connect(
    wanted: ModelOptions, setup: AgentSetup, events: Events
) -> tuple[ChatModel | None, ServedModel | None]:
    """Connect to the endpoint, before anything is started: a wrong URL must not cost a run. Raises UsageError."""
    if setup.sampling is None or wanted.base_url is None:
        return None, None
    try:
        chat = ChatModel(
            wanted.base_url,
            wanted.model,
            setup.sampling,
            api_key=os.environ.get("OPENAI_API_KEY"),
            request_timeout_sec=wanted.request_timeout_sec,
            retry=RetryPolicy(total_sec=wanted.retry_budget_sec),
            rendering=setup.rendering,
            on_wait=lambda reason, seconds: events.emit(
                Note(text=f"endpoint: {reason.rstrip('.')}; trying again in {seconds:.1f} s")
            ),
            max_outage=OutagePolicy(max_sec=wanted.max_outage_sec),
            on_outage=lambda words: events.emit(Note(text=f"endpoint {words}")),
        )
        return chat, await chat.connect(budget_sec=min(_PREFLIGHT_SEC, wanted.retry_budget_sec))
    except EndpointError as error:
        raise UsageError(f"endpoint: {error}") from None


def _agent_maker(setup: AgentSetup, chat: ChatModel | None) -> Callable[[], TrialAgent]:
    own, protocol, limits = setup.user_agent, setup.protocol, setup.limits
    if limits is None:
        return NopAgent if setup.name == "nop" else OracleAgent
    settling, shell_mode = setup.settling or "adaptive", setup.shell_state or "persistent"
    if own is not None:
        return lambda: UserAgent(own.make, chat, limits, name=setup.name, settling=settling, shell_mode=shell_mode)
    assert chat is not None and protocol is not None
    return lambda: ModelAgent(
        chat,
        protocol,
        limits,
        settling=settling,
        shell_mode=shell_mode,
        neutralise_special_tokens=bool(setup.neutralise_special_tokens),
        name=setup.name,
    )


def _default_directory(options: RunOptions, served: ServedModel | None) -> str:
    what = served.id if served else options.agent.replace(":", "-")
    slug = re.sub(r"[^\w.-]+", "-", what).strip("-.") or "run"
    return f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_{slug}"


def _end_at_once() -> None:
    tell("not waiting; a child process removes what is left")
    leave_removing_to_a_child()


@contextlib.contextmanager
def few_full_collections() -> Iterator[None]:
    """Let the garbage collector look through all objects less often: each time it stops hundreds of trials.

    What is loaded at the beginning of the block is left alone altogether. This changes the whole process, so only the
    command line does it.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*before[:2], _FULL_COLLECTION_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def print_summary(directory: Path, *, as_json: bool = False) -> None:
    """Print the score of a run directory: the same after a run as later from disk."""
    import json

    from tbench.scores.summarise import summarise
    from tbench.scores.tables import render
    from tbench.storage.read_run import read_run

    stored = read_run(directory)
    summary = summarise(stored.results, stored.planned_tasks, stored.planned_seeds)
    for note in stored.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        click.echo(json.dumps(summary.as_json(), indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    # Not printed by the console itself: where the reader has gone away, it ends the process with 1.
    with console.capture() as tables:
        render(summary, console)
    click.echo(tables.get(), nl=False)
    click.echo(f"run directory: {directory}")
