"""Options that several commands share."""

from __future__ import annotations

import click

from tbench.cli.parsing.commands import Argument
from tbench.cli.parsing.values import A_NAME

tasks_argument = click.argument(
    "source",
    cls=Argument,
    metavar="TASKS",
    type=A_NAME,
    default="bundled",
    help="A directory of tasks, one task, or 'bundled'.",
)
task_option = click.option("--task", "-t", multiple=True, help="Only tasks whose name matches this glob (repeatable).")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
