"""`tbench resume`: go on with a run that was cut short, as it was started."""

from __future__ import annotations

from pathlib import Path

import click

from tbench.cli.common import log_level_option
from tbench.cli.parsing.commands import Argument
from tbench.cli.parsing.retry_errors import CommandWithRetryErrors, retry_errors_option
from tbench.cli.parsing.values import A_PATH, Integer, Number


@click.command(cls=CommandWithRetryErrors)
@click.argument("run", cls=Argument, metavar="RUN", type=A_PATH, help="A run directory.")
@retry_errors_option("Also trials with these types of error; with all errors when none is named.")
@click.option("--base-url", envvar="OPENAI_BASE_URL", show_envvar=True, help="Where the endpoint is now, if elsewhere.")
@click.option("--concurrency", "-n", type=Integer(min=1), help="Trials at once, if other than before.")
@click.option("--retries", type=Integer(min=0), help="Further attempts, if other than before.")
@click.option(
    "--max-load", type=Number(min=0.1), help="Load average per cpu above which no trial starts, if other than before."
)
@click.option(
    "--max-outage", type=Number(min=0), help="Seconds to pause while the endpoint is away, if other than before."
)
@click.option(
    "--min-coverage",
    type=Number(min=0, max=1),
    default=0.0,
    help="Exit with 3 when a smaller share of trials has a verdict.",
)
@log_level_option
def resume(
    run: Path,
    retry_errors: str | None,
    base_url: str | None,
    concurrency: int | None,
    retries: int | None,
    max_load: float | None,
    max_outage: float | None,
    min_coverage: float,
    log_level: str,
) -> None:
    """Finish the trials of a run that have no verdict: cut short, never begun, or with an error worth a retry."""
    from tbench.cli.execute import execute
    from tbench.cli.options import from_stored
    from tbench.cli.run import finish
    from tbench.runs.resume import EarlierRun

    stored = EarlierRun.read(run).document.get("options")
    here = {"base_url": base_url, "max_outage_sec": max_outage}
    options = from_stored(stored, str(run), here, concurrency=concurrency, retries=retries, max_load=max_load)
    finish(execute(options, resume=True, retry_errors=retry_errors, log_level=log_level), min_coverage)
