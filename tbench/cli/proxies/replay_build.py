"""`tbench replay build`: a dataset out of recorded conversations."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tbench.proxies.datasets.build import Built

_SHOWN = 10


class Only(StrEnum):
    """Which trials are used, as tbench.proxies.datasets.conversations.Only."""

    PASSED = "passed"
    ALL = "all"


def register(replay: typer.Typer) -> None:
    replay.command()(build)


def build(
    conversations: Annotated[
        list[Path],
        typer.Argument(
            metavar="CONVERSATIONS...",
            help="Run directories, trajectory.json files (ours, ATIF), JSONL with one conversation per line.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DATASET.jsonl", help="The file to make.")],
    only: Annotated[Only, typer.Option(help="Which trials, by the verdict in their result.json.")] = Only.PASSED,
    include_invalid_refs: Annotated[
        bool, typer.Option("--include-invalid-refs", help="Keep references without a JSON object.")
    ] = False,
    include_empty_command_refs: Annotated[
        bool, typer.Option("--include-empty-command-refs", help="Keep references without a command.")
    ] = False,
    dev: Annotated[int, typer.Option(min=0, metavar="N", help="Also write the records of N tasks.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the choice of those tasks.")] = 42,
) -> None:
    """Make a replay dataset from recorded conversations."""
    from tbench.proxies.datasets.build import build as build_dataset
    from tbench.proxies.datasets.references import Inclusion

    built = build_dataset(
        conversations,
        output,
        only=only.value,
        include=Inclusion(include_invalid_refs, include_empty_command_refs),
        dev=dev,
        seed=seed,
    )
    _print(built)


def _print(built: Built) -> None:
    from harness.text import without_lone_surrogates

    for title, lines in (("problem", built.problems), ("note", built.notes)):
        for line in lines[:_SHOWN]:
            typer.echo(f"{title}: {without_lone_surrogates(line)}", err=True)
        if len(lines) > _SHOWN:
            typer.echo(f"{title}: {len(lines) - _SHOWN} more, in {built.manifest_path}", err=True)
    typer.echo(f"{built.records} steps of {len(built.tasks)} conversations: {built.path}")
    if built.dev_path is not None:
        typer.echo(f"{built.dev_records} steps of {len(built.dev_task_ids)} conversations: {built.dev_path}")
    typer.echo(f"manifest: {built.manifest_path}")
    for reason, count in sorted(built.dropped.items()):
        typer.echo(f"{count} turns left out: {reason}")
    if built.rebuilt:
        typer.echo(f"{built.rebuilt} replies put together from recorded actions; their wording is not the model's")
    if built.repaired:
        typer.echo(f"{built.repaired} records in which lone surrogates became U+FFFD")
    if built.problems or built.filtered:
        typer.echo(f"{len(built.problems)} conversations unusable, {len(built.filtered)} left out by --only")
