"""`tbench leaderboard`: replay results side by side."""

from __future__ import annotations

from pathlib import Path

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH, OneOf
from tbench.cli.printing import print_line, print_text


@click.command(cls=TbenchCommand)
@click.argument(
    "paths",
    cls=Argument,
    metavar="DIR...",
    type=A_PATH,
    nargs=-1,
    required=True,
    help="Runs of replay, directories of runs or of result files.",
)
@click.option("--format", "form", type=OneOf("markdown", "csv", "json"), default="markdown", help="How to print it.")
@click.option("--mixed", is_flag=True, help="Rank results of different datasets or metric revisions together.")
def leaderboard(paths: tuple[Path, ...], form: str, mixed: bool) -> None:
    """Rank results of replay: 100 x mean F1, one row per model, the newest result of each."""
    from tbench.proxies.replay.scoring import leaderboard_text
    from tbench.proxies.replay.scoring.leaderboard import leaderboard as rank

    board = rank(paths, mixed=mixed)
    if form == "csv":
        for remark in (*board.notes, *(f"Not read: {problem}" for problem in board.unreadable)):
            print_line(remark, err=True)
    write = {
        "markdown": leaderboard_text.as_markdown,
        "csv": leaderboard_text.as_csv,
        "json": leaderboard_text.as_json,
    }[form]
    print_text(write(board), nl=False)
