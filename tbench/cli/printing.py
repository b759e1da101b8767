"""Safe output to stdout and stderr: text from tasks, models, servers and files cannot control the terminal.

tbench's own colours and cursor movements come from rich, and from the few functions here that allow colours.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from tbench.text import escape_invisible, one_line, visible_line

if TYPE_CHECKING:
    from tbench.checked_tests import FailedTest

_COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")
_GAP = re.compile(r"(?<=\S)  +")
"""Blanks between two columns."""


def print_line(text: str, *, err: bool = False) -> None:
    """Print one line; line breaks in `text` are escaped."""
    print_folded(visible_line(text), err=err)


def print_folded(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print lines that are safe already; on a terminal, those that are too wide are broken between words."""
    if columns := _terminal_columns(err=err):
        text = "\n".join(folded_line(line, columns) for line in text.split("\n"))
    click.echo(text, err=err, nl=nl)


def _terminal_columns(*, err: bool) -> int:
    """Return the width of the terminal behind stdout or stderr; 0 if it is none."""
    try:
        return os.get_terminal_size((sys.stderr if err else sys.stdout).fileno()).columns
    except (OSError, ValueError):
        return 0


def folded_line(line: str, columns: int) -> str:
    """Break a line between words, with further lines below its last column in the left half, else indented by two.

    A command stays whole, so that it can be copied.
    """
    start = line.lstrip(" ")
    margin = len(line) - len(start)
    gaps = [gap.end() for gap in _GAP.finditer(_COLOURS.sub("", line)) if gap.end() <= columns // 2]
    indent = " " * (gaps[-1] if gaps else margin + 2)
    if _width(line) <= columns or start.startswith("tbench ") or len(indent) > columns // 2:
        return line
    lines, blanks, words = [" " * margin], "", start.split(" ")
    for number, word in enumerate(words):
        if number and not word:  # several blanks, as between columns
            blanks += " "
            continue
        if not number or _width(lines[-1]) + len(blanks) + 1 + _width(word) <= columns:
            lines[-1] += f"{blanks} {word}" if number else word
        else:
            lines.append(indent + word)
        blanks = ""
    return "\n".join(lines)


def _width(text: str) -> int:
    return len(_COLOURS.sub("", text))


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print each of the lines like `print_line`."""
    for line in lines:
        print_line(line, err=err)


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on stderr, one line each."""
    print_lines((f"note: {note}" for note in notes), err=True)


def print_progress(text: str) -> None:
    """Print a line of progress on stderr."""
    print_line(text, err=True)


def print_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text of several lines, such as a table or JSON."""
    click.echo(escape_invisible(text), err=err, nl=nl)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    print_text(json.dumps(value, indent=2, ensure_ascii=False))


def print_coloured(lines: Iterable[str]) -> None:
    """Print lines with tbench's own colours; click strips them if the output does not support colours."""
    for line in lines:
        print_folded(coloured_line(line))


def coloured_line(text: str) -> str:
    """Return a line in which colours are kept and all other terminal controls are escaped."""
    return "".join(part if _COLOURS.fullmatch(part) else visible_line(part) for part in _COLOURS.split(text))


def table_lines(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; columns whose heading begins with > are right-aligned."""
    if not rows:
        return
    right = [head.startswith(">") for head in heads]
    table = [[head.removeprefix(">") for head in heads], *([visible_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = zip(row, widths, right, strict=True)
        yield "  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in cells).rstrip()


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as `table_lines` makes it."""
    print_lines(table_lines(heads, rows))


# Results of verifiers, as `tbench why` and the debugger print them.

_TESTS, _LAST_LINES, _COLUMNS = 6, 3, 98


def failed_test_lines(failed: Sequence[FailedTest], failures: int) -> Iterator[str]:
    """Yield the names of failed tests, each followed by lines of its error; if there are many, only the first tests.

    `failures` is the number of all failed tests. Lines may have colours.
    """
    for test in failed[:_TESTS]:
        yield f"  {click.style('✗', fg='red')} {one_line(test.name, _COLUMNS)}"
        yield from (f"      {one_line(line, _COLUMNS)}" for line in test.error[: max(1, _TESTS // failures)])
    if failures > _TESTS:
        yield f"  … and {failures - _TESTS} more"


def last_lines(output: str) -> list[str]:
    """Return the last lines of a verifier's output that are not blank."""
    return [line for line in output.split("\n") if line.strip()][-_LAST_LINES:]
