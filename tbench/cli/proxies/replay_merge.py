"""`tbench replay merge`: the shards of a replay as one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.common import json_option, runs_argument
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.parsing.values import A_PATH
from tbench.cli.proxies.replay_score import dataset_option, metric_revision_option, show

if TYPE_CHECKING:
    from tbench.proxies.replay.scoring.parser import Revision


@click.command(cls=TbenchCommand)
@runs_argument("The directories of all shards (--shard i/n).")
@click.option("--output", "-o", metavar="DIR", type=A_PATH, required=True, help="A new directory for the whole run.")
@dataset_option
@metric_revision_option
@json_option
def merge(
    runs: tuple[Path, ...], output: Path, dataset: Path | None, metric_revision: Revision | None, as_json: bool
) -> None:
    """Put the shards of one run together, and score the whole."""
    from tbench.errors import UsageError
    from tbench.proxies.replay.scoring.merge import merge as put_together
    from tbench.proxies.replay.scoring.parser import DEFAULT_REVISION

    try:
        result = put_together(runs, output, dataset, metric_revision or DEFAULT_REVISION)
    except OSError as error:
        raise UsageError(f"{error.filename or output}: {error.strerror or error}") from None
    show(result, output / "result.json", as_json=as_json)
