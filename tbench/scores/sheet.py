"""Rows of values with one way to show each column: on a terminal, as Markdown, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tbench.scores.tables import HEAD_RULE, print_table
from tbench.text import plain


@dataclass(frozen=True, slots=True)
class Column:
    """What a sheet holds under one name."""

    name: str
    """Its name in CSV."""
    head: str | None
    """None for a column that only CSV has."""
    shown: Callable[[Any], str] = str
    is_text: bool = False
    """Whether it is left-aligned, and may be wrapped."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table, row by row."""

    columns: tuple[Column, ...]
    rows: Sequence[Mapping[str, Any]]
    """Values by the names of their columns; None is shown as `-`, and is empty in CSV."""

    @property
    def _visible(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.head is not None)

    def with_rows(self, rows: Sequence[Mapping[str, Any]]) -> Sheet:
        """The same columns over other rows."""
        return Sheet(self.columns, rows)

    def print(self, console: Console) -> None:
        """Print it as a table."""
        print_table(self._table, console)

    def as_markdown(self) -> str:
        lines = [
            f"| {' | '.join(escaped(column.head or '') for column in self._visible)} |",
            f"|{'|'.join('---' if column.is_text else '---:' for column in self._visible)}|",
            *(f"| {' | '.join(escaped(text) for text in self._shown(row))} |" for row in self.rows),
        ]
        return "\n".join(lines) + "\n"

    def as_csv(self) -> str:
        """The values themselves, under the names of the columns."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(column.name for column in self.columns)
        writer.writerows([row[column.name] for column in self.columns] for row in self.rows)
        return out.getvalue()

    def _table(self, width: int) -> Table:
        table = Table(box=HEAD_RULE, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for column in self._visible:
            if column.is_text:
                table.add_column(column.head or "", overflow="fold")
            else:
                table.add_column(column.head or "", justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(Text(plain(text)) for text in self._shown(row)))
        return table

    def _shown(self, row: Mapping[str, Any]) -> list[str]:
        values = ((column, row[column.name]) for column in self._visible)
        return ["-" if value is None else column.shown(value) for column, value in values]


def escaped(text: str) -> str:
    """One line of text for a cell or an item of Markdown."""
    return plain(text).replace("\\", "\\\\").replace("|", "\\|")
