"""Options that several commands share."""

from __future__ import annotations

import click

task_option = click.option("--task", "-t", multiple=True, help="Only tasks whose name matches this glob (repeatable).")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
