"""`tbench leaderboard`: replay results side by side."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How the table is printed."""

    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


def register(app: typer.Typer) -> None:
    app.command()(leaderboard)


def leaderboard(
    paths: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Runs of replay, directories of runs or of result files.")
    ],
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.MARKDOWN,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Rank results of different datasets or metric revisions together.")
    ] = False,
) -> None:
    """Rank results of replay: 100 x mean F1, one row per model, the newest result of each."""
    from tbench.proxies.replay.scoring import leaderboard_text
    from tbench.proxies.replay.scoring.leaderboard import leaderboard as rank

    board = rank(paths, mixed=mixed)
    if form is Format.CSV:
        for remark in (*board.notes, *(f"Not read: {problem}" for problem in board.unreadable)):
            typer.echo(remark, err=True)
    write = {
        Format.MARKDOWN: leaderboard_text.as_markdown,
        Format.CSV: leaderboard_text.as_csv,
        Format.JSON: leaderboard_text.as_json,
    }[form]
    typer.echo(write(board), nl=False)
