"""`tbench compare`, `flaky` and `power`: compare runs and measure their noise."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tbench.cli.common import json_option, runs_argument
from tbench.cli.parsing.commands import TbenchCommand, flag, option
from tbench.cli.parsing.configured import COST_SETTINGS, ConfiguredCommand, GivenSettings, given_cost
from tbench.cli.parsing.values import Number, OneOf
from tbench.cli.printing import print_folded, print_json, print_line, print_notes, print_text
from tbench.config.settings import CostConfig, RunConfig

if TYPE_CHECKING:
    from tbench.api.stored_runs import Repeats
    from tbench.scores.comparing.compare import Comparison
    from tbench.scores.comparing.compared_run import ComparedRun
    from tbench.scores.comparing.noise import PowerPlan, TaskSolveRate
    from tbench.scores.cost import Cost
    from tbench.scores.tables import Sheet
    from tbench.storage.read_run import StoredRun

    Block = Sheet | Sequence[str]

OutputFormat = Literal["table", "markdown", "csv", "json"]

format_option = option(
    "--format", "Output format.", OneOf("table", "markdown", "csv", "json"), name="form", default="table"
)


def print_blocks(form: OutputFormat, blocks: Iterable[Block]) -> None:
    """Print tables and groups of lines, separated by empty lines; lines become list items in Markdown."""
    made = [text for block in blocks if (text := _markdown(block) if form == "markdown" else _plain(block))]
    (print_folded if form == "table" else print_text)("\n".join(made), nl=False)


def _markdown(block: Block) -> str:
    from tbench.scores.tables import Sheet, escaped

    if isinstance(block, Sheet):
        return block.as_markdown() if block.rows else ""
    return "".join(f"{'  ' * line.startswith('  ')}- {escaped(line.strip())}\n" for line in block)


def _plain(block: Block) -> str:
    from rich.console import Console

    from tbench.scores.tables import Sheet, print_line

    console = Console(file=sys.stdout, highlight=False)
    # Captured, because the console exits with 1 if the reader has gone.
    with console.capture() as captured:
        if isinstance(block, Sheet):
            if block.rows:
                block.print(console)
        else:
            for line in block:
                print_line(line, console)
    return captured.get()


# `tbench compare`


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=COST_SETTINGS)
@runs_argument("Two or more run directories, or .jsonl files of results; the first is the base.")
@flag("--anyway", "Compare even if runs are unfinished or have different settings.")
@flag("--all-tasks", "Show every common task, not only those that differ.")
@format_option
@json_option
def compare(
    runs: tuple[Path, ...],
    anyway: bool,
    all_tasks: bool,
    form: OutputFormat,
    as_json: bool,
    given: GivenSettings[RunConfig],
) -> None:
    """Compare runs, paired by task and seed: difference, standard error, exact p-value, and the tasks that changed."""
    cost = partial(given_cost, given)
    print_comparison(runs, "json" if as_json else form, anyway=anyway, all_tasks=all_tasks, cost=cost)


def print_comparison(
    runs: Sequence[Path],
    form: OutputFormat | Literal["line"],
    *,
    anyway: bool = False,
    all_tasks: bool = False,
    cost: Callable[[CostConfig], CostConfig] = lambda stored: stored,
) -> None:
    """Print the comparison of runs; the form `line` is one line of JSON. Raises UsageError.

    `cost` returns the prices to use in place of a run's stored ones.
    """
    from tbench.api.stored_runs import compared_runs, comparison_doubts, read_runs, remarks
    from tbench.errors import UsageError
    from tbench.scores.comparing.compare import compare_all
    from tbench.storage.run_files import RUN
    from tbench.storage.summaries import make_summary, stored_cost

    if len(runs) < 2:
        is_folder = any(runs[0].glob(f"*/{RUN.manifest}"))
        words = (
            f"contains runs; name them, the base first: {runs[0]}/*" if is_folder else "only one run; give two or more"
        )
        raise UsageError(f"{runs[0]}: {words}")
    stored = read_runs(runs)
    sides = compared_runs(runs, stored)
    doubts = list(comparison_doubts(runs, stored, sides))
    if doubts and not anyway:
        raise UsageError(f"{'; '.join(doubts)}; --anyway compares them anyway")
    comparisons = compare_all(sides)
    notes = [*doubts, *remarks(runs, stored)]
    costs = [make_summary(run, intervals=False, cost=cost(stored_cost(run))).cost for run in stored]
    if form == "json" or form == "line":
        document = _as_json(runs, stored, sides, comparisons, notes, costs)
        if form == "line":
            print_text(json.dumps({"kind": "comparison", **document}, ensure_ascii=False))
        else:
            print_json(document)
        return
    print_notes(notes)
    if form == "csv":
        print_text(_as_csv(sides, comparisons, all_tasks), nl=False)
    else:
        print_blocks(form, _blocks(stored, sides, comparisons, costs, all_tasks))


def _blocks(
    stored: Sequence[StoredRun],
    sides: Sequence[ComparedRun],
    comparisons: Sequence[Comparison],
    costs: Sequence[Cost | None],
    all_tasks: bool,
) -> Iterator[Block]:
    from tbench.scores.comparing import comparison_text
    from tbench.storage.comparable import agent_of

    names = list(combinations(comparison_text.letters(len(sides)), 2))
    yield comparison_text.side_sheet(sides, [run.model for run in stored], [agent_of(run) for run in stored])
    if len(comparisons) > 1:
        yield comparison_text.pair_sheet(comparisons, names)
    for comparison, (first, second), pair in zip(comparisons, combinations(sides, 2), names, strict=True):
        yield list(comparison_text.lines(comparison, pair, together=len(comparisons)))
        yield comparison_text.task_sheet(comparison, first, second, pair, every=all_tasks)
    yield list(comparison_text.cost_lines(costs))


def _as_csv(sides: Sequence[ComparedRun], comparisons: Sequence[Comparison], all_tasks: bool) -> str:
    """Return one row per pair of runs, or with `all_tasks` one per task of each pair."""
    from tbench.scores.comparing import comparison_text

    if not all_tasks:
        return comparison_text.pair_sheet(comparisons, [(each.first, each.second) for each in comparisons]).as_csv()
    sheets = [
        comparison_text.task_sheet(each, first, second, (each.first, each.second), every=True)
        for each, (first, second) in zip(comparisons, combinations(sides, 2), strict=True)
    ]
    return replace(sheets[0], rows=[row for sheet in sheets for row in sheet.rows]).as_csv()


def _as_json(
    paths: Sequence[Path],
    stored: Sequence[StoredRun],
    sides: Sequence[ComparedRun],
    comparisons: Sequence[Comparison],
    notes: Sequence[str],
    costs: Sequence[Cost | None],
) -> dict[str, Any]:
    from tbench.scores.cost import cost_ratio
    from tbench.storage.comparable import agent_of, fingerprint

    runs = [
        {
            "name": side.name,
            "path": str(path),
            "model": run.model,
            "agent": agent_of(run),
            "fingerprint": None if run.document is None else fingerprint(run),
            "cost": None if cost is None else cost.model_dump(mode="json"),
        }
        for path, side, run, cost in zip(paths, sides, stored, costs, strict=True)
    ]
    found = [
        {**each.model_dump(mode="json"), "cost_ratio": cost_ratio(*pair)}
        for each, pair in zip(comparisons, combinations(costs, 2), strict=True)
    ]
    return {"schema_version": 1, "runs": runs, "comparisons": found, "notes": list(notes)}


# `tbench flaky`


@click.command(cls=TbenchCommand)
@runs_argument("Run directories, or .jsonl files of results.")
@format_option
@json_option
def flaky(runs: tuple[Path, ...], form: OutputFormat, as_json: bool) -> None:
    """List the tasks solved only sometimes; runs of one configuration are pooled."""
    from tbench.api.stored_runs import compared_runs, read_runs, repeats
    from tbench.errors import UsageError
    from tbench.scores.comparing.noise import task_solve_rates

    stored = read_runs(runs)
    groups = repeats(stored, compared_runs(runs, stored))
    tries = [task_solve_rates(group.sides) for group in groups]
    if all(task.scored < 2 for tasks in tries for task in tasks):
        raise UsageError(
            f"{runs[0]}: has only one trial per task; give runs with several seeds, or several runs of the same model "
            "and configuration"
        )
    if as_json or form == "json":
        print_json(_flaky_as_json(groups, tries))
        return
    print_notes(f"{path}: {note}" for path, run in zip(runs, stored, strict=True) for note in run.notes)
    if form == "csv":
        from tbench.scores.comparing.noise import flaky_task_sheet

        print_text(flaky_task_sheet(list(zip((group.name for group in groups), tries, strict=True))).as_csv(), nl=False)
    else:
        print_blocks(form, _flaky_blocks(groups, tries))


def _flaky_blocks(groups: Sequence[Repeats], tries: Sequence[Sequence[TaskSolveRate]]) -> Iterator[Block]:
    from tbench.scores.comparing.noise import flaky_task_sheet, solve_rate_lines

    for group, tasks in zip(groups, tries, strict=True):
        yield list(solve_rate_lines(group.name, tasks))
        yield flaky_task_sheet([(group.name, tasks)])


def _flaky_as_json(groups: Sequence[Repeats], tries: Sequence[Sequence[TaskSolveRate]]) -> dict[str, Any]:
    found = [
        {
            "runs": [side.name for side in group.sides],
            "model": group.model,
            "tasks": [
                {**task.model_dump(), "flaky": task.is_flaky, "rate": task.rate, "interval_95": task.interval_95}
                for task in tasks
            ],
        }
        for group, tasks in zip(groups, tries, strict=True)
    ]
    return {"schema_version": 1, "groups": found}


# `tbench power`


@click.command(cls=TbenchCommand)
@runs_argument(
    "Run directories or .jsonl result files to estimate the noise from; ideally two with a typical difference."
)
@option("--points", "The difference to detect, in percentage points.", Number(0.0, 100.0, min_open=True), default=3.0)
@option("--power", "The probability of detecting it.", Number(0.5, 1.0, min_open=True, max_open=True), default=0.8)
@format_option
@json_option
def power(runs: tuple[Path, ...], points: float, power: float, form: OutputFormat, as_json: bool) -> None:
    """Estimate how many seeds reveal a difference: on these tasks, and on similar ones."""
    from tbench.api.stored_runs import compared_runs, read_runs, repeats
    from tbench.scores.comparing import noise
    from tbench.scores.statistics import coverage

    stored = read_runs(runs)
    sides = compared_runs(runs, stored)
    plans = list(_plans(repeats(stored, sides)))
    if as_json or form == "json":
        document = {
            "schema_version": 1,
            "points": points,
            "power": power,
            "plans": [{"name": name, **_power_as_json(plan, points / 100, power)} for name, plan in plans],
        }
        print_json(document)
        return
    print_notes(f"{path}: {note}" for path, run in zip(runs, stored, strict=True) for note in run.notes)
    for side in sides:
        if (covered := coverage(side.table)) < 1.0:
            print_line(
                f"note: {side.name}: coverage {100 * covered:.1f} %; missing verdicts count as 0, which adds noise",
                err=True,
            )
    if form == "csv":
        print_text(noise.power_sheet(plans, power).as_csv(), nl=False)
        return
    blocks = (
        (list(noise.power_lines(name, plan, points / 100, power)), noise.power_sheet([(name, plan)], power))
        for name, plan in plans
    )
    print_blocks(form, (block for both in blocks for block in both))


def _plans(groups: Sequence[Repeats]) -> Iterator[tuple[str, PowerPlan]]:
    """Yield a plan per pair of configurations, or for the only one. Raises UsageError if the data are too few."""
    from tbench.errors import UsageError
    from tbench.scores.comparing.compare import compare
    from tbench.scores.comparing.noise import PowerPlan, plan_from_one_run, pool_runs

    sides = [pool_runs(group.sides) for group in groups]
    if len(sides) == 1:
        yield sides[0].name, plan_from_one_run(sides[0].table)
    for first, second in combinations(sides, 2):
        parts = compare(first, second).variance
        if parts is None:
            raise UsageError(
                f"{first.name} and {second.name}: telling noise from differences needs two seeds and two tasks in "
                "common; give runs with several seeds, or a single run for an upper bound"
            )
        yield f"{second.name} - {first.name}", PowerPlan(parts=parts, is_pair=True)


def _power_as_json(plan: PowerPlan, difference: float, power: float) -> dict[str, Any]:
    seeds = plan.parts.seeds
    here = {
        "seeds_for": plan.seeds_for(difference, power, "these tasks"),
        "seen_now": plan.detectable_difference(seeds, power, "these tasks"),
    }
    elsewhere = {
        "seeds_for": plan.seeds_for(difference, power, "other tasks"),
        "seen_now": plan.detectable_difference(seeds, power, "other tasks"),
        "tasks_for": plan.tasks_for(difference, power, seeds),
    }
    return {
        **plan.model_dump(mode="json"),
        "these_tasks": here,
        "other_tasks": elsewhere if plan.is_pair else None,
    }
