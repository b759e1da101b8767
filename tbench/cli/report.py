"""`tbench report`: one self-contained HTML page for a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write; default RUN/report.html.")
    ] = None,
) -> None:
    """Write one self-contained HTML page and print its path."""
    from reports.page import write_report
    from tbench.errors import UsageError

    try:
        typer.echo(f"report: {write_report(run, output)}")
    except OSError as error:
        raise UsageError(f"{output or run}: cannot be written: {error.strerror or error}") from None
