"""`tbench resume`: go on with a run that was cut short, as it was started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tbench.cli.common import LogLevel, log_level_of


def register(app: typer.Typer) -> None:
    app.command()(resume)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    retry_errors: Annotated[
        str | None,
        typer.Option(
            metavar="[TYPE]...", help="Also trials with these types of error; with all errors when none is named."
        ),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(envvar="OPENAI_BASE_URL", help="Where the endpoint is now, if elsewhere.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-n", min=1, help="Trials at once, if other than before.")
    ] = None,
    retries: Annotated[int | None, typer.Option(min=0, help="Further attempts, if other than before.")] = None,
    max_load: Annotated[
        float | None,
        typer.Option(min=0.1, help="Load average per cpu above which no trial starts, if other than before."),
    ] = None,
    max_outage: Annotated[
        float | None, typer.Option(min=0, help="Seconds to pause while the endpoint is away, if other than before.")
    ] = None,
    min_coverage: Annotated[
        float, typer.Option(min=0, max=1, help="Exit with 3 when a smaller share of trials has a verdict.")
    ] = 0.0,
    log_level: LogLevel = "info",
) -> None:
    """Finish the trials of a run that have no verdict: cut short, never begun, or with an error worth a retry."""
    from tbench.cli.execute import execute
    from tbench.cli.options import from_stored
    from tbench.cli.run import finish
    from tbench.runs.resume import EarlierRun

    level = log_level_of(log_level)
    stored = EarlierRun.read(run).document.get("options")
    here = {"base_url": base_url, "max_outage_sec": max_outage}
    options = from_stored(stored, str(run), here, concurrency=concurrency, retries=retries, max_load=max_load)
    finish(execute(options, resume=True, retry_errors=retry_errors, log_level=level), min_coverage)
