"""`tbench summary`: the score of a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(summary)


def summary(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or one with a results.jsonl.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Print the score of a run from its directory."""
    from tbench.cli.execute import print_summary

    print_summary(run, as_json=as_json)
