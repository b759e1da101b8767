"""Writes self-contained HTML pages: the report of a run, and the calibration of tasks."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markupsafe import Markup

from reports.page_frame import HERE, page
from reports.run.page import render_standalone
from tbench.errors import UsageError
from tbench.files import write_atomically
from tbench.storage.read_run import read_run

REPORT_NAME = "report.html"
_OURS = b'<meta name="generator" content="tbench">'
"""Marker near the beginning of every page that tbench writes."""
_STYLES = ("site.css", "run.css")


def write_report(run_dir: Path, out_path: Path | None = None) -> Path:
    """Write the report of a run and return its path; `report.html` in the run directory by default.

    Raises RunUnreadable if there is no run, MixedResults for results of several models, UsageError if `out_path` is a
    file that tbench did not write.
    """
    run = read_run(run_dir)
    out = out_path or run.path / REPORT_NAME
    if out_path is not None:
        check_replaceable(out_path)
    out.parent.mkdir(parents=True, exist_ok=True)
    style, policy = page_style()
    write_atomically(out, render_standalone(run, out, style=style, policy=policy).encode("utf-8", "replace"))
    return out


def check_replaceable(path: Path) -> None:
    """Check that `path` does not exist or is a page written by tbench. Raises UsageError."""
    if not _is_ours(path):
        words = "exists and was not written by tbench; name a new file (nothing is overwritten)"
        raise UsageError(f"{path}: {words}")


def _is_ours(file: Path) -> bool:
    try:
        with file.open("rb") as page:
            return _OURS in page.read(1000)
    except FileNotFoundError:
        return True


@cache
def page_style() -> tuple[Markup, str]:
    """Return the styles of a self-contained page, and the policy that allows them and nothing else."""
    text = "\n".join((HERE / "assets" / name).read_text(encoding="utf-8") for name in _STYLES)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return Markup(text), policy


# The calibration page: a table with the measurements of each task.


@dataclass(frozen=True)
class CalibrationRow:
    """Row of a task: its cells, in the order of the headings, and notes on it."""

    cells: tuple[str, ...]
    is_healthy: bool
    words: tuple[str, ...]


def write_calibration(path: Path, heads: Sequence[str], rows: Sequence[CalibrationRow]) -> Path:
    """Write the calibration page. Headings of numeric columns begin with >.

    Raises UsageError if `path` is a file that tbench did not write.
    """
    check_replaceable(path)
    style, policy = page_style()
    columns = [(head.removeprefix(">"), head.startswith(">")) for head in heads]
    ill = sum(not row.is_healthy for row in rows)
    text = page("calibration.html.j2", path.name, policy=policy, style=style, columns=columns, rows=rows, ill=ill)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode("utf-8", "replace"))
    return path
