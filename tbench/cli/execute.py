"""Executes a run from its configuration: connects engine and endpoint, shows progress, prints the score."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.reply_stats import ReplyStats
from tbench.agents.setup import AgentSetup, connect_if_used
from tbench.cli.common import read_selected_tasks
from tbench.cli.interruption import print_notice, run_interruptibly
from tbench.cli.printing import print_folded, print_json, print_line, print_notes, print_text
from tbench.cli.progress import progress
from tbench.cli.run_log import run_log
from tbench.config.document import Locked, RunDocument, RunPlan
from tbench.config.settings import AUTO_FALLBACK, AUTO_MAX, NO_ENGINE, CostConfig, RunConfig, SandboxConfig
from tbench.errors import UsageError
from tbench.events import EndpointPresence, Event, Events, Note
from tbench.fleet.engines import Engines, remove_on_machines_in_child
from tbench.fleet.fleet import require_one_architecture
from tbench.pacing import Pace
from tbench.runs.admission import RetryErrors, why_no_machine
from tbench.runs.plan import as_configured, check_same_run, own_shard, sandbox_settings, stored_config
from tbench.runs.preflight import require_runnable_task
from tbench.runs.redaction import make_redactor
from tbench.runs.run import RunOutcome, execute_run, task_demand
from tbench.runs.stop_policy import ENDPOINT_ERRORS, PlannedStop
from tbench.sandbox.docker.cleaning import remove_in_child
from tbench.sandbox.underway import trials_under_way
from tbench.storage.read_run import read_run
from tbench.tasks.sources import TaskSet
from tbench.text import counted
from tbench.threads import THREADS
from tbench.verify.calibration import mean_oracle_sec

if TYPE_CHECKING:
    from harness.endpoint.replicas import Endpoint
    from harness.model import ServedModel
    from tbench.calibration import BackgroundCalibration
    from tbench.runs.resume import EarlierRun
    from tbench.scores.summary import Summary

_SUMMARY_MODULES = ("tbench.storage.summaries", "tbench.scores.tables")
"""Modules for the summary, imported in the background while the engine is prepared."""
SummaryForm = Literal["text", "brief", "json", "line"]
MadeImages = dict[str, set[str]]
"""Ids of images that were pulled or built, by engine."""
_COLLECTIONS = (700, 10, 400)
"""Python's default thresholds, except for fewer full collections: with a thousand trials, one takes half a second. The
garbage between two of them is small: about a hundred small objects per finished trial."""


def execute(
    config: RunConfig,
    earlier: EarlierRun | None = None,
    tasks: TaskSet | None = None,
    made_images: MadeImages | None = None,
    began: datetime | None = None,
) -> RunOutcome:
    """Execute a run and print its score. Raises UsageError for mistakes of the user, before anything starts.

    `tasks` are the tasks of the configuration, if they have been read. Several runs of one command share its
    `made_images`, and `began`, the time when the command began.
    """
    view, stop = contextlib.ExitStack(), PlannedStop(began)
    tasks = tasks or tasks_of_run(config, earlier.document if earlier else None)
    setup = AgentSetup.from_config(config.agent, config.model, config.limits)
    connected = Engines.connect(config.sandbox, config.schedule.most_at_once)
    with contextlib.closing(connected) as engines, tuned_gc():
        check_engines(config, engines)
        return run_interruptibly(
            _execute(config, setup, tasks, engines, earlier, view, made_images, stop),
            stopping="stopping; finished trials are kept; Ctrl-C again exits at once (next time, tbench stop keeps "
            "the running ones, too)",
            end_view=view.close,
            at_once=partial(_exit_immediately, config.sandbox, engines),
            stop=stop.begin,
        )


def check_engines(config: RunConfig, engines: Engines) -> None:
    """Check that the engines share an architecture, and that their load is visible if needed. Raises UsageError."""
    named = zip(config.sandbox.engines, engines.all, strict=False)
    require_one_architecture((name, engine.info.architecture) for name, engine in named)
    if config.schedule.max_load is not None and not engines.shares_kernel:
        several = config.sandbox.engines or config.sandbox.ray
        where = "the named machines may be remote" if several else "the engine runs on another machine"
        raise UsageError(f"--max-load: {where}, so its load is not visible; leave it out")


def tasks_of_run(config: RunConfig, earlier: RunDocument | None = None) -> TaskSet:
    """Return the tasks of a run with the configuration's overrides. Raises UsageError, also if no task can run.

    A resumed run (`earlier`) gets the same version of its dataset.
    """
    tasks = tasks_as_configured(read_selected_tasks(config.tasks, earlier), config)
    require_runnable_task(tasks, config.agent.name)
    return tasks


def tasks_as_configured(tasks: TaskSet, config: RunConfig) -> TaskSet:
    """Return the tasks with the configuration's overrides."""
    return replace(tasks, tasks=tuple(as_configured(task, config) for task in tasks.tasks))


async def _execute(
    config: RunConfig,
    setup: AgentSetup,
    tasks: TaskSet,
    engines: Engines,
    earlier: EarlierRun | None,
    view: contextlib.ExitStack,
    made_images: MadeImages | None,
    stop: PlannedStop,
) -> RunOutcome:
    """Execute a run, and show its progress as long as `view` is not closed."""
    events = Events(print_early_note)
    chat, served = await connect_if_used(setup, events.say)
    if chat is not None:
        chat.outage.on_change = lambda presence: events.emit(EndpointPresence(presence=presence))
    try:
        if chat is not None and served is not None and earlier is not None and config.model.other_weights == "pause":
            require_same_weights(chat, served, earlier)
        directory = Path(config.output.directory or _default_directory(config, served))
        plan = plan_run(config, tasks, earlier, directory.name, setup.resolve_names(chat, served))
        settings = sandbox_settings(plan, directory / "images", setup.package)
        if made_images is not None:
            settings = replace(settings, made_images=made_images)
        hide = make_redactor(tasks.tasks, proxy=settings.container_proxy)
        showing = progress(
            plan,
            tasks,
            config.output,
            hide=hide,
            is_away=lambda: chat is not None and chat.outage.is_away,
            remark=_capacity_note(config, tasks, engines),
        )
        with run_log(directory, config.output.log_level, hide) as log, view:
            show = view.enter_context(showing)
            events.replace(show)
            events.subscribe(log)
            expected = expected_sec(config, tasks, directory, events.say)
            backend, pace = engines.backend(settings), await start_pace(config, chat, events)
            ended = list[RunOutcome]()
            for module in _SUMMARY_MODULES:
                THREADS.submit(import_module, module)
            with contextlib.suppress(asyncio.CancelledError):  # reported by the outcome
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
                    stop=stop,
                )
    finally:
        if chat is not None:
            await chat.close()
    is_verbose = config.output.verbosity == "verbose"
    summary = print_summary(directory, "line" if config.output.json_lines else "text" if is_verbose else "brief")
    if shows_next(config):
        _print_next(directory, summary)
        if made_images is None:
            print_view_command(directory)
    whose = f"{chat.url}: " if chat is not None and why_no_machine(backend) is None else ""
    _print_kept(directory, ended[0], config.sandbox.engine_options)
    _print_end(directory, ended[0], whose)
    return ended[0]


def _calibration(plan: RunPlan, tasks: TaskSet) -> BackgroundCalibration:
    """Return the calibration of the tasks of a run, or of its shard."""
    from tbench.calibration import BackgroundCalibration

    own = set(tasks.names) if plan.shard is None else {task for task, _ in plan.shard.trials}
    config, own_tasks = plan.config, [task for task in tasks.tasks if task.name in own]
    return BackgroundCalibration(own_tasks, config.tasks.source, config.agent.name, config.sandbox, config.schedule)


async def start_pace(config: RunConfig, chat: Endpoint | None, events: Events) -> Pace | None:
    """Start the controller of `--concurrency auto`, and wait for its first measurement; None for a fixed number."""
    if not config.schedule.is_auto:
        return None
    pace = Pace(
        () if chat is None else chat.chats,
        most=AUTO_MAX,
        otherwise=AUTO_FALLBACK,
        say=events.say,
    )
    await pace.begin(config.limits.context_tokens)
    return pace


def named_durations(config: RunConfig, tasks: TaskSet) -> Mapping[str, float]:
    """Return the mean seconds of tasks in the runs given by `--durations`. Raises UsageError."""
    from tbench.shards import mean_durations

    schedule = config.schedule
    if schedule.durations and schedule.shard is None and schedule.order != "longest":
        raise UsageError("--durations: has no effect without --order longest or --shard")
    return mean_durations(map(Path, schedule.durations), tasks.names)


def expected_sec(config: RunConfig, tasks: TaskSet, directory: Path, say: Callable[[str], None]) -> Mapping[str, float]:
    """Return the expected seconds per task for `--order longest`; empty for other orders. Raises UsageError.

    They are the means in the runs given by `--durations`, or else in the runs beside this one. For tasks in none of
    these runs, the oracle's seconds are used, scaled by the ratio of both on tasks that have both.
    """
    if config.schedule.order != "longest":
        return {}
    known, oracle = _recorded_sec(config, tasks, directory, say), mean_oracle_sec(tasks.tasks)
    both = [name for name in oracle if name in known]
    factor = sum(known[name] for name in both) / sum(oracle[name] for name in both) if both else 1.0
    return {name: sec * factor for name, sec in oracle.items()} | dict(known)


def _recorded_sec(
    config: RunConfig, tasks: TaskSet, directory: Path, say: Callable[[str], None]
) -> Mapping[str, float]:
    if config.schedule.durations:
        return named_durations(config, tasks)
    from tbench.history.database import INDEX_NAME
    from tbench.history.index import RunHistory

    folder, known = directory.resolve().parent, dict[str, float]()
    if folder.is_dir():
        with RunHistory.open(folder / INDEX_NAME) as history:
            history.update(folder)
            known = history.expected_sec()
    say(f"order: durations of {counted(len(known), 'task')} known from the runs in {folder}")
    return known


def _capacity_note(config: RunConfig, tasks: TaskSet, engines: Engines) -> str:
    """Describe why the machines cannot run the requested number of trials at once; empty if they can."""
    schedule, demands = config.schedule, [task_demand(task, config.verify.mode) for task in tasks.tasks]
    if not demands:
        return ""
    cpus = min(each.cpus for each in demands)
    memory_mb = min(each.memory_mb for each in demands)
    infos = engines.capacities
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


def _retry_option(outcome: RunOutcome) -> str:
    """Return the option that makes a resumed run retry the trials lost to the endpoint."""
    errors = [result.error for result in outcome.results if result.error is not None]
    lost = {error.type for error in errors if error.type in ENDPOINT_ERRORS and not RetryErrors().wants(error)}
    return f" --retry-errors {' '.join(sorted(lost))}" if outcome.stopped is not None and lost else ""


def _print_end(directory: Path, outcome: RunOutcome, whose: str) -> None:
    """Print why a run ended early, and how to resume it."""
    go_on = f"resume with: tbench resume {directory}{_retry_option(outcome)}"
    if outcome.stopped is not None:
        print_line(f"tbench: stopped: {whose}{outcome.stopped}; {go_on}", err=True)
    elif outcome.planned_stop:
        left = counted(len([*trials_under_way(directory)]), "running trial")
        print_line(f"tbench: stopped by {outcome.planned_stop}; {left} kept; {go_on}", err=True)
    elif outcome.interrupted:
        print_line(f"tbench: interrupted; {go_on}", err=True)


def _print_kept(directory: Path, outcome: RunOutcome, engine_options: str) -> None:
    """Print which sandboxes were kept, and how to enter and to remove them."""
    from tbench.runs.regrade import find_kept

    found = [kept for result in outcome.results if (kept := find_kept(directory, result)) is not None]
    what = {"container": [each for each in found if each.container], "snapshot": [each for each in found if each.image]}
    counts = [counted(len(each), noun) for noun, each in what.items() if each]
    if counts:
        example = f"{directory}/{found[0].result.task}/{found[0].result.seed}"
        how = f"enter one with: tbench shell {example}; remove all with: tbench clean --kept{engine_options}"
        print_line(f"kept: {' and '.join(counts)}; {how}", err=True)


def plan_run(config: RunConfig, tasks: TaskSet, earlier: EarlierRun | None, name: str, locked: Locked) -> RunPlan:
    """Return the plan of the run. Raises UsageError if the resumed run was planned otherwise."""
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


def require_same_weights(chat: Endpoint, served: ServedModel, earlier: EarlierRun) -> None:
    """Check that the server has the weights with which the run began, and watch for others. Raises UsageError."""
    from harness.endpoint.server_state import listing_difference

    before = earlier.document.locked.served
    difference = listing_difference(before, served) if before is not None else None
    if difference is not None:
        raise UsageError(
            f"{earlier.directory}: the model's weights have changed: {difference}; serve the original ones, start "
            "a new run, or give --other-weights take"
        )
    seen = earlier.document.replies
    if seen is None:  # the run was killed
        results = read_run(earlier.directory).results
        seen = ReplyStats.sum(result.replies for result in results if result.final)
    for each in chat.chats:
        each.model_identity.expect({"model": seen.models, "weights": seen.weights, "fingerprint": seen.fingerprints})


def print_early_note(event: Event) -> None:
    """Print notes, such as waiting for the endpoint, before the progress display starts."""
    if isinstance(event, Note):
        print_line(event.text, err=True)


def _default_directory(config: RunConfig, served: ServedModel | None) -> str:
    what = served.id if served else config.agent.name.replace(":", "-")
    # Several shards may start in the same second.
    part = f"_shard-{config.schedule.shard.replace('/', '-of-')}" if config.schedule.shard else ""
    return f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_{directory_name(what)}{part}"


def directory_name(name: str) -> str:
    """Return a name for a directory that resembles the name of a model or an agent."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def _exit_immediately(sandbox: SandboxConfig, engines: Engines) -> None:
    print_notice("exiting at once; a child process removes what is left")
    if sandbox.engines and not sandbox.has_no_engine:
        remove_on_machines_in_child(sandbox.engines)
    elif engines.store is not None:
        remove_in_child("tbench.sandbox.oci.cleaning", f"{NO_ENGINE}{engines.store.root}")
    elif sandbox.ray is None:  # the actors on a cluster's nodes wait for the end of this process
        remove_in_child(variables=engines.all[0].variables)


@contextlib.contextmanager
def tuned_gc() -> Iterator[None]:
    """Make full garbage collections rare for the block, because each one stalls hundreds of trials.

    Objects that exist at the start of the block are never collected. This affects the whole process, so only the
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


def print_summary(
    directory: Path,
    form: SummaryForm = "text",
    *,
    population: bool = False,
    without: Sequence[str] = (),
    cost: Callable[[CostConfig], CostConfig] = lambda stored: stored,
) -> Summary:
    """Print the score of a run directory, after a run or later, and return the summary.

    The form `brief` leaves out details; `line` is one line of JSON. `without` names tags whose
    trials a second score leaves out. `cost` returns the prices to use in place of the stored ones.
    """
    import json

    from tbench.scores.final_results import FinalResults
    from tbench.scores.tables import render
    from tbench.storage.summaries import make_summary, stored_cost

    finals = FinalResults()
    stored = read_run(directory, finals.add)
    summary = make_summary(stored, finals, population=population, without=without, cost=cost(stored_cost(stored)))
    print_notes(stored.notes)
    if form == "json":
        print_json(summary.as_json())
        return summary
    if form == "line":
        last = {"kind": "summary", "directory": str(directory), **summary.as_json()}
        print_text(json.dumps(last, ensure_ascii=False))
        return summary
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    # Captured, because the console exits with 1 if the reader has gone.
    with console.capture() as tables:
        render(summary, console, brief=form == "brief")
    print_folded(tables.get(), nl=False)
    print_line(f"run directory: {directory}")
    return summary


def shows_next(config: RunConfig) -> bool:
    """Whether the next commands are printed after a run: not with --quiet, --verbose or --json."""
    return config.output.verbosity == "normal" and not config.output.json_lines


def _print_next(directory: Path, summary: Summary) -> None:
    """Print the commands that show more about a run on the terminal."""
    for task, seed in summary.failures[:1]:
        print_line(f"worst failure: {shlex.join(['tbench', 'why', f'{directory}/{task}/{seed}'])}")
    print_line(f"all numbers: {shlex.join(['tbench', 'summary', str(directory)])}")


def print_view_command(directory: Path) -> None:
    """Print the command that shows a run and its neighbours in a browser."""
    folder = directory.parent if directory.parent.name else directory
    print_line(f"in a browser: {shlex.join(['tbench', 'view', str(folder)])}")
