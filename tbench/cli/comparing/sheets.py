"""Prints tables with the lines that belong to them: on a terminal, or as Markdown."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import click

from tbench.cli.parsing.values import OneOf
from tbench.cli.printing import print_text

if TYPE_CHECKING:
    from tbench.scores.sheet import Sheet

    Block = Sheet | Sequence[str]

Form = Literal["table", "markdown", "csv", "json"]

format_option = click.option(
    "--format", "form", type=OneOf("table", "markdown", "csv", "json"), default="table", help="How to print it."
)


def print_blocks(form: Form, blocks: Iterable[Block]) -> None:
    """Print tables and lines, an empty line between them; lines are list items in Markdown."""
    made = [text for block in blocks if (text := _markdown(block) if form == "markdown" else _plain(block))]
    click.echo("\n".join(made), nl=False) if form == "table" else print_text("\n".join(made), nl=False)


def _markdown(block: Block) -> str:
    from tbench.scores.sheet import Sheet, escaped

    if isinstance(block, Sheet):
        return block.as_markdown() if block.rows else ""
    return "".join(f"{'  ' * line.startswith('  ')}- {escaped(line.strip())}\n" for line in block)


def _plain(block: Block) -> str:
    from rich.console import Console

    from tbench.scores.sheet import Sheet
    from tbench.scores.tables import print_line

    console = Console(file=sys.stdout, highlight=False)
    # Not printed by the console itself: where the reader has gone away, it ends the process with 1.
    with console.capture() as captured:
        if isinstance(block, Sheet):
            if block.rows:
                block.print(console)
        else:
            for line in block:
                print_line(line, console)
    return captured.get()
