"""A leaderboard as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict

from tbench.proxies.replay.scoring.leaderboard import COLUMNS, Leaderboard, RankedResult
from tbench.text import plain

_HEADS = {
    "rank": "Rank",
    "model": "Model",
    "score": "Score",
    "precision": "Precision",
    "recall": "Recall",
    "first_cmd_exact_pct": "First exact",
    "valid_json_pct": "Valid JSON",
    "tolerant_score": "Tolerant score",
    "template": "Template",
    "steps": "Steps",
    "answered_pct": "Answered",
    "metric_revision": "Metric",
    "dataset": "Dataset",
    "sec_per_step": "s/step",
}
_DIGITS = {
    "score": "{:.2f}",
    "command_f1": "{:.4f}",
    "precision": "{:.4f}",
    "recall": "{:.4f}",
    "first_cmd_exact_pct": "{:.1f}",
    "valid_json_pct": "{:.1f}",
    "tolerant_score": "{:.2f}",
    "answered_pct": "{:.1f}",
    "sec_per_step": "{:.3f}",
    "load_s": "{:.1f}",
}
_PERCENT = ("first_cmd_exact_pct", "valid_json_pct", "answered_pct")


def as_markdown(board: Leaderboard) -> str:
    """The board as a table, then the notes on it."""
    lines = [
        f"| {' | '.join(_HEADS.values())} |",
        f"| {' | '.join('---' if name in ('model', 'template', 'dataset') else '---:' for name in _HEADS)} |",
    ]
    lines += [f"| {' | '.join(_markdown_cell(row, name) for name in _HEADS)} |" for row in board.rows]
    remarks = [*board.notes, *(f"Not read: {problem}" for problem in board.unreadable)]
    lines += ["", *(f"- {_escaped(remark)}" for remark in remarks)] if remarks else []
    return "\n".join(lines) + "\n"


def as_csv(board: Leaderboard) -> str:
    """The board as CSV: the published columns by their names, and ours. An excluded row's rank is `excluded`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(row, name) for name in COLUMNS] for row in board.rows)
    return out.getvalue()


def as_json(board: Leaderboard) -> str:
    """The board as JSON: rows, notes, and what was not read. An excluded row's rank is null."""
    document = {
        "rows": [asdict(row) for row in board.rows],
        "notes": list(board.notes),
        "unreadable": list(board.unreadable),
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _cell(row: RankedResult, name: str) -> str:
    value = getattr(row, name)
    if name == "rank" and value is None:
        return "excluded"
    if value is None:
        return ""
    return _DIGITS[name].format(value) if name in _DIGITS else str(value)


def _markdown_cell(row: RankedResult, name: str) -> str:
    text = _cell(row, name)
    if text and name in _PERCENT:
        text += "%"
    return _escaped(text)


def _escaped(text: str) -> str:
    return plain(text).replace("\\", "\\\\").replace("|", "\\|")
