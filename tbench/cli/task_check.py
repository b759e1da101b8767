"""`tbench task list` and `check`, `tbench calibrate`: list, check and measure tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from tbench import exit_codes
from tbench.cli.parsing.commands import flag, option
from tbench.cli.parsing.configured import ConfiguredCommand, GivenSettings
from tbench.cli.parsing.values import PATH_TYPE
from tbench.cli.printing import print_line, print_progress, print_table, print_text
from tbench.cli.task import SELECTION_SETTINGS, TRIAL_SETTINGS
from tbench.config.settings import RunConfig
from tbench.text import counted, plain

if TYPE_CHECKING:
    from tbench.calibration import CalibratedTask, Condition
    from tbench.cli.findings import TaskFinding
    from tbench.tasks.sources import TaskSet
    from tbench.tasks.task import Task
    from tbench.verify.calibration import MeasuredTrial

# `tbench task check`

_SHOWN_OF_KIND = 3
"""Number of hints and notes of each kind that are printed."""
_MEASURING_SETTINGS = (
    SELECTION_SETTINGS | TRIAL_SETTINGS | {"sandbox.trust", "sandbox.engines", "sandbox.build", "sandbox.pull"}
)
"""Settings of commands that run oracle and nop."""


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=_MEASURING_SETTINGS)
@option(
    "--run/--static",
    "Also try oracle and nop in containers, or start nothing. Default: --run for one task, --static for several.",
    name="runs",
    default=None,
)
@flag("--json", "Print one JSON object per task, one per line.", name="as_json")
def check(given: GivenSettings[RunConfig], runs: bool | None, as_json: bool) -> None:
    """Report what keeps tasks from being run or verified, and likely mistakes; exit with 2 for problems."""
    from tbench.cli.common import read_selected_tasks
    from tbench.cli.execute import tasks_as_configured
    from tbench.cli.findings import cannot_run, static_findings, trial_findings

    config = given.resolve().config
    tasks = tasks_as_configured(read_selected_tasks(config.tasks), config)
    found = {name: [cannot_run(why)] for name, why in tasks.invalid.items()}
    found |= {task.name: list(static_findings(task)) for task in tasks.tasks}
    if runs is None:
        runs = _is_one_task(config.tasks.source)
    tried = _run_oracle_and_nop([task for task in tasks.tasks if not task.unsupported], config) if runs else {}
    for name, each in tried.items():
        found[name] += trial_findings(name, each)
    if as_json:
        _print_json(tasks, found, tried)
    else:
        _print_lines(tasks, found)
    if any(each.level == "problem" for findings in found.values() for each in findings):
        raise click.exceptions.Exit(exit_codes.USAGE)


def _is_one_task(source: str) -> bool:
    """Whether a source is a single task's directory."""
    from tbench.tasks.sources import BUNDLED, is_task

    return source != BUNDLED and is_task(Path(source))


def _run_oracle_and_nop(tasks: Sequence[Task], config: RunConfig) -> Mapping[str, Sequence[MeasuredTrial]]:
    """Run one trial each of oracle and nop on every task; return them by the task's name."""
    from tbench.calibration import CalibrationRun
    from tbench.cli.interruption import run_interruptibly
    from tbench.errors import EngineUnavailable, UsageError

    if not tasks:
        return {}
    print_line(f"trying oracle and nop in {counted(len(tasks), 'task')} (--static skips this)", err=True)
    trying = CalibrationRun(config, 1, say=print_progress).run_once(tasks)
    try:
        return run_interruptibly(trying, stopping="stopping: containers are being removed")
    except EngineUnavailable as error:
        raise UsageError(f"{error}; --static checks without an engine") from None


def _print_lines(tasks: TaskSet, found: Mapping[str, Sequence[TaskFinding]]) -> None:
    """Print the problems, those that keep a task from running first, then a few findings of each other kind."""
    everything = [each for name in [*tasks.invalid, *(task.name for task in tasks.tasks)] for each in found[name]]
    for each in sorted(everything, key=lambda finding: finding.kind != "cannot run"):
        if each.level == "problem":
            print_line(str(each))
    others = [each for each in everything if each.level != "problem"]
    for kind in dict.fromkeys(each.kind for each in others):
        of_kind = [each for each in others if each.kind == kind]
        for each in of_kind[:_SHOWN_OF_KIND]:
            print_line(str(each))
        if (left := len(of_kind) - _SHOWN_OF_KIND) > 0:
            print_line(f"{kind}: {left} more; --json lists all")
    if not all(task.file.environment.network.mode != "no-network" for task in tasks.tasks if task.dockerfile.is_file()):
        print_line("builds have network access, even for tasks whose trials have none, so that they can fetch packages")
    counts = (counted(sum(each.level == level for each in everything), level) for level in ("problem", "hint"))
    print_line(", ".join([counted(len(tasks.names), "task"), *counts]))


def _print_json(
    tasks: TaskSet, found: Mapping[str, Sequence[TaskFinding]], tried: Mapping[str, Sequence[MeasuredTrial]]
) -> None:
    from tbench.cli.findings import Level

    by_name = {task.name: task for task in tasks.tasks}
    for name in tasks.names:
        task, trials = by_name.get(name), tried.get(name, ())
        row: dict[str, Any] = {
            "task": name,
            "path": str(task.path) if task else None,
            "hash": task.hash if task else None,
            **{f"{level}s": [str(each) for each in found[name] if each.level == level] for level in get_args(Level)},
            "tried": {each.agent: {"reward": each.reward, "error": each.error_words or None} for each in trials},
        }
        print_text(json.dumps(row, ensure_ascii=False))


# `tbench task list`


@click.command("list", cls=ConfiguredCommand, configuration=RunConfig, only=SELECTION_SETTINGS)
def list_tasks(given: GivenSettings[RunConfig]) -> None:
    """List tasks with their difficulty, limits and content hashes."""
    from tbench.cli.common import read_selected_tasks

    for task in read_selected_tasks(given.resolve().config.tasks).tasks:
        environment = task.file.environment
        limits = [part.file.agent.timeout_sec for part in task.parts]
        limit = f"{sum(filter(None, limits)):.0f} s" if all(limits) else "no limit"
        steps = f"  {counted(len(task.steps), 'step')}" if task.steps else ""
        difficulty = plain(str(task.file.metadata.get("difficulty", "-")), 10)
        print_line(
            f"{task.name:32} {difficulty:10} {environment.cpus:g} cpu {environment.memory_mb:5.0f} MB {limit:>9}"
            f"  {task.hash[:12]}{steps}"
        )


# `tbench calibrate`


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=_MEASURING_SETTINGS)
@option("-k INT", "Trials of each agent on each task; default: 3.", click.IntRange(1, 100), name="repetitions")
@flag("--without-network", "If the oracle solves a task, also run it without network access.", name="offline")
@flag("--again", "Measure again even if these tasks and images have been measured.")
@option("--page FILE", "Also write the table as an HTML page.", PATH_TYPE)
@flag("--json", "Print one JSON object per task, one per line.", name="as_json")
def calibrate(
    given: GivenSettings[RunConfig],
    repetitions: int | None,
    offline: bool,
    again: bool,
    page: Path | None,
    as_json: bool,
) -> None:
    """Measure how oracle and nop score on tasks; exit with 2 if tasks are unhealthy or too close to their limits."""
    from tbench.calibration import health_conditions, is_healthy
    from tbench.cli.common import read_selected_tasks

    config = given.resolve().config
    if page is not None:
        from reports.report import check_replaceable

        check_replaceable(page)  # before hours of measuring
    chosen = read_selected_tasks(config.tasks)
    done = _calibrate(chosen.tasks, config, repetitions, offline=offline, again=again)
    found = {each.task.name: health_conditions(each) for each in done}
    if as_json:
        for name, why in chosen.invalid.items():
            print_text(json.dumps({"task": name, "healthy": False, "conditions": {"cannot be run": why}}))
        for each in done:
            print_text(json.dumps(_object(each, found[each.task.name]), ensure_ascii=False))
    else:
        _print_table(done, found)
        for name, why in chosen.invalid.items():
            print_line(f"{name}: cannot be run: {why}")
    if page is not None:
        _write_page(page, done, found)
    ill = len(chosen.invalid) + sum(not is_healthy(each) for each in found.values())
    print_line(f"{counted(len(chosen.names), 'task')}, {ill} not healthy here", err=as_json)
    if ill:
        raise click.exceptions.Exit(exit_codes.USAGE)


def _calibrate(tasks: Sequence[Task], config: RunConfig, repetitions: int | None, **more: bool) -> list[CalibratedTask]:
    from tbench.calibration import REPETITIONS, CalibrationRun
    from tbench.cli.interruption import run_interruptibly

    if not tasks:
        return []
    trying = CalibrationRun.from_config(config, repetitions or REPETITIONS, say=print_progress, **more)
    return run_interruptibly(trying.tasks(tasks), stopping="stopping: containers are being removed")


HEADS = (
    "task", "verdict", ">oracle", ">nop", "fresh", ">tests", ">solution", ">of limit", ">testing", ">of limit",
    ">memory",
)  # fmt: skip


def _cells(each: CalibratedTask, found: Mapping[Condition, str]) -> list[str]:
    """Return a task's row: rewards, whether the oracle passes in a fresh container, and peak time and memory."""
    from tbench.reward import reward_text

    calibration = each.calibration
    trials = {agent: calibration.of(agent) if calibration else [] for agent in ("oracle", "nop")}
    rewards = [
        " ".join("-" if trial.reward is None else reward_text(trial.reward) for trial in of_agent)
        for of_agent in trials.values()
    ]
    oracle = trials["oracle"]
    fresh = {True: "yes", False: "no", None: "-"}[calibration.passes_fresh if calibration else None]
    shown = [len(tests) for trial in oracle for tests in trial.tests.values()]
    return [
        each.task.name,
        ", ".join(found),
        *rewards,
        fresh,
        str(max(shown, default=0) or "-"),
        *_usage_cells([trial.solution_sec for trial in oracle], [trial.shares.get("solution") for trial in oracle]),
        *_usage_cells([trial.tests_sec for trial in oracle], [trial.shares.get("tests") for trial in oracle]),
        f"{peak:,.0f} MB" if (peak := max((trial.memory_peak_mb or 0 for trial in oracle), default=0)) else "-",
    ]


def _usage_cells(seconds: Sequence[float], shares: Sequence[float | None]) -> tuple[str, str]:
    known = [share for share in shares if share is not None]
    return f"{max(seconds):.1f} s" if seconds else "-", f"{max(known):.0%}" if known else "-"


def _print_table(done: Sequence[CalibratedTask], found: Mapping[str, Mapping[Condition, str]]) -> None:
    print_table(HEADS, [_cells(each, found[each.task.name]) for each in done])
    for name, conditions in found.items():
        for condition, reason in conditions.items():
            if reason:
                print_line(f"{name}: {condition}: {reason}")


def _object(each: CalibratedTask, found: Mapping[Condition, str]) -> dict[str, Any]:
    from tbench.calibration import is_healthy

    calibration = each.calibration
    return {
        "task": each.task.name,
        "hash": each.task.hash,
        "healthy": is_healthy(found),
        "conditions": dict(found),
        "calibration": calibration.model_dump(mode="json") if calibration is not None else None,
    }


def _write_page(path: Path, done: Sequence[CalibratedTask], found: Mapping[str, Mapping[Condition, str]]) -> None:
    from reports.report import CalibrationRow, write_calibration
    from tbench.calibration import is_healthy

    rows = [
        CalibrationRow(
            tuple(_cells(each, found[each.task.name])),
            is_healthy(found[each.task.name]),
            tuple(filter(None, found[each.task.name].values())),
        )
        for each in done
    ]
    print_line(f"page: {write_calibration(path, HEADS, rows)}", err=True)
