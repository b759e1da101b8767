"""`tbench export atif`: trajectories as Harbor, its viewers and its converters read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.export.choosing import export_options, print_left_out, read_runs, target_of
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.printing import print_line
from tbench.text import counted

if TYPE_CHECKING:
    from tbench.exchange.chosen import Only


@click.command(cls=TbenchCommand)
@export_options("atif", only="all")
@click.option(
    "--linear", is_flag=True, help="A document for each context, where the history was made shorter on the way."
)
def atif(
    runs: tuple[Path, ...],
    output: Path | None,
    only: Only,
    min_reward: float | None,
    tasks: tuple[str, ...],
    linear: bool,
) -> None:
    """Write trajectories as ATIF 1.8 documents, one for each trial."""
    from tbench.exchange.atif.export import write_atif
    from tbench.exchange.chosen import LeftOutTrials, TrialChoice, require_trials
    from tbench.storage.staging import new_directory

    target = target_of(runs, output, "atif")
    choice = TrialChoice(only=only, min_reward=min_reward, tasks=tasks)
    stored, left_out, count = read_runs(runs), LeftOutTrials(), 0
    with new_directory(target) as directory:
        for name, run in stored.items():
            below = directory / name if len(stored) > 1 else directory
            count += write_atif(run, choice, below, left_out, linear=linear)
        require_trials(count, left_out)
    print_left_out(left_out)
    print_line(f"{counted(count, 'trial')} written to {target}")
