"""The way of all text to stdout and stderr: what tasks, models, servers and files say cannot steer the terminal.

Colours and cursors of tbench's own are the business of rich, and of the few lines that say so.
"""

from __future__ import annotations

import click

from tbench.text import visible, visible_line


def print_line(text: str, *, err: bool = False) -> None:
    """Print one line: what `text` quotes cannot begin another."""
    click.echo(visible_line(text), err=err)


def print_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text of several lines, such as a table or JSON, which stays JSON."""
    click.echo(visible(text), err=err, nl=nl)
