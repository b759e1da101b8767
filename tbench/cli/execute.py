"""Executes a run from its resolved options: connects engine and endpoint, shows progress, prints the score."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from harness.replies import RepliesSeen
from tbench.agents.setup import AgentSetup, connect_if_used
from tbench.cli.interruption import run_interruptibly, tell
from tbench.cli.printing import print_line, print_text
from tbench.cli.progress import progress
from tbench.cli.run_log import run_log
from tbench.cli.tasks import chosen_tasks
from tbench.config.document import Locked, RunDocument, RunPlan
from tbench.config.settings import AUTO_MOST, AUTO_OTHERWISE, RunConfig, SandboxConfig
from tbench.errors import UsageError
from tbench.events import EndpointPresence, Event, Events, Note
from tbench.fleet.engines import Engines, leave_removing_on
from tbench.fleet.fleet import require_one_architecture
from tbench.pacing import Pace
from tbench.runs.admission import RetryErrors, why_no_machine
from tbench.runs.plan import as_configured, check_same_run, own_shard, sandbox_settings, stored_config
from tbench.runs.preflight import require_a_task_that_can_run
from tbench.runs.redaction import hiding
from tbench.runs.run import RunOutcome, demand_of_task, execute_run
from tbench.runs.stopping import ENDPOINT_ERRORS
from tbench.sandbox.docker.cleaning import leave_removing_to_a_child
from tbench.storage.read_run import read_run
from tbench.tasks.sources import TaskSet
from tbench.text import counted
from tbench.threads import THREADS
from tbench.verify.calibration import usual_sec

if TYPE_CHECKING:
    from harness.endpoint.replicas import Endpoint
    from harness.model import ServedModel
    from tbench.calibration import CalibrationBeside
    from tbench.runs.resume import EarlierRun

_OF_THE_SCORE = ("tbench.storage.summaries", "tbench.scores.tables")
"""Imported while the engine is made ready, for what is printed at the end."""
SummaryForm = Literal["text", "json", "line"]
_COLLECTIONS = (700, 10, 400)
"""Python's own numbers but for the last: collections of the middle generation before a full one, which stops a thousand
trials for half a second. Meanwhile a trial that has ended leaves about a hundred small objects, and nothing of its
history."""


def execute(config: RunConfig, earlier: EarlierRun | None = None) -> RunOutcome:
    """Execute a run and print its score. Raises UsageError for what the user can mend, before anything was started."""
    tasks = tasks_of_run(config, earlier.document if earlier else None)
    setup = AgentSetup.of(config.agent, config.model, config.limits)
    engines = Engines.connect(config.sandbox, config.schedule.most_at_once)
    try:
        check_engines(config, engines)
        with few_full_collections():
            return run_interruptibly(
                _execute(config, setup, tasks, engines, earlier),
                stopping="stopping: containers are being removed, finished trials are kept; Ctrl-C again ends at once",
                at_once=partial(_end_at_once, config.sandbox),
            )
    finally:
        engines.close()


def check_engines(config: RunConfig, engines: Engines) -> None:
    """Check that they can be of one run, and that the load can be seen where it matters. Raises UsageError."""
    named = zip(config.sandbox.engines, engines.all, strict=False)
    require_one_architecture((name, engine.info.architecture) for name, engine in named)
    if config.schedule.max_load is not None and not engines.shares_kernel:
        several = config.sandbox.engines or config.sandbox.ray
        where = "machines that are named may be others" if several else "the engine runs on another machine"
        raise UsageError(f"--max-load: {where}, whose load cannot be seen; leave it out")


def tasks_of_run(config: RunConfig, earlier: RunDocument | None = None) -> TaskSet:
    """The tasks of a run, with what the configuration overrides. Raises UsageError, also where none can run.

    They are those of the very same dataset where `earlier` goes on.
    """
    tasks = tasks_as_configured(chosen_tasks(config.tasks, earlier), config)
    require_a_task_that_can_run(tasks, config.agent.name)
    return tasks


def tasks_as_configured(tasks: TaskSet, config: RunConfig) -> TaskSet:
    """The tasks as the trials of a configuration have them."""
    return replace(tasks, tasks=tuple(as_configured(task, config) for task in tasks.tasks))


async def _execute(
    config: RunConfig, setup: AgentSetup, tasks: TaskSet, engines: Engines, earlier: EarlierRun | None
) -> RunOutcome:
    events = Events(say_before_the_run)
    chat, served = await connect_if_used(setup, lambda text: events.emit(Note(text=text)))
    if chat is not None:
        chat.outage.on_change = lambda presence: events.emit(EndpointPresence(presence=presence))
    try:
        if chat is not None and served is not None and earlier is not None and config.model.other_weights == "pause":
            expect_same_weights(chat, served, earlier)
        directory = Path(config.output.directory or _default_directory(config, served))
        plan = planned(config, tasks, earlier, directory.name, setup.locked(chat, served))
        settings = sandbox_settings(plan, directory / "images")
        hide = hiding(tasks.tasks, proxy=settings.container_proxy)
        showing = progress(
            plan,
            tasks,
            config.output,
            hide=hide,
            is_away=lambda: chat is not None and chat.outage.is_away,
            remark=_room_words(config, tasks, engines),
        )
        with run_log(directory, config.output.log_level, hide) as log, showing as show:
            events.replace(show)
            events.subscribe(log)
            expected = expected_sec(config, tasks, directory, lambda text: events.emit(Note(text=text)))
            backend, pace = engines.backend(settings), await begun_pace(config, chat, events)
            ended = list[RunOutcome]()
            for module in _OF_THE_SCORE:
                THREADS.submit(import_module, module)
            with contextlib.suppress(asyncio.CancelledError):  # its outcome says that it was interrupted
                await execute_run(
                    plan,
                    tasks,
                    directory,
                    setup.maker(chat),
                    events,
                    backend=backend,
                    earlier=earlier,
                    gate=chat.outage if chat is not None else None,
                    expected_sec=expected,
                    pace=pace,
                    calibrates=_calibration(plan, tasks),
                    on_end=ended.append,
                )
    finally:
        if chat is not None:
            await chat.close()
    print_summary(directory, "line" if config.output.json_lines else "text")
    whose = f"{chat.url}: " if chat is not None and why_no_machine(backend) is None else ""
    _tell_end(directory, ended[0], whose)
    return ended[0]


def _calibration(plan: RunPlan, tasks: TaskSet) -> CalibrationBeside:
    """What measures and judges the tasks of a run, or of its shard."""
    from tbench.calibration import CalibrationBeside

    own = set(tasks.names) if plan.shard is None else {task for task, _ in plan.shard.trials}
    config, own_tasks = plan.config, [task for task in tasks.tasks if task.name in own]
    return CalibrationBeside(own_tasks, config.tasks.source, config.agent.name, config.sandbox, config.schedule)


async def begun_pace(config: RunConfig, chat: Endpoint | None, events: Events) -> Pace | None:
    """What finds the number of trials at once, where that is left to the model's servers; it has had its first look."""
    if not config.schedule.is_auto:
        return None
    pace = Pace(
        () if chat is None else chat.chats,
        most=AUTO_MOST,
        otherwise=AUTO_OTHERWISE,
        say=lambda text: events.emit(Note(text=text)),
    )
    await pace.begin(config.limits.context_tokens)
    return pace


def named_durations(config: RunConfig, tasks: TaskSet) -> Mapping[str, float]:
    """The mean seconds of tasks in the runs that `--durations` names. Raises UsageError."""
    from tbench.shards import mean_durations

    schedule = config.schedule
    if schedule.durations and schedule.shard is None and schedule.order != "longest":
        raise UsageError("--durations: decides nothing here; give it with --order longest, --shard, or both")
    return mean_durations(map(Path, schedule.durations), tasks.names)


def expected_sec(config: RunConfig, tasks: TaskSet, directory: Path, say: Callable[[str], None]) -> Mapping[str, float]:
    """The mean seconds of tasks in earlier runs, where the run's order asks for them. Raises UsageError.

    The runs are those that were named, or else those beside this one. Of tasks in none of them the oracle's seconds are
    taken, times what tasks that are in both took longer in the runs.
    """
    if config.schedule.order != "longest":
        return {}
    known, oracle = _sec_of_runs(config, tasks, directory, say), usual_sec(tasks.tasks)
    both = [name for name in oracle if name in known]
    factor = sum(known[name] for name in both) / sum(oracle[name] for name in both) if both else 1.0
    return {name: sec * factor for name, sec in oracle.items()} | dict(known)


def _sec_of_runs(config: RunConfig, tasks: TaskSet, directory: Path, say: Callable[[str], None]) -> Mapping[str, float]:
    if config.schedule.durations:
        return named_durations(config, tasks)
    from tbench.history.database import INDEX_NAME
    from tbench.history.index import RunHistory

    folder, known = directory.resolve().parent, dict[str, float]()
    if folder.is_dir():
        with RunHistory.open(folder / INDEX_NAME) as history:
            history.update(folder)
            known = history.expected_sec()
    say(f"order: durations of {counted(len(known), 'task')} are known from the runs in {folder}")
    return known


def _room_words(config: RunConfig, tasks: TaskSet, engines: Engines) -> str:
    """What keeps the machines from as many trials at once as are asked for; empty where nothing does."""
    schedule, demands = config.schedule, [demand_of_task(task, config.verify.mode) for task in tasks.tasks]
    if not demands:
        return ""
    cpus = min(each.cpus for each in demands)
    memory_mb = min(each.memory_mb for each in demands)
    infos = [engine.info for engine in engines.all]
    by_cpus = sum(max(1, int(info.cpus * schedule.cpu_overcommit / cpus)) for info in infos)
    by_memory = sum(max(1, int(info.memory_mb / memory_mb)) for info in infos)
    fitting = sum(
        max(1, int(min(info.cpus * schedule.cpu_overcommit / cpus, info.memory_mb / memory_mb))) for info in infos
    )
    if fitting >= min(schedule.most_at_once, len(demands) * len(config.tasks.planned_seeds)):
        return ""
    if by_memory < by_cpus:
        return f"; memory allows {fitting} at once"
    return f"; {sum(info.cpus for info in infos):g} cpus allow {fitting} at once (--cpu-overcommit)"


def _also_tried_again(outcome: RunOutcome) -> str:
    """The option with which the trials that a stopped run has lost to its endpoint are done, too."""
    errors = [result.error for result in outcome.results if result.error is not None]
    lost = {error.type for error in errors if error.type in ENDPOINT_ERRORS and not RetryErrors().wants(error)}
    return f" --retry-errors {' '.join(sorted(lost))}" if outcome.stopped is not None and lost else ""


def _tell_end(directory: Path, outcome: RunOutcome, whose: str) -> None:
    """Tell what is left on the engine, why the run has ended early, where it has, and how it goes on."""
    _tell_what_was_kept(directory, outcome)
    go_on = f"go on with: tbench resume {directory}{_also_tried_again(outcome)}"
    if outcome.stopped is not None:
        print_line(f"tbench: stopped: {whose}{outcome.stopped}; {go_on}", err=True)
    elif outcome.interrupted:
        print_line(f"tbench: interrupted; {go_on}", err=True)


def _tell_what_was_kept(directory: Path, outcome: RunOutcome) -> None:
    """Say which sandboxes are left on the engine, and how to enter one and to remove them."""
    from tbench.runs.regrade import kept_of

    found = [kept for result in outcome.results if (kept := kept_of(directory, result)) is not None]
    what = {"container": [each for each in found if each.container], "snapshot": [each for each in found if each.image]}
    counts = [counted(len(each), noun) for noun, each in what.items() if each]
    if counts:
        example = f"{directory}/{found[0].result.task}/{found[0].result.seed}"
        words = (
            f"kept: {' and '.join(counts)}; enter one with: tbench shell {example}; remove with: tbench clean --kept"
        )
        print_line(words, err=True)


def planned(config: RunConfig, tasks: TaskSet, earlier: EarlierRun | None, name: str, locked: Locked) -> RunPlan:
    """The plan of a new run of this name, or of the one that goes on. Raises UsageError where that is another."""
    seeds = config.tasks.planned_seeds
    plan = RunPlan(
        run=earlier.document.run if earlier else name,
        config=stored_config(config),
        locked=locked,
        seeds=seeds,
        shard=earlier.document.shard
        if earlier
        else own_shard(tasks, seeds, config.schedule.shard, named_durations(config, tasks)),
    )
    if earlier is not None:
        check_same_run(earlier, plan, tasks)
    return plan


def expect_same_weights(chat: Endpoint, served: ServedModel, earlier: EarlierRun) -> None:
    """Check that the model is the one that the run began with, and hold its replies to that. Raises UsageError."""
    from harness.endpoint.server_state import served_otherwise

    before = earlier.document.locked.served
    words = served_otherwise(before, served) if before is not None else None
    if words is not None:
        raise UsageError(
            f"{earlier.directory}: cannot go on with other weights: {words}; serve the first ones again, start a new "
            "run, or give --other-weights take"
        )
    seen = earlier.document.replies
    if seen is None:  # the run was killed
        results = read_run(earlier.directory).results
        seen = RepliesSeen.sum(result.replies for result in results if result.final)
    for each in chat.chats:
        each.replier.expect({"model": seen.models, "weights": seen.weights, "fingerprint": seen.fingerprints})


def say_before_the_run(event: Event) -> None:
    """Print notes, such as waiting for the endpoint, before there is a display."""
    if isinstance(event, Note):
        print_line(event.text, err=True)


def _default_directory(config: RunConfig, served: ServedModel | None) -> str:
    what = served.id if served else config.agent.name.replace(":", "-")
    slug = re.sub(r"[^\w.-]+", "-", what).strip("-.") or "run"
    # Shards begin at the same second.
    part = f"_shard-{config.schedule.shard.replace('/', '-of-')}" if config.schedule.shard else ""
    return f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_{slug}{part}"


def _end_at_once(sandbox: SandboxConfig) -> None:
    tell("not waiting; a child process removes what is left")
    if sandbox.engines:
        leave_removing_on(sandbox.engines)
    elif sandbox.ray is None:  # on the nodes of a cluster somebody waits for the end of this process
        leave_removing_to_a_child()


@contextlib.contextmanager
def few_full_collections() -> Iterator[None]:
    """Let the garbage collector look through all objects less often: each time it stops hundreds of trials.

    What is loaded at the beginning of the block is left alone altogether. This changes the whole process, so only the
    command line does it.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def print_summary(directory: Path, form: SummaryForm = "text", *, population: bool = False) -> None:
    """Print the score of a run directory: the same after a run as later from disk. `line` is JSON in one line."""
    import json

    from tbench.scores.tables import render
    from tbench.storage.summaries import read_summary

    stored, summary = read_summary(directory, population=population)
    for note in stored.notes:
        print_line(f"note: {note}", err=True)
    if form == "json":
        print_text(json.dumps(summary.as_json(), indent=2, ensure_ascii=False))
        return
    if form == "line":
        last = {"kind": "summary", "directory": str(directory), **summary.as_json()}
        print_text(json.dumps(last, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    # Not printed by the console itself: where the reader has gone away, it ends the process with 1.
    with console.capture() as tables:
        render(summary, console)
    click.echo(tables.get(), nl=False)
    print_line(f"run directory: {directory}")
