"""`tbench flaky`: which tasks are solved sometimes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.common import json_option, runs_argument
from tbench.cli.comparing.sheets import Form, format_option, print_blocks
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.printing import print_line, print_text

if TYPE_CHECKING:
    from tbench.api.sides import Repeats
    from tbench.cli.comparing.sheets import Block
    from tbench.scores.comparing.flaky import TaskTries


@click.command(cls=TbenchCommand)
@runs_argument("Run directories, or .jsonl files of results.")
@format_option
@json_option
def flaky(runs: tuple[Path, ...], form: Form, as_json: bool) -> None:
    """List the tasks that are solved sometimes, with Wilson intervals; runs of one model and configuration as one."""
    from tbench.api.sides import read_runs, repeats, sides_of
    from tbench.errors import UsageError
    from tbench.scores.comparing.flaky import task_tries

    stored = read_runs(runs)
    groups = repeats(stored, sides_of(runs, stored))
    tries = [task_tries(group.sides) for group in groups]
    if all(task.scored < 2 for tasks in tries for task in tasks):
        raise UsageError(
            f"{runs[0]}: one trial of each task, so none can be flaky; give runs with several seeds, or several runs "
            "of one model and configuration"
        )
    if as_json or form == "json":
        print_text(_as_json(groups, tries))
        return
    for path, run in zip(runs, stored, strict=True):
        for note in run.notes:
            print_line(f"note: {path}: {note}", err=True)
    if form == "csv":
        from tbench.scores.comparing.noise_text import tries_sheet

        print_text(tries_sheet(list(zip((group.name for group in groups), tries, strict=True))).as_csv(), nl=False)
    else:
        print_blocks(form, _blocks(groups, tries))


def _blocks(groups: Sequence[Repeats], tries: Sequence[Sequence[TaskTries]]) -> Iterator[Block]:
    from tbench.scores.comparing.noise_text import tries_lines, tries_sheet

    for group, tasks in zip(groups, tries, strict=True):
        yield list(tries_lines(group.name, tasks))
        yield tries_sheet([(group.name, tasks)])


def _as_json(groups: Sequence[Repeats], tries: Sequence[Sequence[TaskTries]]) -> str:
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
    return json.dumps({"schema_version": 1, "groups": found}, indent=2, ensure_ascii=False)
