"""The way of all text to stdout and stderr: what tasks, models, servers and files say cannot steer the terminal.

Colours and cursors of tbench's own are the business of rich, and of the few lines that say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import click

from tbench.text import visible, visible_line

_COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")


def print_line(text: str, *, err: bool = False) -> None:
    """Print one line: what `text` quotes cannot begin another."""
    click.echo(visible_line(text), err=err)


def print_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text of several lines, such as a table or JSON, which stays JSON."""
    click.echo(visible(text), err=err, nl=nl)


def print_coloured(lines: Iterable[str]) -> None:
    """Print lines that have colours of tbench's own, which a terminal that shows none is spared."""
    for line in lines:
        click.echo(coloured_line(line))


def coloured_line(text: str) -> str:
    """Give a line of which colours stay, and nothing else that could steer a terminal."""
    return "".join(part if _COLOURS.fullmatch(part) else visible_line(part) for part in _COLOURS.split(text))


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table; columns whose head begins with > are numbers."""
    if not rows:
        return
    right = [head.startswith(">") for head in heads]
    table = [[head.removeprefix(">") for head in heads], *([visible_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = zip(row, widths, right, strict=True)
        yield "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in cells).rstrip()
