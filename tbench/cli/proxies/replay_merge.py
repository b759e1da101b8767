"""`tbench replay merge`: the shards of a replay as one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tbench.cli.proxies.replay_score import Dataset, MetricRevision


def register(replay: typer.Typer) -> None:
    replay.command()(merge)


def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The directories of all shards (--shard i/n).")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new directory for the whole run.")],
    dataset: Dataset = None,
    metric_revision: Annotated[
        MetricRevision | None, typer.Option(help="Revision of the metric; v2 by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Put the shards of one run together, and score the whole."""
    from tbench.cli.proxies.replay_score import show
    from tbench.errors import UsageError
    from tbench.proxies.replay.scoring.merge import merge as put_together
    from tbench.proxies.replay.scoring.parser import DEFAULT_REVISION

    try:
        result = put_together(runs, output, dataset, metric_revision.value if metric_revision else DEFAULT_REVISION)
    except OSError as error:
        raise UsageError(f"{error.filename or output}: {error.strerror or error}") from None
    show(result, output / "result.json", as_json=as_json)
