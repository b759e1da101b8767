"""`tbench run --dry-run`: print what a run would do, without starting anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

from harness.model import ServedModel
from tbench.agents.setup import AgentSetup, connect_if_used
from tbench.cli.execute import check_engines, plan_run, tasks_of_run
from tbench.cli.printing import print_line, print_progress, print_text
from tbench.config.document import PlannedTask, RunDocument, RunPlan
from tbench.config.rules import broken_rules, describe_overrides
from tbench.config.settings import RunConfig, SandboxConfig
from tbench.fleet.engines import Engines
from tbench.runs.plan import plan_trials
from tbench.runs.preflight import not_runnable_tasks, size_warning, task_environments
from tbench.runs.resume import EarlierRun, remaining_trials
from tbench.runs.run import task_demand
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images, ImageState
from tbench.sandbox.docker.manifest import describe_pulls
from tbench.sandbox.dockerfile import network_bypass, read_dockerfile
from tbench.tasks.prompt_parts import instruction_with_servers
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task
from tbench.text import counted

_BYTES_PER_TOKEN = 4
"""Approximate bytes per token of English text, to estimate prompt lengths."""
_INDENT = 10
Row = tuple[str, str]


def show_plans(runs: Sequence[tuple[RunConfig, EarlierRun | None]]) -> None:
    """Print the plans of a run for each model. Raises UsageError for anything that would prevent the start."""
    (config, _), documents = runs[0], [earlier.document for _, earlier in runs if earlier is not None]
    tasks = tasks_of_run(config, documents[0] if documents else None)
    with contextlib.closing(Engines.connect(config.sandbox)) as engines:
        check_engines(config, engines)
        for label, text in asyncio.run(_plans(runs, tasks, engines)):
            print_text(_wrapped(label, text))
    print_line("nothing was started")


async def _plans(
    runs: Sequence[tuple[RunConfig, EarlierRun | None]], tasks: TaskSet, engines: Engines
) -> Sequence[Row]:
    """Return the rows of the first run, followed by the rows of other runs that differ from it."""
    rows: list[Row] = []
    for config, earlier in runs:
        setup = AgentSetup.from_config(config.agent, config.model, config.limits)
        rows += [row for row in await _plan(config, setup, tasks, engines, earlier) if row not in rows]
    return rows


def _wrapped(label: str, text: str) -> str:
    lines = textwrap.wrap(
        text,
        max(shutil.get_terminal_size((100, 24)).columns, 40),
        initial_indent=f"{label:<{_INDENT}}",
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


async def _plan(
    config: RunConfig, setup: AgentSetup, tasks: TaskSet, engines: Engines, earlier: EarlierRun | None
) -> list[Row]:
    machines = engines.capacities
    chat, served = await connect_if_used(setup, print_progress)
    if chat is not None:
        await chat.close()
    plan = plan_run(config, tasks, earlier, "dry-run", setup.resolve_names(chat, served))
    trials = plan_trials(tasks, plan)
    left = trials if earlier is None else remaining_trials(earlier.directory, trials, earlier.retry_errors)
    started = {trial.task_name for trial in left}
    refused = not_runnable_tasks(tasks, config.agent.name, None if any(each.gpus is None for each in machines) else 0)
    startable = [task for task in tasks.tasks if task.name in started and task.name not in refused]
    demands = [(task.name, task_demand(task, config.verify.mode)) for task in startable]
    size = size_warning(demands, machines, config.schedule.cpu_overcommit)
    return [
        ("tasks", f"{len(tasks.names)}: {', '.join(tasks.names)}"),
        *_dataset(plan, tasks),
        *(("invalid" if name in tasks.invalid else "refused", f"{name}: {why}") for name, why in refused.items()),
        (
            "trials",
            f"{counted(len(tasks.names), 'task')} × {counted(len(plan.seeds), 'seed')} = "
            f"{counted(len(tasks.names) * len(plan.seeds), 'trial')}"
            + (f", of which shard {plan.shard.name} has {len(trials)}" if plan.shard is not None else "")
            + (f": {len(trials) - len(left)} done, {len(left)} to do" if earlier else "")
            + f"; at most {config.schedule.most_at_once} at once{' (auto)' if config.schedule.is_auto else ''}",
        ),
        *_variables(config, tasks),
        ("agent", plan.locked.agent),
        *([("overrides", ", ".join(words))] if (words := describe_overrides(config)) else []),
        *_endpoint(served, plan),
        *_prompts(setup, startable),
        *(await _images(engines.all[0], startable, config) if engines.all else ()),
        *(
            ("engine", f"{name}{counted(int(each.cpus), 'cpu')}, {each.memory_mb / 1024:,.1f} GB of memory")
            for name, each in zip(engines.names, machines, strict=True)
        ),
        *(("engine", engine.notice.removeprefix("engine: ")) for engine in engines.all if engine.notice),
        *([("room", size)] if size else []),
        ("output", _output(config, earlier)),
    ]


def _dataset(plan: RunPlan, tasks: TaskSet) -> Iterator[Row]:
    """Yield the dataset with its digests, and the leaderboard rules that the run would break."""
    if tasks.origin is None:
        return
    yield "dataset", tasks.origin.words
    planned = tuple(PlannedTask(name=name, invalid=tasks.invalid.get(name)) for name in tasks.names)
    if broken := broken_rules(RunDocument(**dict(plan), dataset=tasks.origin, tasks=planned)):
        yield "rules", f"breaks those of the leaderboard: {'; '.join(broken)}"


def _variables(config: RunConfig, tasks: TaskSet) -> Iterator[Row]:
    """Yield the environment variables that tasks request, and whether they are allowed."""
    asking: dict[str, list[str]] = {}
    for task in tasks.tasks:
        for name in sorted({wish.variable for wish in task.requested_variables}):
            asking.setdefault(name, []).append(task.name)
    for name, names in sorted(asking.items()):
        given = "is allowed" if name in config.sandbox.allow_env else f"is not allowed; --allow-env {name} allows it"
        known = "" if name in os.environ else " (not set here)"
        yield "variables", f"{name}{known} {given}: {', '.join(names)}"


def _endpoint(served: ServedModel | None, plan: RunPlan) -> Iterator[Row]:
    if served is not None:
        context = f", with a context of {served.context_tokens:,} tokens" if served.context_tokens else ""
        yield "endpoint", f"{plan.locked.base_url} answers: {served.id}{context}"


def _prompts(setup: AgentSetup, tasks: Iterable[Task]) -> Iterator[Row]:
    """Yield the approximate length of the first prompts; the length of later ones cannot be known."""
    if setup.protocol is None:
        return
    sizes = [
        sum(
            len(message.content.encode())
            for message in setup.protocol.first_messages(instruction_with_servers(part), "")
        )
        for task in tasks
        for part in task.parts
    ]
    if sizes:
        low, high = (f"{round(size / _BYTES_PER_TOKEN / 10) * 10:,}" for size in (min(sizes), max(sizes)))
        range_ = low if low == high else f"{low} to {high}"
        yield "prompts", f"a trial starts with about {range_} tokens, and its prompts grow with every step"


async def _images(engine: Engine, tasks: Sequence[Task], config: RunConfig) -> list[Row]:
    sandbox = config.sandbox
    images = Images(engine, build=sandbox.build, no_build_cache=sandbox.no_build_cache, pull=sandbox.pull)
    wanted = [each for task in tasks for each in task_environments(task)]
    states = {each.name: await images.predict_state(each) for each in wanted}
    rows = []
    for state in get_args(ImageState):
        names = sorted(name for name, its in states.items() if its == state)
        if names:
            # Name only the images that take time.
            rows.append(("images", f"{len(names)} {state}" + (f": {', '.join(names)}" if state != "present" else "")))
    missing = await images.to_pull([each for task in tasks for each in task_environments(task)])
    costs = await describe_pulls(engine, missing, ask=not config.tasks.offline)
    to_build = [task for task in tasks if states[task.name] == "to be built"]
    return [*rows, *(("disk", line) for line in costs), *_builds(to_build, sandbox)]


def _builds(tasks: Sequence[Task], sandbox: SandboxConfig) -> Iterator[Row]:
    """Yield the effects of `--network` and `--block-host` on builds, where they differ from those on trials."""
    if tasks and sandbox.network == "none":
        yield "builds", "have network access despite --network none, so that they can fetch packages"
    for task in tasks if sandbox.block_host else ():
        if (why := network_bypass(read_dockerfile(task.dockerfile))) is not None:
            yield "refused", f"{task.name}: cannot be built with --block-host: {why}"


def _output(config: RunConfig, earlier: EarlierRun | None) -> str:
    directory = Path(config.output.directory or "runs").resolve()
    there = next(each for each in (directory, *directory.parents) if each.exists())
    free = f"{shutil.disk_usage(there).free / 1e9:,.1f} GB free"
    if config.output.directory is None:
        return f"a new directory in {directory}; {free}"
    return f"{directory} ({'resumed' if earlier else 'new'}); {free}"
