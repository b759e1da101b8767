"""`tbench power`: how many seeds it takes to see a difference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbench.cli.common import json_option, runs_argument
from tbench.cli.comparing.sheets import Form, format_option, print_blocks
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.parsing.values import Number
from tbench.cli.printing import print_line, print_text

if TYPE_CHECKING:
    from tbench.api.sides import Repeats
    from tbench.scores.comparing.power import PowerPlan


@click.command(cls=TbenchCommand)
@runs_argument(
    "Run directories, or .jsonl files of results, whose noise is taken; best two that differ as those to come."
)
@click.option(
    "--points",
    type=Number(0.0, 100.0, min_open=True),
    default=3.0,
    help="The difference to be seen, in percentage points.",
)
@click.option(
    "--power",
    type=Number(0.5, 1.0, min_open=True, max_open=True),
    default=0.8,
    help="The chance to see it.",
)
@format_option
@json_option
def power(runs: tuple[Path, ...], points: float, power: float, form: Form, as_json: bool) -> None:
    """Say how many seeds see a difference, on these very tasks and on others of their kind, and when none can."""
    from tbench.api.sides import read_runs, repeats, sides_of
    from tbench.scores.comparing import noise_text as text
    from tbench.scores.statistics import coverage

    stored = read_runs(runs)
    sides = sides_of(runs, stored)
    plans = list(_plans(repeats(stored, sides)))
    if as_json or form == "json":
        document = {
            "schema_version": 1,
            "points": points,
            "power": power,
            "plans": [{"name": name, **_as_json(plan, points / 100, power)} for name, plan in plans],
        }
        print_text(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for path, run in zip(runs, stored, strict=True):
        for note in run.notes:
            print_line(f"note: {path}: {note}", err=True)
    for side in sides:
        if (covered := coverage(side.table)) < 1.0:
            print_line(
                f"note: {side.name}: coverage {100 * covered:.1f} %; without a verdict is 0, which adds noise", err=True
            )
    if form == "csv":
        print_text(text.power_sheet(plans, power).as_csv(), nl=False)
        return
    blocks = (
        (list(text.power_lines(name, plan, points / 100, power)), text.power_sheet([(name, plan)], power))
        for name, plan in plans
    )
    print_blocks(form, (block for both in blocks for block in both))


def _plans(groups: Sequence[Repeats]) -> Iterator[tuple[str, PowerPlan]]:
    """A plan for each pair of configurations, or for the only one. Raises UsageError where nothing can be told."""
    from tbench.errors import UsageError
    from tbench.scores.comparing.compare import compare
    from tbench.scores.comparing.power import PowerPlan, plan_of_one, pooled

    sides = [pooled(group.sides) for group in groups]
    if len(sides) == 1:
        yield sides[0].name, plan_of_one(sides[0].table)
    for first, second in combinations(sides, 2):
        parts = compare(first, second).variance
        if parts is None:
            raise UsageError(
                f"{first.name} and {second.name}: at least two seeds and two tasks in common are needed to tell noise "
                "from differences; give runs with several seeds, or one run alone for an upper bound"
            )
        yield f"{second.name} - {first.name}", PowerPlan(parts=parts, is_pair=True)


def _as_json(plan: PowerPlan, difference: float, power: float) -> dict[str, Any]:
    seeds = plan.parts.seeds
    here = {
        "seeds_for": plan.seeds_for(difference, power, "these tasks"),
        "seen_now": plan.seen_with(seeds, power, "these tasks"),
    }
    elsewhere = {
        "seeds_for": plan.seeds_for(difference, power, "other tasks"),
        "seen_now": plan.seen_with(seeds, power, "other tasks"),
        "tasks_for": plan.tasks_for(difference, power, seeds),
    }
    return {
        **plan.model_dump(mode="json"),
        "these_tasks": here,
        "other_tasks": elsewhere if plan.is_pair else None,
    }
