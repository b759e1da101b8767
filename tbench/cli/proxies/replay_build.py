"""`tbench replay build`: a dataset out of recorded conversations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH, Integer, OneOf
from tbench.cli.printing import print_line

if TYPE_CHECKING:
    from tbench.proxies.datasets.build import Built
    from tbench.proxies.datasets.conversations import Only

_SHOWN = 10


@click.command(cls=TbenchCommand)
@click.argument(
    "conversations",
    cls=Argument,
    metavar="CONVERSATIONS...",
    type=A_PATH,
    nargs=-1,
    required=True,
    help="Run directories, trajectory.json files (ours, ATIF), JSONL with one conversation per line.",
)
@click.option("--output", "-o", metavar="DATASET.jsonl", type=A_PATH, required=True, help="The file to make.")
@click.option(
    "--only", type=OneOf("passed", "all"), default="passed", help="Which trials, by the verdict in their result.json."
)
@click.option("--include-invalid-refs", is_flag=True, help="Keep references without a JSON object.")
@click.option("--include-empty-command-refs", is_flag=True, help="Keep references without a command.")
@click.option("--dev", metavar="N", type=Integer(min=0), default=0, help="Also write the records of N tasks.")
@click.option("--seed", type=int, default=42, help="Of the choice of those tasks.")
def build(
    conversations: tuple[Path, ...],
    output: Path,
    only: Only,
    include_invalid_refs: bool,
    include_empty_command_refs: bool,
    dev: int,
    seed: int,
) -> None:
    """Make a replay dataset from recorded conversations."""
    from tbench.proxies.datasets.build import build as build_dataset
    from tbench.proxies.datasets.references import Inclusion

    built = build_dataset(
        conversations,
        output,
        only=only,
        include=Inclusion(include_invalid_refs, include_empty_command_refs),
        dev=dev,
        seed=seed,
    )
    _print(built)


def _print(built: Built) -> None:
    from harness.text import without_lone_surrogates

    for title, lines in (("problem", built.problems), ("note", built.notes)):
        for line in lines[:_SHOWN]:
            print_line(f"{title}: {without_lone_surrogates(line)}", err=True)
        if len(lines) > _SHOWN:
            print_line(f"{title}: {len(lines) - _SHOWN} more, in {built.manifest_path}", err=True)
    print_line(f"{built.records} steps of {len(built.tasks)} conversations: {built.path}")
    if built.dev_path is not None:
        print_line(f"{built.dev_records} steps of {len(built.dev_task_ids)} conversations: {built.dev_path}")
    print_line(f"manifest: {built.manifest_path}")
    for reason, count in sorted(built.dropped.items()):
        print_line(f"{count} turns left out: {reason}")
    if built.rebuilt:
        print_line(f"{built.rebuilt} replies put together from recorded actions; their wording is not the model's")
    if built.repaired:
        print_line(f"{built.repaired} records in which lone surrogates became U+FFFD")
    if built.problems or built.filtered:
        print_line(f"{len(built.problems)} conversations unusable, {len(built.filtered)} left out by --only")
