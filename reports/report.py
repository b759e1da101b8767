"""Self-contained HTML pages: one about a run, one about what was measured of tasks. Starts nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markupsafe import Markup

from reports.look import HERE, page
from reports.run.page import render_alone
from tbench.errors import UsageError
from tbench.files import write_atomically
from tbench.storage.read_run import read_run

REPORT_NAME = "report.html"
_OURS = b'<meta name="generator" content="tbench">'
"""What every page says near its beginning."""
_STYLES = ("site.css", "run.css")


def write_report(run_dir: Path, out_path: Path | None = None) -> Path:
    """Write the page about a run and return its path; `report.html` in the run directory by default.

    Raises RunUnreadable for what is not a run, MixedResults for results of several models, UsageError where a file that
    is no such page is at `out_path`.
    """
    run = read_run(run_dir)
    out = out_path or run.path / REPORT_NAME
    if out_path is not None:
        require_ours(out_path)
    out.parent.mkdir(parents=True, exist_ok=True)
    style, policy = page_style()
    write_atomically(out, render_alone(run, out, style=style, policy=policy).encode("utf-8", "replace"))
    return out


def require_ours(path: Path) -> None:
    """Check that nothing but a page of tbench's would be overwritten. Raises UsageError."""
    if not _is_ours(path):
        raise UsageError(f"{path}: is there already, and no page of tbench's; name a new file (nothing is overwritten)")


def _is_ours(file: Path) -> bool:
    try:
        with file.open("rb") as page:
            return _OURS in page.read(1000)
    except FileNotFoundError:
        return True


@cache
def page_style() -> tuple[Markup, str]:
    """All styles of a page of its own, and the policy by which a browser obeys these and loads nothing."""
    text = "\n".join((HERE / "assets" / name).read_text(encoding="utf-8") for name in _STYLES)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return Markup(text), policy


# One self-contained HTML page: a table of what was measured of tasks.


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
