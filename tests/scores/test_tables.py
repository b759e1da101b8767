"""Tables in files and pipes equal those of rich, which lays out only a few of their rows."""

from __future__ import annotations

import random
from io import StringIO
from unittest.mock import Mock

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tbench.scores.tables import HEADER_RULE, PIPED_WIDTH, print_table

WORDS = ("ab", "ERR", "0.50", "日本", "é", "submitted=5,", "agent_timeout=1", "", "- ", "x" * 70, "a-long-name" * 4)


def printed(table: Table) -> list[str]:
    console = Console(file=StringIO(), width=80)
    print_table(lambda _: table, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def by_rich(table: Table) -> list[str]:
    console = Console(file=StringIO(), width=PIPED_WIDTH)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def a_table(rng: random.Random) -> Table:
    """Columns of all kinds, some of which are folded, cut, or have no room."""
    table = Table(box=HEADER_RULE, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for _ in range(columns := rng.choice((1, 3, 5, 7, 30))):
        match rng.randrange(4):
            case 0:
                table.add_column("task", overflow="fold", min_width=8, max_width=40)
            case 1:
                table.add_column("wall sec", justify="right", no_wrap=True)
            case 2:
                table.add_column("", overflow="fold", min_width=rng.randrange(12))
            case _:
                table.add_column("by seed", overflow="fold")
    for _ in range(rng.choice((0, 1, 2, 10))):
        table.add_row(*(Text(" ".join(rng.choices(WORDS, k=rng.choice((1, 1, 2, 9))))) for _ in range(columns)))
    return table


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))])
def test_a_table_in_a_pipe_is_as_rich_has_it(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        table = a_table(rng)
        assert printed(table) == by_rich(table)


def test_rich_lays_out_no_more_rows_of_a_long_table_than_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(box=HEADER_RULE, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("task")
    table.add_column("mean", justify="right")
    for number in range(5000):
        table.add_row(Text(f"task-{number}"), Text("0.50"))
    added = Mock(wraps=table.add_row)
    monkeypatch.setattr(Table, "add_row", lambda self, *cells: added(*cells))
    assert len(printed(table)) == 5002
    assert added.call_count <= 2
