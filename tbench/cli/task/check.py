"""`tbench task check`: what keeps tasks from running or being judged, and what of them looks like a mistake."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from tbench import exit_codes
from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.cli.printing import print_line, print_text
from tbench.cli.task import CHOOSING, USED_TO_TRY
from tbench.config.settings import RunConfig
from tbench.text import counted

if TYPE_CHECKING:
    from tbench.cli.task.findings import TaskFinding
    from tbench.tasks.sources import TaskSet
    from tbench.tasks.task import Task
    from tbench.verify.calibration import MeasuredTrial


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=CHOOSING | USED_TO_TRY)
@click.option(
    "--run/--static",
    "runs",
    default=None,
    help="Also try oracle and nop in containers, or start nothing; by default one task is tried, and several are not.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per task, each on a line of its own.")
def check(given: Given[RunConfig], runs: bool | None, as_json: bool) -> None:
    """Report what keeps tasks from running or being judged, and what looks like a mistake; exit 2 for problems."""
    from tbench.cli.task.findings import cannot_run, findings_about, findings_of
    from tbench.cli.tasks import chosen_tasks

    config = given.resolve().config
    tasks = chosen_tasks(config.tasks)
    found = {name: [cannot_run(why)] for name, why in tasks.invalid.items()}
    found |= {task.name: list(findings_about(task)) for task in tasks.tasks}
    if runs is None:
        runs = _is_one_task(config.tasks.source)
    tried = _tried([task for task in tasks.tasks if not task.unsupported], config) if runs else {}
    for name, each in tried.items():
        found[name] += findings_of(name, each)
    if as_json:
        _print_json(tasks, found, tried)
    else:
        _print_lines(tasks, found)
    if any(each.level == "problem" for findings in found.values() for each in findings):
        raise click.exceptions.Exit(exit_codes.USAGE)


def _is_one_task(source: str) -> bool:
    """Whether a source is a task itself, not a set of them."""
    from tbench.tasks.sources import BUNDLED, is_task

    return source != BUNDLED and is_task(Path(source))


def _tried(tasks: Sequence[Task], config: RunConfig) -> Mapping[str, Sequence[MeasuredTrial]]:
    """One trial of oracle and nop each, by the task's name."""
    from tbench.calibration.measuring import Calibrating
    from tbench.cli.interruption import run_interruptibly
    from tbench.errors import EngineUnavailable, UsageError

    if not tasks:
        return {}
    print_line(f"trying oracle and nop in {counted(len(tasks), 'task')} (--static leaves that out)", err=True)
    trying = Calibrating(config, 1, say=lambda text: print_line(text, err=True)).once(tasks)
    try:
        return run_interruptibly(trying, stopping="stopping: containers are being removed")
    except EngineUnavailable as error:
        raise UsageError(f"{error}; --static checks without an engine") from None


def _print_lines(tasks: TaskSet, found: Mapping[str, Sequence[TaskFinding]]) -> None:
    """Print which tasks cannot run, and then all else task by task."""
    everything = [each for name in [*tasks.invalid, *(task.name for task in tasks.tasks)] for each in found[name]]
    for each in sorted(everything, key=lambda finding: finding.kind != "cannot run"):
        print_line(str(each))
    if not all(task.file.environment.network.mode != "no-network" for task in tasks.tasks if task.dockerfile.is_file()):
        print_line("builds have a network, also those of tasks whose trials have none: packages come over it")
    counts = (counted(sum(each.level == level for each in everything), level) for level in ("problem", "hint"))
    print_line(", ".join([counted(len(tasks.names), "task"), *counts]))


def _print_json(
    tasks: TaskSet, found: Mapping[str, Sequence[TaskFinding]], tried: Mapping[str, Sequence[MeasuredTrial]]
) -> None:
    from tbench.cli.task.findings import Level

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
