"""One self-contained HTML page: a table of what was measured of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.look import page
from reports.report import page_style, require_ours
from tbench.files import write_atomically


@dataclass(frozen=True)
class CalibrationRow:
    """A task: its cells, in the order of the heads, and what is to be said of it."""

    cells: tuple[str, ...]
    is_healthy: bool
    words: tuple[str, ...]


def write_calibration(path: Path, heads: Sequence[str], rows: Sequence[CalibrationRow]) -> Path:
    """Write the page. Heads of numbers begin with >. Raises UsageError where another file is at `path`."""
    require_ours(path)
    style, policy = page_style()
    columns = [(head.removeprefix(">"), head.startswith(">")) for head in heads]
    ill = sum(not row.is_healthy for row in rows)
    text = page("calibration.html.j2", path.name, policy=policy, style=style, columns=columns, rows=rows, ill=ill)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode("utf-8", "replace"))
    return path
