"""`tbench calibrate`: whether verdicts about tasks can be trusted on this machine, by their oracle and by nobody."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbench import exit_codes
from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.cli.parsing.values import A_PATH
from tbench.cli.printing import aligned, print_line, print_text
from tbench.cli.task import CHOOSING, USED_TO_TRY
from tbench.config.settings import RunConfig
from tbench.text import counted

if TYPE_CHECKING:
    from tbench.calibration.conditions import Condition
    from tbench.calibration.measuring import CalibratedTask
    from tbench.tasks.task import Task
_SANDBOX = {"sandbox.trust", "sandbox.engines", "sandbox.build", "sandbox.pull"}


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=CHOOSING | USED_TO_TRY | _SANDBOX)
@click.option(
    "-k",
    "repetitions",
    type=click.IntRange(1, 100),
    metavar="INT",
    help="Trials of each agent in each task; default: 3.",
)
@click.option("--without-network", "offline", is_flag=True, help="Also try oracles that pass without a network.")
@click.option("--again", is_flag=True, help="Also run what is known of these tasks and images.")
@click.option("--page", metavar="FILE", type=A_PATH, help="Also write the table as an HTML page.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per task, each on a line of its own.")
def calibrate(
    given: Given[RunConfig], repetitions: int | None, offline: bool, again: bool, page: Path | None, as_json: bool
) -> None:
    """Measure what oracle and nop score in tasks, how often, and how near to the limits; exit 2 for unhealthy ones."""
    from tbench.calibration.conditions import conditions, is_healthy
    from tbench.cli.tasks import chosen_tasks

    config = given.resolve().config
    if page is not None:
        from reports.report import require_ours

        require_ours(page)  # before hours of measuring
    chosen = chosen_tasks(config.tasks)
    done = _calibrated(chosen.tasks, config, repetitions, offline=offline, again=again)
    found = {each.task.name: conditions(each) for each in done}
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


def _calibrated(
    tasks: Sequence[Task], config: RunConfig, repetitions: int | None, **more: bool
) -> list[CalibratedTask]:
    from tbench.calibration.measuring import REPETITIONS, Calibrating
    from tbench.cli.interruption import run_interruptibly

    if not tasks:
        return []
    trying = Calibrating.of(config, repetitions or REPETITIONS, say=lambda text: print_line(text, err=True), **more)
    return run_interruptibly(trying.tasks(tasks), stopping="stopping: containers are being removed")


HEADS = (
    "task", "verdict", ">oracle", ">nop", "fresh", ">tests", ">solution", ">of limit", ">testing", ">of limit",
    ">memory",
)  # fmt: skip


def _cells(each: CalibratedTask, found: Mapping[Condition, str]) -> list[str]:
    """One task as a row: rewards, whether its verdict holds in a fresh container, and what was used, at most."""
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
        *_used([trial.solution_sec for trial in oracle], [trial.shares.get("solution") for trial in oracle]),
        *_used([trial.tests_sec for trial in oracle], [trial.shares.get("tests") for trial in oracle]),
        f"{peak:,.0f} MB" if (peak := max((trial.memory_peak_mb or 0 for trial in oracle), default=0)) else "-",
    ]


def _used(seconds: Sequence[float], shares: Sequence[float | None]) -> tuple[str, str]:
    known = [share for share in shares if share is not None]
    return f"{max(seconds):.1f} s" if seconds else "-", f"{max(known):.0%}" if known else "-"


def _print_table(done: Sequence[CalibratedTask], found: Mapping[str, Mapping[Condition, str]]) -> None:
    for line in aligned(HEADS, [_cells(each, found[each.task.name]) for each in done]):
        print_line(line)
    for name, conditions in found.items():
        for condition, words in conditions.items():
            if words:
                print_line(f"{name}: {condition}: {words}")


def _object(each: CalibratedTask, found: Mapping[Condition, str]) -> dict[str, Any]:
    from tbench.calibration.conditions import is_healthy

    calibration = each.calibration
    return {
        "task": each.task.name,
        "hash": each.task.hash,
        "healthy": is_healthy(found),
        "conditions": dict(found),
        "calibration": calibration.model_dump(mode="json") if calibration is not None else None,
    }


def _write_page(path: Path, done: Sequence[CalibratedTask], found: Mapping[str, Mapping[Condition, str]]) -> None:
    from reports.calibration import CalibrationRow, write_calibration
    from tbench.calibration.conditions import is_healthy

    rows = [
        CalibrationRow(
            tuple(_cells(each, found[each.task.name])),
            is_healthy(found[each.task.name]),
            tuple(filter(None, found[each.task.name].values())),
        )
        for each in done
    ]
    print_line(f"page: {write_calibration(path, HEADS, rows)}", err=True)
