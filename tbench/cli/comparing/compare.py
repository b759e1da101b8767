"""`tbench compare`: which run is better, by how much, and whether it is noise."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.common import json_option, runs_argument
from tbench.cli.comparing.sheets import Form, format_option, print_blocks
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.printing import print_line, print_text

if TYPE_CHECKING:
    from tbench.cli.comparing.sheets import Block
    from tbench.scores.comparing.compare import Comparison
    from tbench.scores.comparing.side import Side
    from tbench.storage.read_run import StoredRun


@click.command(cls=TbenchCommand)
@runs_argument("Two or more run directories, or .jsonl files of results; the first is the base.")
@click.option("--anyway", is_flag=True, help="Compare also what is unfinished, or was run with other settings.")
@click.option("--all-tasks", is_flag=True, help="Show every common task, not only those that differ.")
@format_option
@json_option
def compare(runs: tuple[Path, ...], anyway: bool, all_tasks: bool, form: Form, as_json: bool) -> None:
    """Compare runs, paired by task and seed: the difference, its error, an exact p, and which tasks changed."""
    from tbench.api.sides import obstacles, read_runs, remarks, sides_of
    from tbench.errors import UsageError
    from tbench.scores.comparing.compare import compare_all

    if len(runs) < 2:
        raise UsageError(f"{runs[0]}: one run alone; give two or more")
    stored = read_runs(runs)
    sides = sides_of(runs, stored)
    doubts = list(obstacles(runs, stored, sides))
    if doubts and not anyway:
        raise UsageError(f"{'; '.join(doubts)}; --anyway compares all the same")
    comparisons = compare_all(sides)
    notes = [*doubts, *remarks(runs, stored)]
    if as_json or form == "json":
        print_text(_as_json(runs, stored, sides, comparisons, notes))
        return
    for note in notes:
        print_line(f"note: {note}", err=True)
    if form == "csv":
        print_text(_as_csv(sides, comparisons, all_tasks), nl=False)
    else:
        print_blocks(form, _blocks(stored, sides, comparisons, all_tasks))


def _blocks(
    stored: Sequence[StoredRun], sides: Sequence[Side], comparisons: Sequence[Comparison], all_tasks: bool
) -> Iterator[Block]:
    from tbench.scores.comparing import text

    names = list(combinations(text.letters(len(sides)), 2))
    yield text.side_sheet(sides, [run.model for run in stored])
    if len(comparisons) > 1:
        yield text.pair_sheet(comparisons, names)
    for comparison, (first, second), pair in zip(comparisons, combinations(sides, 2), names, strict=True):
        yield list(text.lines(comparison, pair, together=len(comparisons)))
        yield text.task_sheet(comparison, first, second, pair, every=all_tasks)


def _as_csv(sides: Sequence[Side], comparisons: Sequence[Comparison], all_tasks: bool) -> str:
    """One row for each pair of runs; with `all_tasks`, one for each task of each pair."""
    from tbench.scores.comparing import text

    if not all_tasks:
        return text.pair_sheet(comparisons, [(each.first, each.second) for each in comparisons]).as_csv()
    sheets = [
        text.task_sheet(each, first, second, (each.first, each.second), every=True)
        for each, (first, second) in zip(comparisons, combinations(sides, 2), strict=True)
    ]
    return sheets[0].with_rows([row for sheet in sheets for row in sheet.rows]).as_csv()


def _as_json(
    paths: Sequence[Path],
    stored: Sequence[StoredRun],
    sides: Sequence[Side],
    comparisons: Sequence[Comparison],
    notes: Sequence[str],
) -> str:
    from tbench.storage.comparable import fingerprint

    runs = [
        {
            "name": side.name,
            "path": str(path),
            "model": run.model,
            "fingerprint": None if run.document is None else fingerprint(run),
        }
        for path, side, run in zip(paths, sides, stored, strict=True)
    ]
    found = [each.model_dump(mode="json") for each in comparisons]
    document = {"schema_version": 1, "runs": runs, "comparisons": found, "notes": list(notes)}
    return json.dumps(document, indent=2, ensure_ascii=False)
