"""`tbench export harbor`: runs as jobs of Harbor."""

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
@export_options("harbor", only="all")
def harbor(
    runs: tuple[Path, ...], output: Path | None, only: Only, min_reward: float | None, tasks: tuple[str, ...]
) -> None:
    """Write runs as jobs of Harbor, with what its viewer and its other commands read."""
    from tbench.exchange.chosen import LeftOutTrials, TrialChoice, require_trials
    from tbench.exchange.harbor.export import write_harbor_job
    from tbench.storage.staging import new_directory

    target = target_of(runs, output, "harbor")
    choice = TrialChoice(only=only, min_reward=min_reward, tasks=tasks)
    stored, left_out, count = read_runs(runs), LeftOutTrials(), 0
    with new_directory(target) as directory:
        for name, run in stored.items():
            below = Path(name) if len(stored) > 1 else Path()
            count += write_harbor_job(run, choice, directory / below, target / below, left_out)
        require_trials(count, left_out)
    print_left_out(left_out)
    print_line(f"{counted(count, 'trial')} written to {target}")
