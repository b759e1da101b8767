"""`tbench export sft`: conversations as training data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.export.choosing import export_options, print_left_out, read_runs, target_of
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.parsing.values import OneOf
from tbench.cli.printing import print_line
from tbench.text import counted

if TYPE_CHECKING:
    from tbench.exchange.chosen import Only
    from tbench.exchange.sft.rows import Thinking


@click.command(cls=TbenchCommand)
@export_options("sft", only="passed")
@click.option(
    "--thinking",
    type=OneOf("keep", "inline", "drop"),
    default="keep",
    help="Thinking stays where it came, stands in <think> tags in front of the text, or goes.",
)
@click.option("--with-flagged", is_flag=True, help="Also trials with strong signs of tampering.")
@click.option("--with-human", is_flag=True, help="Also trials in which a human typed.")
def sft(
    runs: tuple[Path, ...],
    output: Path | None,
    only: Only,
    min_reward: float | None,
    tasks: tuple[str, ...],
    thinking: Thinking,
    with_flagged: bool,
    with_human: bool,
) -> None:
    """Write conversations as training data: OpenAI's messages, with a flag on each that is to be learnt."""
    from tbench.exchange.chosen import LeftOutTrials, TrialChoice, exported_trials, require_trials
    from tbench.exchange.sft.export import TrainingData
    from tbench.storage.staging import new_directory

    target = target_of(runs, output, "sft")
    choice = TrialChoice(only, min_reward, tasks, with_flagged=with_flagged, with_human=with_human)
    stored, left_out = read_runs(runs), LeftOutTrials()
    with new_directory(target) as directory:
        data = TrainingData(directory, thinking)
        for run in stored.values():
            for trial in exported_trials(run, choice, left_out):
                if not data.add(trial):
                    left_out.add("in which nothing can be learnt")
        data.close()
        require_trials(data.trials, left_out)
    print_left_out(left_out)
    for note in data.notes():
        print_line(note)
    said = f"{counted(data.rows, 'row')} with {counted(data.replies, 'reply').replace('replys', 'replies')} to learn"
    print_line(f"{counted(data.trials, 'trial')}, {said} written to {target}")
